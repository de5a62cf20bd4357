//! Why somebody is not believed: what happened, and what to do.

use host::NodeId;
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError};

use super::{Date, NodeName};

/// Why a machine is not taken for who it says it is, or we are not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// Its certificate is too old, or our clock is wrong.
    #[error(
        "its certificate ended on {ended}, and this machine's clock says {now}: set the clock where it is wrong, else \
         let that machine join again with a new token"
    )]
    Expired {
        /// When it ended.
        ended: Date,
        /// Our clock.
        now: Date,
    },
    /// Its certificate is of the future, or our clock is wrong.
    #[error(
        "its certificate begins on {begins}, and this machine's clock says {now}: one of the two clocks is far off; \
         set it"
    )]
    NotYetValid {
        /// When it begins.
        begins: Date,
        /// Our clock.
        now: Date,
    },
    /// It belongs to another cluster.
    #[error(
        "that machine belongs to another cluster, {found:032x}; this one is {expected:032x}: check the address, or let \
         that machine join this cluster"
    )]
    WrongCluster {
        /// Ours.
        expected: u128,
        /// What its certificate says.
        found: u128,
    },
    /// It is another node of the cluster.
    #[error("that machine is node {}, not node {}: two addresses were exchanged; correct them", found.0, expected.0)]
    WrongNode {
        /// Who was called.
        expected: NodeId,
        /// Who answered.
        found: NodeId,
    },
    /// A certificate that the cluster's CA has not made.
    #[error(
        "its certificate was not made by this cluster's CA: it belongs to another cluster or was made anew; check the \
         address, or let that machine join with a new token"
    )]
    Foreign,
    /// The other end does not believe us.
    #[error(
        "that machine does not accept this one's certificate ({0}): compare both clocks with `date`; when they agree, \
         let this machine join again with a new token"
    )]
    Refused(String),
    /// A certificate without the name of a node.
    #[error("its certificate names no node of a cluster: it is none that Dazzle made; check the address")]
    Nameless,
    /// The CA is not the one that the token names.
    #[error(
        "the machine at this address is not of the cluster that made the token: check the address, or make a token \
         there with `dazzle token create`"
    )]
    WrongAuthority,
    /// Something that does not speak TLS as it should.
    #[error("that machine does not speak as a node of Dazzle does ({0}): check the address and port")]
    NotDazzle(String),
    /// A file of the trust directory cannot be used.
    #[error("{path}: {why}")]
    File {
        /// Which.
        path: String,
        /// Why not.
        why: String,
    },
    /// Others can use a key.
    #[error(
        "{path} is open to other users of this machine, and whoever has read it is taken for this machine, or lets machines \
         in: give `chmod 600 {path}`; if somebody may have read it, let this machine join anew"
    )]
    Exposed {
        /// Where it lies.
        path: String,
    },
    /// A key is somebody else's.
    #[error(
        "{path} belongs to user {owner}, who can read and replace it, and not to the user that runs Dazzle here: run it as \
         that user, or give `chown` and `chmod 600 {path}`"
    )]
    Owned {
        /// Where it lies.
        path: String,
        /// Whose it is.
        owner: u32,
    },
    /// A key or a certificate cannot be used.
    #[error(
        "a key or a certificate cannot be used ({0}): restore `trust/` from a copy, or join again with a new token"
    )]
    Unusable(String),
}

impl TrustError {
    /// What an error of TLS means to us.
    pub(in crate::edge) fn of(error: &rustls::Error) -> TrustError {
        match error {
            rustls::Error::InvalidCertificate(error) => TrustError::of_certificate(error),
            rustls::Error::NoCertificatesPresented => TrustError::Nameless,
            rustls::Error::AlertReceived(alert) if is_about_certificates(*alert) => {
                TrustError::Refused(format!("{alert:?}"))
            }
            rustls::Error::Other(other) => match other.0.downcast_ref::<TrustError>() {
                Some(known) => known.clone(),
                None => TrustError::NotDazzle(error.to_string()),
            },
            _ => TrustError::NotDazzle(error.to_string()),
        }
    }

    fn of_certificate(error: &CertificateError) -> TrustError {
        let date = |time: &UnixTime| Date(time.as_secs());
        match error {
            CertificateError::ExpiredContext { time, not_after } => {
                TrustError::Expired { ended: date(not_after), now: date(time) }
            }
            CertificateError::NotValidYetContext { time, not_before } => {
                TrustError::NotYetValid { begins: date(not_before), now: date(time) }
            }
            CertificateError::Other(other) => match other.0.downcast_ref::<TrustError>() {
                Some(known) => known.clone(),
                None => TrustError::Foreign,
            },
            _ => TrustError::Foreign,
        }
    }

    /// What it means that `found` answers where `expected` was called, if it is wrong.
    pub(super) fn of_name(found: Option<NodeName>, expected: NodeName) -> Option<TrustError> {
        match found {
            None => Some(TrustError::Nameless),
            Some(found) if found.cluster != expected.cluster => {
                Some(TrustError::WrongCluster { expected: expected.cluster, found: found.cluster })
            }
            Some(found) if found.node != expected.node => {
                Some(TrustError::WrongNode { expected: expected.node, found: found.node })
            }
            Some(_) => None,
        }
    }
}

/// Whether the other end closed because of our certificate.
fn is_about_certificates(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::CertificateRequired
            | Alert::DecryptError
    )
}
