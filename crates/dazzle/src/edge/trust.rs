//! Who is who: the cluster's own CA, the nodes' certificates, the tokens by which machines join. `docs/format-network.md`,
//! *Certificates* and *Joining*.
//!
//! | noun | it is |
//! |---|---|
//! | [`NodeName`] | the name in a certificate: a node of a cluster |
//! | [`Authority`] | the CA: makes itself, signs nodes' requests |
//! | [`NodeKey`] | a node's key, which never leaves it |
//! | [`Identity`] | what a node proves itself with, and both ends of TLS made of it |
//! | [`Token`] | the line that lets a machine join |
//! | [`TrustError`] | why somebody is not believed, and what to do |
//!
//! *Never*: sockets; who may join, which is asked of an [`Admission`](crate::edge::network::Admission).

mod authority;
mod date;
mod error;
mod files;
mod identity;
mod name;
mod token;
mod verifier;

pub use authority::{Authority, NodeKey, Validity};
pub use date::Date;
pub use error::TrustError;
pub use files::{load, load_authority, store, store_authority};
pub use identity::{Identity, Purpose};
pub(in crate::edge) use identity::{joiner, named_in};
pub use name::NodeName;
pub use token::{Fingerprint, Proof, Token, TokenError, number_of};

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// The one provider of cryptography. Taken by hand, never from the process, so that nobody else decides it.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
