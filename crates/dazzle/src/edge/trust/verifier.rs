//! Whom a dialler believes. As TLS has it, with two differences: who answers is told in our own words when it is somebody
//! else, and a joiner believes the CA that its token names.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme};

use super::identity::named_in;
use super::token::hash;
use super::{Fingerprint, NodeName, TrustError, provider};

/// Whose certificates are taken.
#[derive(Debug)]
pub(super) enum Believed {
    /// Those of our CA, from the very node that was called.
    Authority(Arc<RootCertStore>),
    /// Those of the CA with this fingerprint, which must come along; from any node.
    Fingerprint(Fingerprint),
}

#[derive(Debug)]
pub(super) struct Verifier {
    believed: Believed,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    pub(super) fn new(believed: Believed) -> Verifier {
        Verifier { believed, provider: provider() }
    }

    /// Whether a CA that is believed has made `certificate`, and it holds now.
    pub(super) fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let roots = match &self.believed {
            Believed::Authority(roots) => roots.clone(),
            Believed::Fingerprint(fingerprint) => {
                let authority = others.iter().find(|other| hash(other) == *fingerprint);
                let authority = authority.ok_or_else(|| in_our_words(TrustError::WrongAuthority))?;
                let mut roots = RootCertStore::empty();
                roots.add(authority.clone().into_owned())?;
                Arc::new(roots)
            }
        };
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &[], now, algorithms)
    }

    /// Whether it is the node that was called.
    fn verify_name(&self, certificate: &CertificateDer<'_>, called: &ServerName<'_>) -> Result<(), Error> {
        if let Believed::Fingerprint(_) = self.believed {
            return Ok(());
        }
        if let Some(wrong) = called_in(called).and_then(|called| TrustError::of_name(named_in(certificate), called)) {
            return Err(in_our_words(wrong));
        }
        verify_server_name(&ParsedCertificate::try_from(certificate)?, called)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.verify(end_entity, intermediates, now) {
            Ok(()) => self.verify_name(end_entity, server_name)?,
            // What a stranger's certificate says is believed for one thing: to say whose it seems to be.
            Err(
                error @ Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature),
            ) => {
                let wrong = called_in(server_name).and_then(|called| TrustError::of_name(named_in(end_entity), called));
                return Err(match wrong {
                    Some(wrong @ TrustError::WrongCluster { .. }) => in_our_words(wrong),
                    _ => error,
                });
            }
            Err(error) => return Err(error),
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn called_in(name: &ServerName<'_>) -> Option<NodeName> {
    match name {
        ServerName::DnsName(name) => NodeName::parse(name.as_ref()),
        _ => None,
    }
}

fn in_our_words(error: TrustError) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
}
