//! How this machine stops together with all others: every part when its part is stopped everywhere, so that each finds the
//! others it needs to store what it holds (`docs/decisions/0022-all-stop-together.md`).
//!
//! 1. Nothing stops here before all have agreed; from then on there is no way back.
//! 2. Whoever is given up by the registry meanwhile, or hears nothing any more, stops alone.

use std::time::Duration;

use client::ClientError;
use host::BoxFuture;
use protocol::maps::{Stop, StopPhase};
use protocol::registry::{RegistryError, RegistryRequest};
use tracing::info;

use crate::Roles;

/// How soon the registry is told again what it did not hear.
const AGAIN: Duration = Duration::from_millis(250);
/// How long a machine stays when everything is stored, so that the others hear of it: three heartbeats of the registry.
const PARTING: Duration = Duration::from_millis(300);

/// What stands above the client.
pub trait Above: Send + Sync {
    /// Whether programs use it.
    fn is_used(&self) -> BoxFuture<'static, bool>;
    /// Takes it away from programs, used or not. It asks the client for nothing new then.
    fn take_away(&self) -> BoxFuture<'static, ()>;
    /// What it still does then.
    fn settle(&self) -> BoxFuture<'static, ()>;
}

/// Why this machine does not stop with all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stays {
    /// Nobody stops: programs use the mount of this node.
    UsedOn(u32),
    /// It does not know what the others have agreed on.
    Alone,
}

impl Roles {
    /// Has all machines stop, this one too: by [`Roles::all_are_to_stop`] each of them hears of it.
    pub async fn stop_all(&self, force: bool) -> Result<(), RegistryError> {
        self.cluster.decide(|seen| RegistryRequest::StopAll { force, seen }).await.map(drop)
    }

    /// Returns when all machines are to stop.
    pub async fn all_are_to_stop(&self) {
        self.until(|stop| stop.is_some_and(|stop| !matches!(stop.phase, StopPhase::CalledOff(_)))).await;
    }

    /// Says whether this machine can stop, and returns when it is known whether all can.
    pub async fn agree_to_stop(&self, above: &dyn Above) -> Result<(), Stays> {
        if let Some(Stop { force, asked, .. }) = self.cluster.maps().stop.clone() {
            let (node, session) = self.life();
            let answer = if !force && above.is_used().await {
                RegistryRequest::CallStopOff { node, session, asked }
            } else {
                RegistryRequest::FinishPhase { node, session, phase: StopPhase::Asked, asked }
            };
            self.tell(answer).await;
        }
        self.agreement().await
    }

    /// Returns when it is known whether all can stop.
    pub async fn agreement(&self) -> Result<(), Stays> {
        self.in_company(self.until(|stop| stop.is_none_or(|stop| stop.phase != StopPhase::Asked))).await;
        match self.cluster.maps().stop.as_ref().map(|stop| stop.phase) {
            Some(StopPhase::CalledOff(by)) => Err(Stays::UsedOn(by)),
            None | Some(StopPhase::Asked) => Err(Stays::Alone),
            Some(StopPhase::Clients | StopPhase::Managers | StopPhase::Over) => Ok(()),
        }
    }

    /// Stops, when all have agreed to, and returns when the others need this machine no more.
    pub async fn stop_with_all(&self, above: &dyn Above) -> Result<(), ClientError> {
        info!("all machines stop");
        above.take_away().await;
        let flushed = self.stop_client(above.settle()).await;
        self.finish(StopPhase::Clients).await;
        self.in_time(self.manager.stop()).await;
        self.leave();
        self.finish(StopPhase::Managers).await;
        self.cluster.host().sleep(PARTING).await;
        flushed
    }

    /// Has finished a phase; returns when all have.
    async fn finish(&self, phase: StopPhase) {
        let (node, session) = self.life();
        // Without this machine none can be over before another is asked for, unless this one was given up.
        let Some(asked) = self.cluster.maps().stop.as_ref().map(|stop| stop.asked) else { return };
        self.tell(RegistryRequest::FinishPhase { node, session, phase, asked }).await;
        // Where the stop is over and the next start has begun, the phase is over, too.
        self.in_company(self.until(|stop| stop.is_none_or(|stop| (stop.phase, stop.asked) != (phase, asked)))).await;
    }

    /// Tells the registry until it has heard.
    async fn tell(&self, request: RegistryRequest) {
        let telling = async {
            while let Err(RegistryError::Unavailable(_)) = self.cluster.registry(request.clone()).await {
                self.cluster.host().sleep(AGAIN).await;
            }
        };
        self.in_company(telling).await;
    }

    async fn until(&self, is_so: impl Fn(Option<&Stop>) -> bool) {
        loop {
            let newer = self.cluster.newer_maps();
            if is_so(self.cluster.maps().stop.as_ref()) {
                return;
            }
            newer.await;
        }
    }

    /// Who speaks to the registry.
    fn life(&self) -> (u32, u64) {
        (self.cluster.host().node().0, self.session())
    }
}
