//! A daemon is restarted while programs have files open: what one process leaves, the next goes on with, and nobody notices
//! but by a pause (DESIGN §13, promise 3; `docs/decisions/0025-restarts-keep-what-is-open.md`).
//!
//! 1. First the client falls silent to managers, then programs are held; both last until the next process answers them.
//! 2. From [`Parting::last_will`] on there is no way back: if the next process does not come, it is as if this one was killed.
//! 3. Where the registry has given the node up meanwhile, the next process has inherited nothing, and begins as after a kill.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use client::{Above, Client, ClientError, ClientOptions, Heritage, Silence};
use futures_util::future::{Either, select};
use log::{Cluster, LogReader};

use crate::Roles;

/// How long others may take to have answered what this machine was asked for before.
const SILENCE_PATIENCE: Duration = Duration::from_secs(10);

/// What the process before left, and what is to stand above the client that goes on with it.
pub struct Inherited {
    /// What it left.
    pub heritage: Heritage,
    /// Puts what stands above onto the client; from then on it may be asked.
    pub above: Raise,
}

/// Raises what stands above a client.
pub type Raise = Box<dyn FnOnce(&Client) -> Result<Arc<dyn Above>, String> + Send>;

impl Inherited {
    pub(crate) async fn resume(
        self,
        cluster: &Cluster,
        reader: &LogReader,
        options: ClientOptions,
    ) -> Result<Client, String> {
        let resumed = Client::resume(cluster.clone(), reader.clone(), options, self.heritage).await;
        let client = resumed.map_err(|error| error.to_string())?;
        let above = (self.above)(&client)?;
        client.answer_managers(above);
        Ok(client)
    }
}

/// A machine whose daemon is about to end, and to be followed by another process. Dropped, it goes on.
pub struct Parting<'a> {
    roles: &'a Roles,
    silence: Silence,
}

/// Why nothing is left to another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoWill {
    /// Not everything can be stored now: the machine goes on as if nothing had been.
    GoesOn(String),
    /// It cannot go on, either: what was fsynced is safe, and programs lose what they have open.
    Ends(String),
}

impl Roles {
    /// Prepares for the next process, while programs go on: stores what can be stored, and answers managers no more. In the end
    /// programs are to be held, and then comes [`Parting::last_will`].
    pub async fn part(&self) -> Result<Parting<'_>, ClientError> {
        self.client.settle().await?;
        // What the next process would have to read otherwise; it can.
        let _ = self.manager.checkpoint().await;
        let host = self.cluster.host();
        match select(pin!(self.client.fall_silent()), pin!(host.sleep(SILENCE_PATIENCE))).await {
            Either::Left((silence, _)) => Ok(Parting { roles: self, silence }),
            Either::Right(_) => {
                Err(ClientError::Unreachable("what other machines asked this one for cannot be given up now".into()))
            }
        }
    }
}

impl Parting<'_> {
    /// Ends all roles, and leaves what the next process goes on with. No program asks for anything any more; `settling` is what
    /// stands above the client still does.
    pub async fn last_will(self, settling: impl Future<Output = ()>) -> Result<Heritage, NoWill> {
        let Parting { roles, silence } = self;
        settling.await;
        roles.client.settle().await.map_err(|error| NoWill::GoesOn(error.to_string()))?;
        roles.leave();
        roles.rebuilder.stop();
        roles.scrubber.stop();
        roles.in_time(roles.cleaner.stop()).await;
        let heritage = roles.client.bequeath(&silence).await;
        roles.in_time(roles.manager.stop()).await;
        // Whoever leads then must know of the pause.
        roles.hand_over().await;
        roles.session.pause().await;
        // No manager is answered by this process any more.
        std::mem::forget(silence);
        heritage.map_err(|error| NoWill::Ends(error.to_string()))
    }
}
