//! One durable copy of what a voter or learner keeps, on one target: checkpoints in two byte spaces written alternately, so
//! that the older survives while the newer is being written, and the records since in a third (`docs/format.md`). This file
//! awaits; `record` knows the bytes.

use bytes::Bytes;
use host::{Disk, DiskError, File};
use protocol::checksum::crc;

use crate::record::{self, Beginning, CHECKPOINT_HEAD, Head, LENGTH_MAX};

const SPACES: [&str; 2] = ["registry.0", "registry.1"];
const LOG: &str = "registry.log";
/// A log is never longer than some records behind a checkpoint; what lies beyond is rubbish.
const LOG_READ_MAX: u64 = 4 * LENGTH_MAX as u64;

/// One copy.
pub struct Replica {
    spaces: [File; 2],
    log: File,
    /// Which space the next checkpoint goes to: the one that does not hold the newest.
    next: usize,
    generation: u64,
    /// The generation that somebody was about to write, if that is a later one.
    claim: u64,
    /// How many records follow the newest checkpoint, and where they end.
    records: u32,
    end: u64,
}

/// What a copy held when it was opened.
pub struct Found {
    pub(crate) generation: u64,
    /// How many generations the one before is back, and how many records that had.
    pub(crate) before: (u32, u32),
    pub(crate) body: Bytes,
    pub(crate) records: Vec<Bytes>,
}

/// What can be had of a copy, sound or not.
pub(crate) struct Salvaged {
    /// The next checkpoint takes the place of what tells less.
    pub replica: Replica,
    /// What its checkpoints tell, with as many records behind them as can be read.
    pub found: Vec<Found>,
    /// No generation above this one was written to it, or claimed on it, as far as can be read.
    pub generation: u64,
    /// Whether it does not tell all that was promised.
    pub is_damaged: bool,
}

/// Why a copy could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The disk said so.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The copy does not tell all that was promised.
    #[error("the registry on this target is damaged")]
    Damaged,
    /// The disk does not finish what it is asked.
    #[error("the disk hangs")]
    Hung,
    /// Not enough of a node's copies could be written.
    #[error("{0}")]
    TooFew(String),
    /// Written by another version of Dazzle.
    #[error(
        "the registry on this target has version {0} of its format, and this daemon knows version {known} only. Nothing was \
         changed, and all is still there: start it with the Dazzle that wrote it",
        known = record::VERSION
    )]
    Version(u8),
}

impl Replica {
    /// Opens the copy on `disk`, and reads what it holds. `None`: nothing was ever written.
    pub async fn open(disk: &Disk) -> Result<(Replica, Option<Found>), ReplicaError> {
        let spaces = [disk.open(SPACES[0])?, disk.open(SPACES[1])?];
        let log = disk.open(LOG)?;
        let read = [read(&spaces[0]).await?, read(&spaces[1]).await?];
        let claim =
            read.iter().map(|space| if let Space::Claim(claim) = space { *claim } else { 0 }).max().unwrap_or(0);
        let (next, newest) = match read {
            [Space::Version(version), _] | [_, Space::Version(version)] => return Err(ReplicaError::Version(version)),
            [Space::Body(a, body), Space::Body(b, _)] if a.generation > b.generation => (1, Some((a, body))),
            [_, Space::Body(head, body)] => (0, Some((head, body))),
            [Space::Body(head, body), _] => (1, Some((head, body))),
            [Space::Nothing | Space::Claim(_), Space::Nothing] => (0, None),
            _ => return Err(ReplicaError::Damaged),
        };
        let mut replica = Replica { spaces, log, next, generation: 0, claim, records: 0, end: 0 };
        let Some((head, body)) = newest else { return Ok((replica, None)) };
        let length = replica.log.size()?.min(LOG_READ_MAX) as usize;
        let records = record::records(&replica.log.read(0, length).await?, head.generation);
        if records.damaged {
            return Err(ReplicaError::Damaged);
        }
        replica.generation = head.generation;
        replica.records = records.bodies.len() as u32;
        let found =
            Found { generation: head.generation, before: (head.back, head.before), body, records: records.bodies };
        Ok((replica, Some(found)))
    }

    /// Opens the copy on `disk` in whatever state it is, and reads what is left of it.
    pub(crate) async fn salvage(disk: &Disk) -> Result<Salvaged, ReplicaError> {
        let is_damaged = match Replica::open(disk).await {
            Ok(_) => false,
            Err(ReplicaError::Damaged) => true,
            Err(error) => return Err(error),
        };
        let spaces = [disk.open(SPACES[0])?, disk.open(SPACES[1])?];
        let log = disk.open(LOG)?;
        let records = log.read(0, log.size()?.min(LOG_READ_MAX) as usize).await?;
        let (mut found, mut generation, mut next, mut newest) = (Vec::new(), record::generation_max(&records), 0, 0);
        for (place, space) in spaces.iter().enumerate() {
            let (head, body) = match read(space).await? {
                Space::Body(head, body) => (head, body),
                Space::Claim(claim) => {
                    generation = generation.max(claim);
                    continue;
                }
                Space::Nothing | Space::Version(_) | Space::Damage => continue,
            };
            let bodies = record::records(&records, head.generation).bodies;
            let one = Found { generation: head.generation, before: (head.back, head.before), body, records: bodies };
            // What tells nothing is written over first.
            if one.read().is_some() && head.generation >= newest {
                (newest, next) = (head.generation, 1 - place);
            }
            generation = generation.max(head.generation);
            found.push(one);
        }
        let replica = Replica { spaces, log, next, generation, claim: 0, records: 0, end: 0 };
        Ok(Salvaged { replica, found, generation, is_damaged })
    }

    /// The latest generation that it has, or that somebody was about to write.
    pub(crate) fn latest(&self) -> u64 {
        self.generation.max(self.claim)
    }

    /// Notes durably that a checkpoint of this generation may be written, to whatever copies.
    pub(crate) async fn claim(&mut self, generation: u64) -> Result<(), ReplicaError> {
        assert!(generation > self.latest(), "generations rise");
        let space = &self.spaces[self.next];
        space.write(0, vec![record::claim(generation)]).await?;
        space.sync().await?;
        self.claim = generation;
        Ok(())
    }

    /// Stores a checkpoint, durably; records follow it from now on. All copies of a node get the same generations; the one
    /// before this is so many back, and had so many records.
    pub(crate) async fn checkpoint(
        &mut self,
        generation: u64,
        before: (u32, u32),
        body: &[u8],
    ) -> Result<(), ReplicaError> {
        assert!(generation > self.generation && generation >= self.claim, "generations rise");
        assert!(!body.is_empty(), "a checkpoint without a body is a claim");
        let space = &self.spaces[self.next];
        space.write(0, vec![record::checkpoint(generation, before, body)]).await?;
        space.sync().await?;
        self.next = 1 - self.next;
        (self.generation, self.records, self.end) = (generation, 0, 0);
        Ok(())
    }

    /// Appends a record, durably. After an error the copy is worth nothing until its next checkpoint.
    pub(crate) async fn append(&mut self, body: &[u8]) -> Result<(), ReplicaError> {
        let bytes = record::record(self.generation, self.records, body);
        let length = bytes.len() as u64;
        self.log.write(self.end, vec![bytes]).await?;
        self.log.sync().await?;
        self.records += 1;
        self.end += length;
        Ok(())
    }
}

/// What a space for checkpoints holds.
enum Space {
    Nothing,
    Body(Head, Bytes),
    Claim(u64),
    Version(u8),
    Damage,
}

async fn read(space: &File) -> Result<Space, DiskError> {
    let head = match record::beginning(&space.read(0, CHECKPOINT_HEAD).await?) {
        Beginning::Nothing => return Ok(Space::Nothing),
        Beginning::Version(version) => return Ok(Space::Version(version)),
        Beginning::Damage => return Ok(Space::Damage),
        Beginning::Claim(generation) => return Ok(Space::Claim(generation)),
        Beginning::Checkpoint(head) => head,
    };
    let body = space.read(CHECKPOINT_HEAD as u64, head.length).await?;
    let whole = body.len() == head.length && crc(&body) == head.sum;
    Ok(if whole { Space::Body(head, body) } else { Space::Damage })
}
