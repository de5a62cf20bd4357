//! What goes on beside the callers: writing out what is old or much, sending deltas, forgetting files, asking targets for
//! their room. Awaits.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use event_listener::EventListener;
use futures_util::future::{join_all, select};
use host::{Moment, NodeId};
use log::exposure;
use protocol::address::Position;
use protocol::delta::Delta;
use protocol::id::StripeNumber;
use protocol::manager::{Deltas, ManagerAnswer, ManagerError, ManagerRequest};
use protocol::storage::{Durability, TargetStat};

use crate::ClientError;
use crate::client::{Inner, lock};
use crate::flush::gone;
use crate::opens::{KNOWN_MANY, OpenFile};
use crate::outbox::Sending;
use crate::space::{clients, margin, stripe_size, usable};

/// How often files are looked at.
const TICK: Duration = Duration::from_secs(1);
/// Bytes dirty for so long are written out.
const AGE_MAX: Duration = Duration::from_secs(5);
/// How long deltas are gathered before they are sent: no program waits for them.
const GATHER: Duration = Duration::from_millis(500);
/// Between attempts at what failed.
const PAUSE: Duration = Duration::from_secs(1);
/// Between attempts at what was held by somebody.
const BREATH: Duration = Duration::from_millis(5);
/// Before so many stripes of the log others know that they are complete and behind the mark.
const UNTOLD_MAX: u64 = 3;
/// How often files are looked at while many are known. A look costs some microseconds for a hundred files.
const TICK_MANY: Duration = Duration::from_millis(100);
/// So many files are recorded together.
const FILES_MAX: usize = 64;

/// How far others can know the log to be.
#[derive(Default)]
struct Told {
    /// The mark that the newest fragments name, or nearly.
    mark: Position,
    /// Where the log ended when it was looked at last.
    end: Position,
}

impl Inner {
    /// Begins what goes on until the client stops.
    pub(crate) fn begin_background(self: Arc<Self>) {
        let (writer, teller) = (self.clone(), self.clone());
        self.host.clone().spawn(async move { writer.write_out_forever().await });
        self.host.clone().spawn(async move { teller.tell_forgotten_forever().await });
        self.host.clone().spawn(async move { self.send_forever().await });
    }

    // ---- writing out ----

    async fn write_out_forever(&self) {
        let mut next = self.host.now() + TICK;
        let mut told = Told::default();
        while !self.is_stopped() {
            let filled = self.budget.filled();
            if !self.budget.is_pressed() {
                select(filled, pin!(self.host.sleep_until(next))).await;
            }
            let before = self.budget.under_way();
            let failed = self.write_out_due().await;
            if self.host.now() >= next {
                next = self.host.now() + TICK;
                self.sweep();
                self.tell_mark(&mut told);
                self.refresh_space().await;
            }
            if failed {
                self.host.sleep(PAUSE).await;
            } else if self.budget.is_pressed() && self.budget.under_way() >= before {
                // What is dirty is just being taken in, or its file's shape is being changed.
                self.host.sleep(BREATH).await;
            }
        }
    }

    /// Only fragments tell others where the mark is, and a log that nobody writes to begins none: what was removed in its
    /// last stripes would take room until somebody wrote again. So once it is idle it goes on by a stripe with nothing in
    /// it, and when managers have acknowledged that, by another, whose fragments name a mark behind all that was written. One
    /// stripe by itself is not worth that, unless it is to lie elsewhere.
    fn tell_mark(&self, told: &mut Told) {
        let end = self.log.end();
        let is_idle = end == told.end && lock(&self.outbox).is_empty();
        told.end = end;
        let is_due = end.stripe.0 > told.mark.stripe.0 + 1 || self.is_to_move(end.stripe);
        if !is_idle || !is_due || self.is_stopped() {
            return;
        }
        told.mark = self.mark();
        self.log.end_stripe();
        // A log that takes nothing any more has nobody to tell.
        if self.append_deltas(&[], None, &mut lock(&self.outbox)).is_ok() {
            told.end = self.log.end();
            self.outbox_filled.notify(usize::MAX);
        }
    }

    /// Whether of the stripes up to `end` that others cannot judge yet one is to lie elsewhere, where what is written now lies.
    fn is_to_move(&self, end: StripeNumber) -> bool {
        let (maps, log) = (self.cluster.maps(), self.log.log());
        let groups = exposure::to_lay_anew(&maps, &exposure::not_whole(&maps));
        let newest = maps.logs.get(&log).and_then(|entry| entry.layout.last());
        let goes_elsewhere = newest.is_some_and(|run| !run.groups.iter().any(|group| groups.contains_key(group)));
        let is_there = |stripe| exposure::group_of(&maps, log, stripe).is_some_and(|group| groups.contains_key(&group));
        let untold = end.0.saturating_sub(UNTOLD_MAX)..=end.0;
        goes_elsewhere && untold.map(StripeNumber).any(is_there)
    }

    /// Writes out the files that are due, a few at a time; tells whether that failed.
    async fn write_out_due(&self) -> bool {
        let mut due = self.due();
        let mut failed = None;
        while !due.is_empty() {
            let rest = due.split_off(due.len().min(FILES_MAX));
            if let Err(error) = self.write_out_all(&due).await {
                self.tell(&due, &error);
                failed = Some(error);
            }
            due = rest;
        }
        let is_failed = failed.is_some();
        self.budget.block(failed);
        is_failed
    }

    /// Which files to write out now: old ones; under pressure all, those without a name last.
    fn due(&self) -> Vec<Arc<OpenFile>> {
        let (now, is_pressed) = (self.host.now(), self.budget.is_pressed());
        let mut due = Vec::new();
        // Only what is due is held beyond this look: of the others none would be forgotten meanwhile.
        for file in lock(&self.files).values() {
            let state = lock(&file.state);
            let Some(known) = &state.file else { continue };
            let is_old = known.dirty_since().is_some_and(|since| now.since(since) >= AGE_MAX);
            let is_wanted = if known.dirty_bytes() > 0 { is_old } else { !known.is_recorded() };
            if is_pressed && known.dirty_bytes() > 0 || is_wanted && !state.is_temporary() {
                let order = (state.is_temporary(), known.dirty_since());
                due.push((order, file.clone()));
            }
        }
        due.sort_by_key(|(order, _)| *order);
        due.into_iter().map(|(_, file)| file).collect()
    }

    async fn write_out_all(&self, files: &[Arc<OpenFile>]) -> Result<(), ClientError> {
        let until = self.room_until();
        loop {
            match self.write_out_all_now(files).await {
                Err(ClientError::NoRoom) if self.room_comes(until).await => {}
                outcome => return outcome,
            }
        }
    }

    async fn write_out_all_now(&self, files: &[Arc<OpenFile>]) -> Result<(), ClientError> {
        self.log.room().await?;
        // A file that is being given up is written out by that.
        let pinned: Vec<_> = files.iter().filter_map(|file| Some((file, self.try_pin(file.inode)?))).collect();
        let files = pinned.iter().map(|(file, _)| *file).filter(|file| lock(&file.state).file.is_some());
        let files: Vec<_> = files.collect();
        for file in &files {
            self.base(file).await.or_else(gone)?;
        }
        // A file whose shape is being changed has its turn later.
        let held: Vec<_> = files.iter().filter_map(|file| Some((file, file.shape.try_read()?))).collect();
        let files: Vec<&OpenFile> = held.iter().map(|(file, _)| &****file).collect();
        // So has one whose base is not known.
        self.append_and_record(&files)?;
        Ok(())
    }

    // ---- deltas ----

    async fn send_forever(&self) {
        while !self.is_stopped() {
            let filled = self.outbox_filled.listen();
            if lock(&self.outbox).is_empty() {
                filled.await;
                continue;
            }
            self.gather(filled).await;
            let end = lock(&self.outbox).end();
            if let Err(error) = self.commit(end).await {
                self.tell_uncommitted(&error);
                lock(&self.outbox).fail(error);
                self.outbox_moved.notify(usize::MAX);
                self.host.sleep(PAUSE).await;
                // Whoever waits from now on waits for the next attempt.
                lock(&self.outbox).retry();
                continue;
            }
            self.send_all().await;
        }
    }

    /// Lets deltas come together, unless somebody waits for them.
    async fn gather(&self, mut filled: EventListener) {
        let until = self.host.now() + GATHER;
        while !lock(&self.outbox).is_urgent() && !self.is_stopped() && self.host.now() < until {
            select(filled, pin!(self.host.sleep_until(until))).await;
            filled = self.outbox_filled.listen();
        }
    }

    /// Sends what is `disk`, until managers have acknowledged it.
    async fn send_all(&self) {
        let next = || {
            let disk = self.log.reached(Durability::Disk);
            lock(&self.outbox).sending(disk, &self.cluster.maps())
        };
        let (mut sending, mut marked, mut swept) = (next(), self.host.now(), Moment::default());
        while let Some(mut now) = sending {
            while !self.send(&mut now).await {
                if self.is_stopped() {
                    return;
                }
                let _ = self.cluster.refresh().await;
                self.host.sleep(PAUSE / 10).await;
                now.lay_out_anew(&self.cluster.maps());
            }
            lock(&self.outbox).acknowledge(now.end);
            sending = next();
            if lock(&self.files).len() > KNOWN_MANY && self.host.now().since(swept) >= TICK_MANY {
                self.sweep();
                swept = self.host.now();
            }
            // Not each time: it takes a look at every file.
            if sending.is_none() || self.host.now().since(marked) >= TICK {
                self.log.set_mark(self.mark());
                marked = self.host.now();
            }
            self.outbox_moved.notify(usize::MAX);
        }
    }

    /// Where replay of this log may begin, and before which bytes that no manager claims are dead (DESIGN §5, marks; §8).
    fn mark(&self) -> Position {
        // Files first: what is recorded between the two looks is in the outbox by then.
        let unrecorded = {
            let files = lock(&self.files);
            files.values().filter_map(|file| lock(&file.state).file.as_mut()?.unrecorded_from()).min()
        };
        let recorded = lock(&self.outbox).mark();
        unrecorded.map_or(recorded, |unrecorded| unrecorded.min(recorded))
    }

    /// One attempt; leaves what must be sent again. True when nothing is left.
    async fn send(&self, sending: &mut Sending) -> bool {
        let (log, position) = (self.log.log(), sending.position);
        let parts = std::mem::take(&mut sending.parts);
        let calls = parts.into_iter().map(async |(manager, list)| {
            let request = ManagerRequest::Deltas(Deltas { log, position, list: list.clone() });
            (manager, list, self.ask_node(manager, request).await)
        });
        let left = join_all(calls).await.into_iter().filter(|(_, _, answer)| !is_final(answer));
        sending.parts = left.map(|(manager, list, _)| (manager, list)).collect::<BTreeMap<NodeId, Vec<Delta>>>();
        sending.parts.is_empty()
    }

    // ---- room ----

    /// Asks all targets how full they are.
    pub(crate) async fn refresh_space(&self) {
        let (stats, stored) = self.stats().await;
        if !stats.is_empty() {
            let maps = self.cluster.maps();
            let room = |stat: &TargetStat| stat.bytes_free.saturating_sub(stat.bytes_reserved);
            let usable = usable(&maps, &stats, room).saturating_sub(margin(&maps));
            self.budget.learn((usable, stored), stripe_size(&maps), clients(&maps));
        }
    }
}

/// Whether an answer to deltas ends the matter. Managers skip deltas of inodes that are gone; a refusal of a whole message
/// can only be about where or when it arrived.
fn is_final(answer: &Result<ManagerAnswer, host::Unreachable>) -> bool {
    matches!(answer, Ok(Ok(_)) | Ok(Err(ManagerError::Stale | ManagerError::NotFound)))
}
