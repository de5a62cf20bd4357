//! Reading. Awaits.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use futures_util::future::try_join_all;
use host::Moment;
use log::ReadError;
use protocol::address::LogAddress;
use protocol::id::InodeId;
use protocol::manager::{Answer, ManagerError, ManagerRequest};
use protocol::token::TokenMode;

use crate::ClientError;
use crate::ask::{PATIENCE, PAUSE};
use crate::cache::{Found, Intent, Load, Loading, Outcome};
use crate::client::{Client, Inner, lock};
use crate::file::{Missing, Piece};
use crate::opens::OpenFile;

/// So much of a map is asked for at once, in bytes of the file.
const MAP_STEP: u64 = 64 << 20;
/// Reads of so many bytes are shared with who wants the same meanwhile; smaller ones are not worth the bookkeeping.
const SHARE_MIN: u32 = 64 << 10;

/// Zeros for holes, shared by all readers.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Whoever reads, and has to know how far that is.
pub trait Reading: Sync {
    /// The file is held: what it has is only looked at behind this.
    fn begun(&self);
    /// Now it has these bytes there, and is held still.
    fn found(&self, pieces: &[Bytes], now: Moment);
}

impl Reading for () {
    fn begun(&self) {}

    fn found(&self, _pieces: &[Bytes], _now: Moment) {}
}

impl Client {
    /// The bytes from `offset`, in pieces, `length` in all or up to the end of the file.
    pub async fn read(&self, inode: InodeId, offset: u64, length: u32) -> Result<Vec<Bytes>, ClientError> {
        self.read_for(&(), inode, offset, length).await
    }

    /// The same; `reading` hears how far it is.
    pub async fn read_for(
        &self,
        reading: &impl Reading,
        inode: InodeId,
        offset: u64,
        length: u32,
    ) -> Result<Vec<Bytes>, ClientError> {
        let bytes = self.0.read(reading, inode, offset..offset.saturating_add(u64::from(length))).await?;
        self.0.confirm().await?;
        Ok(bytes)
    }
}

impl Inner {
    async fn read(
        self: &Arc<Self>,
        reading: &impl Reading,
        inode: InodeId,
        range: Range<u64>,
    ) -> Result<Vec<Bytes>, ClientError> {
        let (file, _pin) = self.known(inode, TokenMode::Read).await?;
        reading.begun();
        let pieces = self.plan(&file, &range).await?;
        let is_more_due = lock(&file.state).known().streams.read(&range, self.cache.spare());
        let fetched = match is_more_due {
            false => self.fetch_all(&pieces).await,
            true => self.fetch_and_read_ahead(&file, &pieces).await,
        };
        let found = match fetched {
            Ok(bytes) => bytes,
            Err(error) => Box::pin(self.read_again(&file, &range, error)).await?,
        };
        reading.found(&found, self.host.now());
        Ok(found)
    }

    /// The demanded bytes are asked for first. Where they are not at hand, what lies ahead is asked for before anyone
    /// waits; where they are, nobody waits for that.
    async fn fetch_and_read_ahead(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        pieces: &[Piece],
    ) -> Result<Vec<Bytes>, ReadError> {
        let mut fetching = pin!(self.fetch_all(pieces));
        match futures_util::poll!(fetching.as_mut()) {
            Poll::Pending => {
                self.read_ahead(file).await;
                fetching.await
            }
            Poll::Ready(fetched) => {
                let (inner, file) = (self.clone(), file.clone());
                self.host.spawn(async move {
                    let Some(_pin) = inner.try_pin(file.inode) else { return };
                    inner.read_ahead(&file).await;
                });
                fetched
            }
        }
    }

    /// A cleaner may have moved the bytes and deleted the stripe: the manager is asked, once (DESIGN §3, reading). Also of
    /// what was written here, if managers have acknowledged it. Whoever is late is waited for as managers are.
    async fn read_again(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        range: &Range<u64>,
        mut error: ReadError,
    ) -> Result<Vec<Bytes>, ClientError> {
        let deadline = self.host.now() + PATIENCE;
        let mut may_have_moved = true;
        loop {
            match error {
                _ if error.may_pass() && self.host.now() < deadline && !self.is_stopped() => {
                    self.host.sleep(PAUSE).await;
                }
                _ if may_have_moved => may_have_moved = false,
                _ => return Err(error.into()),
            }
            self.settle(file);
            lock(&file.state).known().forget();
            let pieces = self.plan(file, range).await?;
            match self.fetch_all(&pieces).await {
                Ok(bytes) => return Ok(bytes),
                Err(still) => error = still,
            }
        }
    }

    /// What the bytes of `range` are, asking for the map where it is not known.
    async fn plan(&self, file: &OpenFile, range: &Range<u64>) -> Result<Vec<Piece>, ClientError> {
        loop {
            let planned = lock(&file.state).known().plan(range.clone());
            match planned {
                Ok(pieces) => return Ok(self.cut(pieces)),
                Err(missing) => self.learn_map(file, missing).await?,
            }
        }
    }

    /// Cuts what lies on several targets, so that each can be asked at once and no answers need to be put together.
    pub(crate) fn cut(&self, pieces: Vec<Piece>) -> Vec<Piece> {
        let mut cut = Vec::with_capacity(pieces.len() + 1);
        for piece in pieces {
            let Piece::Stored(mut rest) = piece else {
                cut.push(piece);
                continue;
            };
            while rest.length > 0 {
                let part = self.reader.on_one_target(rest);
                cut.push(Piece::Stored(part));
                rest = rest.part(part.length, rest.length - part.length);
            }
        }
        cut
    }

    /// Asks for a piece of the map of a file.
    pub(crate) async fn learn_map(&self, file: &OpenFile, missing: Missing) -> Result<(), ClientError> {
        let asked = lock(&file.state).known().ask();
        let (inode, offset) = (file.inode, missing.0.start);
        let length = MAP_STEP;
        let reply = self.ask(inode, ManagerRequest::Content { inode, offset, length }).await?;
        let Answer::Content(content) = reply.answer else { return Err(ClientError::Foreign("map")) };
        // An answer that came too late is asked for again by whoever still misses it.
        let _ = lock(&file.state).known().learn(asked, offset..offset + length, content);
        Ok(())
    }

    /// Makes sure that it is known whether the content is inline, before anything is appended.
    pub(crate) async fn base(&self, file: &OpenFile) -> Result<(), ClientError> {
        while !lock(&file.state).known().is_based() {
            match self.learn_map(file, Missing(0..1)).await {
                // The inode is gone, by another client's doing: nobody can read what was written.
                Err(error @ ClientError::Manager(ManagerError::Stale | ManagerError::NotFound)) => {
                    self.abandon(file);
                    return Err(error);
                }
                other => other?,
            }
        }
        Ok(())
    }

    async fn fetch_all(&self, pieces: &[Piece]) -> Result<Vec<Bytes>, ReadError> {
        let mut stored = pieces.iter().filter(|piece| matches!(piece, Piece::Stored(_)));
        if let (Some(_), Some(_)) = (stored.next(), stored.next()) {
            let fetches = pieces.iter().map(async |piece| {
                let mut bytes = Vec::new();
                self.fetch(piece, &mut bytes).await?;
                Ok(bytes)
            });
            return Ok(try_join_all(fetches).await?.into_iter().flatten().collect());
        }
        let mut bytes = Vec::with_capacity(pieces.len());
        for piece in pieces {
            self.fetch(piece, &mut bytes).await?;
        }
        Ok(bytes)
    }

    async fn fetch(&self, piece: &Piece, bytes: &mut Vec<Bytes>) -> Result<(), ReadError> {
        match piece {
            Piece::Bytes(ready) => bytes.push(ready.clone()),
            Piece::Zeros(count) => {
                let mut left = *count;
                while left > 0 {
                    let step = left.min(ZEROS.len() as u64);
                    bytes.push(Bytes::from_static(&ZEROS[..step as usize]));
                    left -= step;
                }
            }
            Piece::Stored(address) => {
                let intent = if address.length >= SHARE_MIN { Intent::Shared } else { Intent::Alone };
                self.fetch_stored(*address, intent, bytes).await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn fetch_stored(
        &self,
        address: LogAddress,
        intent: Intent,
        bytes: &mut Vec<Bytes>,
    ) -> Result<(), ReadError> {
        let mut rest = address;
        while rest.length > 0 {
            let part = match self.cache.look(rest, intent) {
                Found::Ready(part) => part,
                Found::Loading(load, skip, length) => {
                    if intent != Intent::Around {
                        self.reader.hurry(rest.part(0, length as u32));
                    }
                    match ended(&load).await {
                        Outcome::Loaded(loaded) => loaded?.slice(skip..skip + length),
                        Outcome::Abandoned => continue,
                    }
                }
                // The kernel keeps what a program asked for; here it would only be kept twice.
                Found::Begun(loading) => self.load(loading, false).await?,
                Found::Absent(absent) => self.reader.read(absent).await?,
            };
            let length = part.len() as u32;
            assert!(length > 0 && length <= rest.length, "a read returns what was asked for");
            bytes.push(part);
            rest = rest.part(length, rest.length - length);
        }
        Ok(())
    }

    pub(crate) async fn load(&self, loading: Loading, keep: bool) -> Result<Bytes, ReadError> {
        let outcome = self.reader.read(loading.address()).await;
        loading.end(outcome.clone(), keep);
        outcome
    }
}

/// Waits for a load that somebody else does.
async fn ended(load: &Load) -> Outcome {
    loop {
        let ended = load.ended.listen();
        if let Some(outcome) = load.outcome() {
            return outcome;
        }
        ended.await;
    }
}
