//! Tokens that this client needs no more: their managers are told, in bunches, so that they do not remember them, and call
//! nothing back in vain. Awaits.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use event_listener::Event;
use futures_util::future::join_all;
use protocol::manager::ManagerRequest;
use protocol::token::Token;

use crate::client::{Inner, lock};

/// How long they are gathered: nobody waits for them.
const GATHER: Duration = Duration::from_secs(1);
/// So many are told at a time: some hundred kilobytes.
const TOLD_MAX: usize = 5000;
/// More are not remembered until they are told: what is left out is called back in vain some day.
const UNTOLD_MAX: usize = 200_000;

/// What was forgotten and is not told.
#[derive(Default)]
pub(crate) struct Forgotten {
    untold: Mutex<Vec<Token>>,
    some: Event,
}

impl Forgotten {
    /// These are not held any more: nothing of them is in memory, here or above.
    pub(crate) fn add(&self, tokens: impl IntoIterator<Item = Token>) {
        let mut untold = lock(&self.untold);
        let room = UNTOLD_MAX.saturating_sub(untold.len());
        untold.extend(tokens.into_iter().take(room));
        if !untold.is_empty() {
            self.some.notify(1);
        }
    }

    /// Whoever waits looks again.
    pub(crate) fn wake(&self) {
        self.some.notify(usize::MAX);
    }

    async fn some(&self) {
        let some = self.some.listen();
        if lock(&self.untold).is_empty() {
            some.await;
        }
    }
}

impl Inner {
    /// Tells managers what was forgotten, until the client stops. What a manager does not hear it calls back in vain.
    pub(crate) async fn tell_forgotten_forever(&self) {
        while !self.is_stopped() {
            self.forgotten.some().await;
            self.host.sleep(GATHER).await;
            // What is given up from then on the next process inherits.
            if self.is_stopped() {
                return;
            }
            let mut by_manager = BTreeMap::<_, Vec<Token>>::new();
            for token in std::mem::take(&mut *lock(&self.forgotten.untold)) {
                by_manager.entry(self.manager_of(token.inode)).or_default().push(token);
            }
            let tell = by_manager.into_iter().map(async |(manager, tokens)| {
                for part in tokens.chunks(TOLD_MAX) {
                    if self.ask_node(manager, ManagerRequest::Forgotten(part.to_vec())).await.is_err() {
                        return;
                    }
                }
            });
            join_all(tell).await;
        }
    }
}
