//! What a node proves itself with, and TLS made of it. There is no session resumption: a certificate is looked at for
//! every connection.

use std::sync::Arc;

use host::NodeId;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::TlsConnector;

use super::authority::unusable;
use super::token::hash;
use super::verifier::{Believed, Verifier};
use super::{Authority, Date, Fingerprint, NodeKey, NodeName, TrustError, Validity, provider};

/// What a connection is for; the caller's first message says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Calls between nodes.
    Calls,
    /// To join.
    Join,
}

impl Purpose {
    /// Its name in ALPN.
    pub const fn protocol(self) -> &'static [u8] {
        match self {
            Purpose::Calls => b"dazzle",
            Purpose::Join => b"dazzle-join",
        }
    }
}

/// A node's certificate, key and CA.
pub struct Identity {
    name: NodeName,
    authority_pem: String,
    certificate_pem: String,
    key_pem: String,
    authority: CertificateDer<'static>,
    certificate: CertificateDer<'static>,
    client: Arc<ClientConfig>,
    calls_server: Arc<ServerConfig>,
    join_server: Arc<ServerConfig>,
}

impl Identity {
    /// Of what its three files hold.
    pub fn from_pem(authority_pem: String, certificate_pem: String, key_pem: String) -> Result<Identity, TrustError> {
        let authority = CertificateDer::from_pem_slice(authority_pem.as_bytes()).map_err(unusable)?;
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes()).map_err(unusable)?;
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).map_err(unusable)?;
        let name = named_in(&certificate).ok_or(TrustError::Nameless)?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone()).map_err(unusable)?;
        let roots = Arc::new(roots);
        let chain = vec![certificate.clone()];
        let client = client_config(Verifier::new(Believed::Authority(roots.clone())))?
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(unusable)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build().map_err(unusable)?;
        let calls_server = server_config()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key.clone_key())
            .map_err(unusable)?;
        // A joiner knows the CA by its fingerprint only, so the CA's certificate comes along.
        let join_server = server_config()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone(), authority.clone()], key)
            .map_err(unusable)?;
        Ok(Identity {
            name,
            authority_pem,
            certificate_pem,
            key_pem,
            authority,
            certificate,
            client: Arc::new(for_client(client, Purpose::Calls)),
            calls_server: Arc::new(for_server(calls_server, Purpose::Calls)),
            join_server: Arc::new(for_server(join_server, Purpose::Join)),
        })
    }

    /// The identity of `node`, made where the CA is: for a cluster's first node.
    pub fn create(authority: &Authority, node: NodeId, validity: Validity) -> Result<Identity, TrustError> {
        let key = NodeKey::generate()?;
        let certificate = authority.sign(&key.request()?, node, validity)?;
        Identity::from_pem(authority.pem().to_owned(), certificate, key.pem())
    }

    /// Whether our own certificate holds at `now`: better asked at the start than learned from every peer's refusal.
    pub fn check(&self, now: Date) -> Result<(), TrustError> {
        let now = rustls::pki_types::UnixTime::since_unix_epoch(std::time::Duration::from_secs(now.0));
        Verifier::new(Believed::Fingerprint(self.fingerprint()))
            .verify(&self.certificate, std::slice::from_ref(&self.authority), now)
            .map_err(|error| TrustError::of(&error))
    }

    /// Which node of which cluster it is.
    pub fn name(&self) -> NodeName {
        self.name
    }

    /// What tokens name its CA by.
    pub fn fingerprint(&self) -> Fingerprint {
        hash(&self.authority)
    }

    /// What its three files hold: the CA's certificate, the node's, the key.
    pub fn pems(&self) -> [&str; 3] {
        [&self.authority_pem, &self.certificate_pem, &self.key_pem]
    }

    /// The dialler's end.
    pub(in crate::edge) fn connector(&self) -> TlsConnector {
        TlsConnector::from(self.client.clone())
    }

    /// The listener's end.
    pub(in crate::edge) fn server(&self, purpose: Purpose) -> Arc<ServerConfig> {
        match purpose {
            Purpose::Calls => self.calls_server.clone(),
            Purpose::Join => self.join_server.clone(),
        }
    }
}

/// The dialler's end for a machine that has nothing but a token.
pub(in crate::edge) fn joiner(fingerprint: Fingerprint) -> Result<TlsConnector, TrustError> {
    let config = client_config(Verifier::new(Believed::Fingerprint(fingerprint)))?.with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(for_client(config, Purpose::Join))))
}

/// The node that a certificate names, if it names one and nothing else. It proves nothing by itself.
pub(in crate::edge) fn named_in(certificate: &CertificateDer<'_>) -> Option<NodeName> {
    match names_in(certificate)?.as_slice() {
        [name] => NodeName::parse(name),
        _ => None,
    }
}

/// The DNS names in a certificate, if it is one.
pub(super) fn names_in(certificate: &CertificateDer<'_>) -> Option<Vec<String>> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    Some(certificate.valid_dns_names().map(str::to_owned).collect())
}

type ClientBuilder = rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>;

fn client_config(verifier: Verifier) -> Result<ClientBuilder, TrustError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(unusable)?;
    Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)))
}

fn server_config() -> Result<rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier>, TrustError> {
    ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13]).map_err(unusable)
}

fn for_client(mut config: ClientConfig, purpose: Purpose) -> ClientConfig {
    config.alpn_protocols = vec![purpose.protocol().to_vec()];
    config.resumption = Resumption::disabled();
    config
}

fn for_server(mut config: ServerConfig, purpose: Purpose) -> ServerConfig {
    config.alpn_protocols = vec![purpose.protocol().to_vec()];
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config
}
