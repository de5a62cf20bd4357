//! What a client answers from memory is right while the lease of its node holds, for only then would it have been asked to give
//! it up (`docs/tokens.md`; DESIGN §6, the one lease). Awaits.
//!
//! 1. Whatever is answered from memory is confirmed after it was looked at: the lease held at a moment within the call.
//! 2. A lease that ran out and then holds again was never given to anybody else: what is in memory is as good as before.
//! 3. A kernel's pages answer without this client: it drops them as soon as the lease has run out. The others are given what
//!    was ours only after the registry has seen it run out, by its own clock and later, and after our log was sealed.

use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{Either, select};
use tracing::warn;

use crate::ClientError;
use crate::ask::PATIENCE;
use crate::call_backs::Above;
use crate::client::{Inner, lock};

impl Inner {
    /// Returns once nobody else can have been given what was in memory when this was called. Waits for a lease that ran out;
    /// not for ever, so that no program hangs.
    pub(crate) async fn confirm(&self) -> Result<(), ClientError> {
        if self.cluster.is_trusted() {
            return Ok(());
        }
        let again = pin!(self.cluster.is_trusted_again());
        match select(again, pin!(self.host.sleep(PATIENCE))).await {
            Either::Left((true, _)) => Ok(()),
            Either::Left((false, _)) => Err(ClientError::Expelled),
            Either::Right(_) => Err(ClientError::Unreachable("the lease of this machine cannot be renewed".into())),
        }
    }

    /// Has what lies above forget all files whenever the lease runs out.
    pub(crate) async fn watch_lease(&self, above: Arc<dyn Above>) {
        loop {
            self.cluster.distrust().await;
            if self.is_stopped() {
                return;
            }
            warn!("the lease of this machine ran out: nothing is answered from memory until it holds again");
            let files = lock(&self.files).keys().copied().collect();
            // Pages that are being read wait for the lease, too: nobody waits for them.
            self.host.spawn(above.forget_all(files));
            if !self.cluster.is_trusted_again().await {
                return;
            }
        }
    }
}
