//! A manager as simple as can be: a map from blocks of files to log addresses, in memory that survives all crashes. It
//! answers what a cleaner asks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use host::{BoxFuture, Envelope, Handler, NodeId};
use protocol::address::{LogAddress, Position};
use protocol::id::{InodeId, LogId, StripeNumber};
use protocol::manager::{Answer, ManagerAnswer, ManagerError, ManagerReply, ManagerRequest, Moved};

pub const BLOCK: u32 = 4096;

/// Where every block lives.
#[derive(Debug, Default)]
pub struct Book {
    blocks: BTreeMap<(InodeId, u64), LogAddress>,
    live: BTreeMap<(LogId, StripeNumber), u64>,
    pub bytes_moved: u64,
    pub moves_lost: u64,
    /// Refuses to answer.
    pub is_silent: bool,
}

impl Book {
    /// Applies a delta: the bytes of `inode` from block `first` live at `address`.
    pub fn write(&mut self, inode: InodeId, first: u64, address: LogAddress) {
        for index in 0..address.length / BLOCK {
            let part = address.part(index * BLOCK, BLOCK);
            self.put((inode, first + u64::from(index)), part);
        }
    }

    pub fn find(&self, inode: InodeId, block: u64) -> Option<LogAddress> {
        self.blocks.get(&(inode, block)).copied()
    }

    pub fn bytes_live(&self) -> u64 {
        self.live.values().sum()
    }

    fn put(&mut self, key: (InodeId, u64), address: LogAddress) {
        if let Some(old) = self.blocks.insert(key, address) {
            let stripe = (old.log, old.stripe);
            let left = self.live.get_mut(&stripe).expect("what lives is counted");
            *left -= u64::from(old.length);
            if *left == 0 {
                self.live.remove(&stripe);
            }
        }
        *self.live.entry((address.log, address.stripe)).or_default() += u64::from(address.length);
    }

    fn pieces(&self, inode: InodeId, file_offset: u64, address: LogAddress) -> Vec<Moved> {
        let mut pieces: Vec<Moved> = Vec::new();
        for index in 0..address.length / BLOCK {
            let old = address.part(index * BLOCK, BLOCK);
            let offset = file_offset + u64::from(index * BLOCK);
            if self.find(inode, offset / u64::from(BLOCK)) != Some(old) {
                continue;
            }
            match pieces.last_mut() {
                Some(last) if last.old.joins(old) => last.old.length += BLOCK,
                _ => pieces.push(Moved { inode, file_offset: offset, old, new: old }),
            }
        }
        pieces
    }

    fn moved(&mut self, moved: Moved) {
        assert_eq!(moved.old.length, moved.new.length);
        for index in 0..moved.old.length / BLOCK {
            let key = (moved.inode, moved.file_offset / u64::from(BLOCK) + u64::from(index));
            if self.blocks.get(&key) == Some(&moved.old.part(index * BLOCK, BLOCK)) {
                self.put(key, moved.new.part(index * BLOCK, BLOCK));
                self.bytes_moved += u64::from(BLOCK);
            } else {
                self.moves_lost += 1;
            }
        }
    }

    fn answer(&mut self, request: ManagerRequest) -> Result<Answer, ManagerError> {
        match request {
            _ if self.is_silent => Err(ManagerError::Failed("not now".into())),
            ManagerRequest::Live(_, stripes) => {
                Ok(Answer::Live(stripes.iter().map(|stripe| self.live.get(stripe).copied().unwrap_or(0)).collect()))
            }
            ManagerRequest::Pieces { inode, file_offset, address } => {
                Ok(Answer::Pieces(self.pieces(inode, file_offset, address)))
            }
            ManagerRequest::Move(list) => {
                list.into_iter().for_each(|moved| self.moved(moved));
                Ok(Answer::Done)
            }
            ManagerRequest::Census => Ok(Answer::Census(0, self.live.values().sum())),
            ManagerRequest::DeadStripes(..) => Ok(Answer::Stripes(Vec::new())),
            _ => Err(ManagerError::Unsupported),
        }
    }
}

/// The book behind the manager's port.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<Book>>);

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap()
    }
}

impl Handler for Shared {
    fn handle(&self, _from: NodeId, request: Envelope) -> BoxFuture<'static, Envelope> {
        let book = self.clone();
        Box::pin(async move {
            let request: ManagerRequest = request.open().expect("only managers are asked here");
            let answer = book.lock().answer(request);
            let (log, start) = (LogId(1), Position::START);
            let reply = |answer| ManagerReply { answer, log, journal: start, journal_disk: start, granted: None };
            Envelope::new::<ManagerAnswer>(answer.map(reply))
        })
    }
}
