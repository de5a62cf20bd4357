//! A life of the machine, as all others count it: its session with the registry, and the lease that comes with it.

use std::time::Duration;

use host::{BoxFuture, Host};
use log::{Cluster, Lease};
use protocol::id::LogId;
use protocol::registry::RegistryError;
use registry::{Life, Session, registries};

/// Begins this life of the node: from now on others count with it, and it answers as long as its lease holds.
pub(crate) async fn begin(cluster: &Cluster, address: String, keeps: Option<LogId>) -> Result<Session, String> {
    let host = cluster.host();
    let node = host.node();
    let maps = cluster.maps();
    let known = cluster.known();
    let ask = move || known().map_or_else(Vec::new, |maps| registries(&maps, node));
    let after = maps.nodes.get(&node.0).map_or(0, |entry| entry.session);
    let session = Session::begin(host, ask, Life { node: node.0, after, address, keeps }).await.map_err(|error| match error {
        RegistryError::Removed(_) => "this machine was removed from the cluster with `dazzle node remove`. Nothing that lies \
                                      here is needed any more; to take part again, `dazzle join` with another, empty \
                                      directory"
            .to_owned(),
        error => format!(
            "the cluster did not take this node in: {error}. Start the other machines too; more than half of those that vote \
             must run; where they are lost for good, `dazzle registry promote` on this machine goes on without them"
        ),
    })?;
    // What this life goes on with, its earlier ones left: whichever replica is asked first may be behind.
    cluster.newest_to_begin().await.map_err(|error| error.to_string())?;
    cluster.lease_by(Box::new(OwnLease(session.clone(), host.clone())));
    Ok(session)
}

/// The lease of this node's session.
struct OwnLease(Session, Host);

impl Lease for OwnLease {
    fn left(&self) -> Duration {
        if self.0.is_over() { Duration::ZERO } else { self.0.until() - self.1.now() }
    }

    fn is_over(&self) -> bool {
        self.0.is_over()
    }

    fn lapse(&self) -> BoxFuture<'static, ()> {
        let session = self.0.clone();
        Box::pin(async move { session.lost().await })
    }

    fn outcome(&self) -> BoxFuture<'static, ()> {
        let session = self.0.clone();
        Box::pin(async move { session.settled().await })
    }
}
