//! Reading ahead of those who read in order. Awaits; how far is [`crate::stream`]'s to decide.

use std::ops::Range;
use std::sync::Arc;

use futures_util::future::{join_all, try_join_all};
use log::{Detour, Turn, Ways};

use crate::cache::{Found, Intent, Loading};
use crate::client::{Inner, lock};
use crate::file::{File, Missing, Piece};
use crate::opens::OpenFile;

/// A detour may cost this part, one in so many, of bytes that nobody asked for.
const LACKING_PART: u32 = 16;

/// The pieces of a range, or what has to be asked for first.
type Planned = Result<Vec<Piece>, Missing>;

impl Inner {
    /// Begins to load what readers in order will ask for next. Targets are asked before this returns: they answer in the
    /// order in which they are asked, and that is to be the readers'. Only what waits for its turn, and what a map has to be
    /// asked for, comes later.
    pub(crate) async fn read_ahead(self: &Arc<Self>, file: &Arc<OpenFile>) {
        while let Some((due, planned)) = self.plan_due(file) {
            match planned {
                Ok(pieces) => self.load_ahead(pieces).await,
                Err(missing) => {
                    let (inner, file) = (self.clone(), file.clone());
                    self.host.spawn(async move { inner.learn_and_load_ahead(&file, missing, due).await });
                }
            }
        }
    }

    /// What is due next, unless the file was forgotten meanwhile.
    fn plan_due(&self, file: &OpenFile) -> Option<(Range<u64>, Planned)> {
        let mut state = lock(&file.state);
        let known = state.file.as_mut()?;
        self.release(known);
        let due = known.streams.take_due()?;
        let planned = self.plan_ahead(known, &due);
        Some((due, planned))
    }

    /// Nobody reads it any more: what was read ahead is not kept from others' use.
    pub(crate) fn end_streams(&self, known: &mut File) {
        known.streams.end();
        self.release(known);
    }

    /// What was read ahead for who did not go on may go. Where that lies is not asked for.
    fn release(&self, known: &mut File) {
        for range in known.streams.take_given_up() {
            let pieces = known.plan(range).unwrap_or_default();
            let stored = pieces.iter().filter_map(|piece| if let Piece::Stored(at) = piece { Some(at) } else { None });
            stored.for_each(|address| self.cache.release(*address));
        }
    }

    async fn learn_and_load_ahead(self: &Arc<Self>, file: &OpenFile, missing: Missing, due: Range<u64>) {
        let Some(_pin) = self.try_pin(file.inode) else { return };
        if lock(&file.state).file.is_none() || self.learn_map(file, missing).await.is_err() {
            return;
        }
        let planned = lock(&file.state).file.as_mut().map(|known| self.plan_ahead(known, &due));
        if let Some(Ok(pieces)) = planned {
            self.load_ahead(pieces).await;
        }
    }

    /// What lies ahead; up to the end of its last stripe, where who asks for all of that at once can go around some of it.
    fn plan_ahead(&self, known: &mut File, range: &Range<u64>) -> Planned {
        let mut pieces = known.plan(range.clone())?;
        let Some(Piece::Stored(last)) = pieces.last() else { return Ok(pieces) };
        let rest = u64::from(self.reader.rest_of_stripe(*last, range.end - range.start));
        let end = range.end + rest;
        if rest > 0
            && rest <= self.cache.spare() / 2
            && let Ok(more) = known.plan(range.end..end)
        {
            pieces.extend(more);
            known.streams.went_on(range.end, end);
        }
        Ok(pieces)
    }

    async fn load_ahead(self: &Arc<Self>, pieces: Vec<Piece>) {
        let loadings = self.begin_loads(&self.cut(pieces));
        if loadings.is_empty() {
            return;
        }
        let addresses: Vec<_> = loadings.iter().map(Loading::address).collect();
        let worth = |ways: Option<Ways>| ways?.keep_detours(|detour| self.is_worth_it(detour));
        let ways: Vec<_> = self.reader.ways(&addresses).into_iter().map(worth).collect();
        let inner = self.clone();
        let mut loads = Box::pin(async move {
            let loads =
                loadings.into_iter().zip(ways).map(async |(loading, ways)| inner.load_in_turn(loading, ways).await);
            join_all(loads).await;
        });
        if futures_util::poll!(loads.as_mut()).is_pending() {
            self.host.spawn(loads);
        }
    }

    fn begin_loads(&self, pieces: &[Piece]) -> Vec<Loading> {
        let mut loadings = Vec::new();
        for piece in pieces {
            let Piece::Stored(address) = piece else { continue };
            let mut rest = *address;
            while rest.length > 0 {
                let length = match self.cache.look(rest, Intent::Ahead) {
                    Found::Begun(loading) => {
                        let length = loading.address().length;
                        loadings.push(loading);
                        length
                    }
                    Found::Loading(_, _, length) => length as u32,
                    Found::Ready(part) => part.len() as u32,
                    Found::Absent(_) => unreachable!("what is absent is begun"),
                };
                rest = rest.part(length, rest.length - length);
            }
        }
        loadings
    }

    async fn load_in_turn(&self, loading: Loading, ways: Option<Ways>) {
        let turn = match ways {
            Some(ways) => Some(self.reader.turn(ways).await),
            None => None,
        };
        match turn {
            Some(turn) if turn.detour().is_some() => Box::pin(self.load_around(loading, turn)).await,
            // Until it is loaded the turn lasts. Who asks for bytes that could not be read ahead is told why then.
            _turn => drop(self.load(loading, true).await),
        }
    }

    /// By a detour, if that is possible.
    async fn load_around(&self, loading: Loading, turn: Turn) {
        loading.go_around();
        let others: Vec<_> = turn.detour().into_iter().flat_map(Detour::others).collect();
        let others = try_join_all(others.into_iter().map(async |other| {
            let mut parts = Vec::with_capacity(1);
            self.fetch_stored(other, Intent::Around, &mut parts).await?;
            Ok(if parts.len() == 1 { parts.remove(0) } else { parts.concat().into() })
        }));
        match self.reader.read_around(turn, others).await {
            Some(bytes) => loading.end(Ok(bytes), true),
            None => drop(self.load(loading, true).await),
        }
    }

    /// Whether the rest of the stripe is wanted anyway, but for little: records lie between the bytes of files.
    fn is_worth_it(&self, detour: &Detour) -> bool {
        let (mut lacking, mut wanted) = (0, 0);
        for other in detour.others() {
            lacking += self.cache.lacks(other);
            wanted += other.length;
        }
        lacking <= wanted / LACKING_PART
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use protocol::address::LogAddress;
    use protocol::id::{LogId, StripeNumber};

    use crate::cache::{Cache, Found, Intent};
    use crate::stream::Streams;

    /// A file of so many bytes for each reader, in one piece.
    const SIZE: u64 = 24 << 20;
    const STEP: u64 = 128 << 10;
    /// What is asked for at once at most.
    const PIECE: u64 = 512 << 10;
    const CACHE: usize = 32 << 20;

    /// Has all of a range loaded that is not there; how many bytes those were.
    fn load(cache: &Cache, file: u64, range: std::ops::Range<u64>, intent: Intent) -> u64 {
        let (mut at, mut loaded) = (range.start, 0);
        while at < range.end {
            let end = (at / PIECE * PIECE + PIECE).min(range.end);
            let (offset, length) = (at as u32, (end - at) as u32);
            match cache.look(LogAddress { log: LogId(file), stripe: StripeNumber(0), offset, length }, intent) {
                Found::Ready(bytes) => at += bytes.len() as u64,
                Found::Begun(loading) => {
                    let length = loading.address().length;
                    loading.end(Ok(Bytes::from(vec![0; length as usize])), intent == Intent::Ahead);
                    (at, loaded) = (at + u64::from(length), loaded + u64::from(length));
                }
                other => panic!("nothing takes time here: {other:?}"),
            }
        }
        loaded
    }

    #[test]
    fn however_many_read_in_order_hardly_anything_is_loaded_twice() {
        for readers in [1, 3, 10, 30] {
            let (cache, mut streams) = (Cache::new(CACHE), vec![Streams::default(); readers]);
            let mut loaded = 0;
            for at in (0..SIZE).step_by(STEP as usize) {
                for (file, streams) in (1..).zip(&mut streams) {
                    let range = at..at + STEP;
                    streams.read(&range, cache.spare());
                    loaded += load(&cache, file, range, Intent::Shared);
                    while let Some(due) = streams.take_due() {
                        loaded += load(&cache, file, due.start.min(SIZE)..due.end.min(SIZE), Intent::Ahead);
                    }
                }
            }
            let all = readers as u64 * SIZE;
            assert!(loaded >= all && loaded - all <= all / 20, "{readers} readers: {loaded} of {all}");
        }
    }
}
