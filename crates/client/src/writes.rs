//! Writing into the cache. Awaits.

use bytes::Bytes;
use protocol::file::{FILE_SIZE_MAX, Time};
use protocol::id::InodeId;
use protocol::token::TokenMode;

use crate::ClientError;
use crate::client::{Client, Inner, lock};
use crate::opens::OpenFile;
use crate::space::{Admission, Budget};

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// There.
    Offset(u64),
    /// Behind the last byte, wherever that is by then (`O_APPEND`).
    End,
}

impl Client {
    /// Writes all of `bytes`, which are kept by reference when they are many; tells where.
    pub async fn write(&self, inode: InodeId, at: WriteAt, bytes: Bytes) -> Result<u64, ClientError> {
        // Room first: a write that waits for it holds no token.
        let granted = self.0.admit(bytes.len() as u64).await?;
        let (file, _pin) = self.0.known(inode, TokenMode::Write).await?;
        let (offset, is_long_run) = {
            let _shape = file.shape.read().await;
            self.0.take_in(&file, at, bytes, granted)?
        };
        if is_long_run {
            self.0.append_long_run(&file, offset).await;
        }
        self.0.confirm().await?;
        Ok(offset)
    }
}

/// Bytes counted as dirty before they are; given back when they do not become so.
struct Granted<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Drop for Granted<'_> {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
    }
}

impl Inner {
    /// Waits until so many more bytes may be dirty, and makes sure that they can be stored.
    async fn admit(&self, bytes: u64) -> Result<Granted<'_>, ClientError> {
        let mut is_fresh = false;
        let mut freed = None;
        loop {
            if self.is_stopped() {
                return Err(ClientError::Stopped);
            }
            match (self.budget.admit(bytes, is_fresh), freed.take()) {
                (Admission::Granted, _) => return Ok(Granted { budget: &self.budget, bytes }),
                // Looked once more after beginning to listen: nothing was missed.
                (Admission::Wait, Some(listener)) => match self.budget.blocked() {
                    Some(error) => return Err(error),
                    None => listener.await,
                },
                (Admission::Wait, None) => freed = Some(self.budget.freed()),
                (Admission::Ask, _) => {
                    self.refresh_space().await;
                    is_fresh = true;
                }
                // Others may take what has come.
                (Admission::NoRoom, _) if self.await_room(bytes).await => is_fresh = false,
                (Admission::NoRoom, _) => return Err(ClientError::NoRoom),
            }
        }
    }

    /// Puts the bytes in their place; tells where, and whether many are dirty in a row there.
    fn take_in(
        &self,
        file: &OpenFile,
        at: WriteAt,
        bytes: Bytes,
        mut granted: Granted<'_>,
    ) -> Result<(u64, bool), ClientError> {
        let mut state = lock(&file.state);
        let known = state.known();
        let offset = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => known.size(),
        };
        if offset.saturating_add(bytes.len() as u64) > FILE_SIZE_MAX {
            return Err(ClientError::FileTooLarge);
        }
        let mut before = known.weight();
        known.write(offset, bytes, Time(self.host.wall().0), self.host.now());
        // What overwrites dirty bytes adds none; the rest of the grant goes back.
        before.bytes += std::mem::take(&mut granted.bytes);
        self.budget.change(before, known.weight());
        Ok((offset, known.long_run(offset).is_some()))
    }

    /// Appends what a writer in order has gathered, so that parity and sending overlap with writing. Waits while the log
    /// has too much to send: that is what slows the writer down to the targets' pace. What cannot be appended now stays
    /// dirty, and the next flush tells why.
    async fn append_long_run(&self, file: &OpenFile, offset: u64) {
        if self.log.room().await.is_err() || self.base(file).await.is_err() {
            return;
        }
        let _shape = file.shape.read().await;
        let mut state = lock(&file.state);
        let known = state.known();
        let before = known.weight();
        if known.is_based()
            && let Some(run) = known.long_run(offset)
        {
            let _ = known.append_run(run, &mut self.appender(file.inode));
        }
        self.budget.change(before, known.weight());
    }
}
