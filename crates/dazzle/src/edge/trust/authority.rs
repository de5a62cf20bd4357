//! The cluster's CA. Whoever holds its key can let machines in; the key never goes over the network.

use aws_lc_rs::hmac;
use host::NodeId;
use protocol::registry::Invitation;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};

use super::identity::names_in;
use super::token::hash;
use super::{Date, Fingerprint, NodeName, Proof, Token, TokenError, TrustError};

const DAY: u64 = 86_400;
/// What the CA's key says of nothing but invitations.
const INVITATION_WORDS: &[u8] = b"dazzle invitation";

/// From when to when a certificate holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub begins: Date,
    /// The last.
    pub ends: Date,
}

impl Validity {
    /// A CA's, made now.
    pub fn of_authority(now: Date) -> Validity {
        Validity::years(now, 30)
    }

    /// A node's, made now.
    pub fn of_node(now: Date) -> Validity {
        Validity::years(now, 10)
    }

    /// A day early, so that machines whose clocks are a little behind take it.
    fn years(now: Date, years: u64) -> Validity {
        Validity { begins: Date(now.0.saturating_sub(DAY)), ends: Date(now.0 + years * 365 * DAY) }
    }

    fn apply(self, params: &mut CertificateParams) {
        let time = |date: Date| rcgen::date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(date.0);
        (params.not_before, params.not_after) = (time(self.begins), time(self.ends));
    }
}

/// A CA with its key.
pub struct Authority {
    cluster: u128,
    certificate: CertificateDer<'static>,
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// The CA of a new cluster.
    pub fn create(cluster: u128, validity: Validity) -> Result<Authority, TrustError> {
        let key = KeyPair::generate().map_err(unusable)?;
        let mut params = CertificateParams::new(vec![authority_name(cluster)]).map_err(unusable)?;
        params.distinguished_name.push(DnType::CommonName, format!("Dazzle cluster {cluster:032x}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        validity.apply(&mut params);
        let certificate = params.self_signed(&key).map_err(unusable)?;
        let (pem, certificate) = (certificate.pem(), certificate.der().clone());
        Ok(Authority { cluster, certificate, pem, issuer: Issuer::new(params, key) })
    }

    /// The CA that was stored as these two.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Authority, TrustError> {
        let pem = certificate.to_owned();
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(unusable)?;
        let cluster = names_in(&certificate)
            .and_then(|names| {
                names.iter().find_map(|name| u128::from_str_radix(name.strip_suffix(".dazzle")?, 16).ok())
            })
            .ok_or_else(|| TrustError::Unusable("the certificate is no cluster's CA".into()))?;
        let key = KeyPair::from_pem(key).map_err(unusable)?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(unusable)?;
        Ok(Authority { cluster, certificate, pem, issuer })
    }

    /// The cluster's id.
    pub fn cluster(&self) -> u128 {
        self.cluster
    }

    /// Its certificate, which everybody may see.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Its key, which nobody else may see.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// What tokens name it by.
    pub fn fingerprint(&self) -> Fingerprint {
        hash(&self.certificate)
    }

    /// The token of an invitation.
    pub fn invite(&self, invitation: Invitation) -> Token {
        Token { fingerprint: self.fingerprint(), invitation, proof: self.prove(invitation) }
    }

    /// Whether the CA's key made `proof`, and the invitation is good at `now`. How long it takes tells nothing of where proofs
    /// differ.
    pub fn expect_invited(&self, invitation: Invitation, proof: &Proof, now: Date) -> Result<(), TokenError> {
        aws_lc_rs::constant_time::verify_slices_are_equal(&self.prove(invitation), proof)
            .map_err(|_| TokenError::Wrong)?;
        if now.0 < invitation.expires { Ok(()) } else { Err(TokenError::Expired(invitation.expires)) }
    }

    /// The first half of HMAC-SHA256, by the SHA-256 of the CA's key in PKCS #8.
    fn prove(&self, Invitation { number, expires }: Invitation) -> Proof {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &hash(&self.issuer.key().serialize_der()));
        let said = [INVITATION_WORDS, &number.to_le_bytes(), &expires.to_le_bytes()].concat();
        let tag = hmac::sign(&key, &said);
        tag.as_ref()[..size_of::<Proof>()].try_into().expect("half of SHA-256 has 16 bytes")
    }

    /// The certificate of `node`, in PEM, for the key that signed `request`. Of the request nothing but the key is taken.
    pub fn sign(&self, request: &[u8], node: NodeId, validity: Validity) -> Result<String, TrustError> {
        let request = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request))
            .map_err(unusable)?;
        let name = NodeName { node, cluster: self.cluster };
        let mut params = CertificateParams::new(vec![name.to_string()]).map_err(unusable)?;
        params.distinguished_name.push(DnType::CommonName, format!("Dazzle node {}", node.0));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        validity.apply(&mut params);
        Ok(params.signed_by(&request.public_key, &self.issuer).map_err(unusable)?.pem())
    }
}

/// A node's key.
pub struct NodeKey(KeyPair);

impl NodeKey {
    /// A new one.
    pub fn generate() -> Result<NodeKey, TrustError> {
        KeyPair::generate().map(NodeKey).map_err(unusable)
    }

    /// What to send to an authority, in DER.
    pub fn request(&self) -> Result<Vec<u8>, TrustError> {
        let request = CertificateParams::default().serialize_request(&self.0).map_err(unusable)?;
        Ok(request.der().to_vec())
    }

    /// The key itself, for its file.
    pub fn pem(&self) -> String {
        self.0.serialize_pem()
    }
}

fn authority_name(cluster: u128) -> String {
    format!("{cluster:032x}.dazzle")
}

pub(super) fn unusable(error: impl std::fmt::Display) -> TrustError {
    TrustError::Unusable(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_the_key_knows_its_invitations_and_no_others() {
        let ours = Authority::create(7, Validity::of_authority(Date(0))).unwrap();
        let Token { invitation, proof, .. } = ours.invite(Invitation { number: 1, expires: 1000 });
        let elsewhere = Authority::from_pem(ours.pem(), &ours.key_pem()).unwrap();
        let judge = |invitation, proof| elsewhere.expect_invited(invitation, &proof, Date(999));
        assert_eq!(judge(invitation, proof), Ok(()));
        assert_eq!(judge(Invitation { expires: 1001, ..invitation }, proof), Err(TokenError::Wrong));
        assert_eq!(judge(Invitation { number: 2, ..invitation }, proof), Err(TokenError::Wrong));
        assert!((0..16).all(|at| judge(invitation, flipped(proof, at)) == Err(TokenError::Wrong)));
        let theirs = Authority::create(7, Validity::of_authority(Date(0))).unwrap();
        assert_eq!(theirs.expect_invited(invitation, &proof, Date(999)), Err(TokenError::Wrong));
    }

    #[test]
    fn an_invitation_is_good_until_it_expires() {
        let ours = Authority::create(7, Validity::of_authority(Date(0))).unwrap();
        let Token { invitation, proof, .. } = ours.invite(Invitation { number: 1, expires: 1000 });
        let judge = |now| ours.expect_invited(invitation, &proof, Date(now));
        assert_eq!((judge(0), judge(999)), (Ok(()), Ok(())));
        assert_eq!((judge(1000), judge(u64::MAX)), (Err(TokenError::Expired(1000)), Err(TokenError::Expired(1000))));
        // Who has no key learns nothing but that.
        assert_eq!(ours.expect_invited(invitation, &flipped(proof, 0), Date(1000)), Err(TokenError::Wrong));
    }

    fn flipped(mut proof: Proof, at: usize) -> Proof {
        proof[at] ^= 1;
        proof
    }
}
