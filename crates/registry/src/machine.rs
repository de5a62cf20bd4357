//! What the nodes agree on: every node applies the same commands in the same order to the maps. `change::apply` decides; this
//! file only carries.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use event_listener::Event;
use futures_util::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};
use protocol::id::MapEpoch;
use protocol::maps::Maps;
use protocol::registry::RegistryError;

use crate::change::{self, Outcome, Reply};
use crate::consensus::{Agreed, Command, LogId, Membership, Meta, Snapshot, Words};
use crate::store::Store;

/// So many answers are remembered: more than are given while a command may still be proposed again.
const ANSWERS_MAX: usize = 4096;

/// The maps as this node has them, for all its readers.
pub(crate) struct Published {
    maps: Mutex<Arc<Maps>>,
    newer: Event,
}

impl Published {
    pub fn new(maps: Arc<Maps>) -> Arc<Published> {
        Arc::new(Published { maps: Mutex::new(maps), newer: Event::new() })
    }

    pub fn maps(&self) -> Arc<Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The maps, once they are newer than `epoch`.
    pub async fn newer(&self, epoch: MapEpoch) -> Arc<Maps> {
        loop {
            let listener = self.newer.listen();
            let maps = self.maps();
            if maps.epoch > epoch {
                return maps;
            }
            listener.await;
        }
    }

    /// Shows `maps`, which were agreed on, unless newer ones are known.
    pub fn publish(&self, maps: &Arc<Maps>) {
        let mut known = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        if maps.epoch > known.epoch {
            *known = maps.clone();
            drop(known);
            self.newer.notify(usize::MAX);
        }
    }
}

/// The state that commands change.
pub struct Machine {
    store: Arc<Store>,
    published: Arc<Published>,
    /// Nothing on a node that has just joined.
    agreed: Option<Agreed>,
    applied: Option<LogId>,
    members: Membership,
}

impl Machine {
    pub(crate) fn new(store: Arc<Store>, published: Arc<Published>) -> Machine {
        let snapshot = store.kept().snapshot.clone();
        let mut machine = Machine { store, published, agreed: None, applied: None, members: Membership::default() };
        if let Some((meta, agreed)) = snapshot {
            machine.take(&meta, &agreed);
        }
        machine
    }

    fn take(&mut self, meta: &Meta, agreed: &Agreed) {
        self.published.publish(&agreed.maps);
        self.agreed = Some(agreed.clone());
        self.applied = meta.last_log_id;
        self.members = meta.last_membership.clone();
    }

    fn command(&mut self, command: Command, term: u64) -> Reply {
        let agreed = self.agreed.as_mut().expect("a cluster begins with maps, and whoever joins gets them first");
        let reply = agreed.carry_out(command, term);
        self.published.publish(&agreed.maps);
        reply
    }

    fn agreed(&self) -> Option<Arc<Agreed>> {
        self.agreed.clone().map(Arc::new)
    }

    fn meta(&self) -> Meta {
        Meta { last_log_id: self.applied, last_membership: self.members.clone() }
    }
}

impl Agreed {
    /// What becomes of it with a command of an entry of this term, and what is answered.
    pub(crate) fn carry_out(&mut self, command: Command, term: u64) -> Reply {
        if let Some((_, reply)) = self.answered.iter().find(|(id, _)| *id == command.id) {
            return reply.clone();
        }
        if command.term.is_some_and(|meant| meant != term) {
            return Err(RegistryError::Lost);
        }
        let (next, reply) = change::apply(&self.maps, command.request);
        if let Some(next) = next {
            self.maps = Arc::new(next);
        }
        self.answered.push_back((command.id, reply.clone()));
        if self.answered.len() > ANSWERS_MAX {
            self.answered.pop_front();
        }
        reply
    }
}

impl RaftStateMachine<Words> for Machine {
    type SnapshotData = Arc<Agreed>;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, Membership)> {
        Ok((self.applied, self.members.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Words>>> + Unpin + OptionalSend,
    {
        while let Some(next) = entries.next().await {
            let (entry, responder) = next?;
            let term = entry.log_id.leader_id.term;
            let reply = match entry.payload {
                EntryPayload::Blank => Ok(Outcome::Maps),
                EntryPayload::Normal(command) => self.command(command, term),
                EntryPayload::Membership(members) => {
                    self.members = Membership::new(Some(entry.log_id), members);
                    Ok(Outcome::Maps)
                }
            };
            self.applied = Some(entry.log_id);
            if let Some(responder) = responder {
                responder.send(reply);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder { store: self.store.clone(), meta: self.meta(), agreed: self.agreed() }
    }

    async fn install_snapshot(&mut self, meta: &Meta, agreed: Arc<Agreed>) -> io::Result<()> {
        self.store.keep_snapshot(meta.clone(), agreed.clone()).await?;
        self.take(meta, &agreed);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        let kept = self.store.kept().snapshot.clone();
        Ok(kept.map(|(meta, snapshot)| Snapshot { meta, snapshot }))
    }
}

/// Keeps the state as it was when this was made.
pub struct Builder {
    store: Arc<Store>,
    meta: Meta,
    agreed: Option<Arc<Agreed>>,
}

impl RaftSnapshotBuilder<Words> for Builder {
    type SnapshotData = Arc<Agreed>;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let agreed = self.agreed.clone().ok_or_else(|| io::Error::other("nothing was agreed on yet"))?;
        self.store.keep_snapshot(self.meta.clone(), agreed.clone()).await?;
        Ok(Snapshot { meta: self.meta.clone(), snapshot: agreed })
    }
}
