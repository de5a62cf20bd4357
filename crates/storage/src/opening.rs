//! A target between the two steps of its start. The first one reads all that it holds and makes durable what was found; the
//! second one writes its list anew where that is due, announces a window, and has it serve.
//!
//! Invariant: the first step leaves what tells that the disk did not give something. The second one does not: a new window
//! is without the cells that cannot be read, and nothing else may tell of what lay there. So who must know that a target may
//! have forgotten something is told in between, and if that fails, the next start finds the same.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};

use host::{Disk, DiskError, Host};
use protocol::id::{FenceEpoch, LogId, TargetId};
use protocol::storage::StorageError;

use crate::around::read_around;
use crate::catalog::{Catalog, Change, Plan, Reserve, Stored};
use crate::cells::Cells;
use crate::head::{Generation, HEAD_SIZE};
use crate::intake::{INTAKE_SIZE_MAX, find_entries};
use crate::lister::ListState;
use crate::open::{Found, Lists, OpenError, SPACES, Search, TargetOptions, read_lists, read_superblock};
use crate::replay::Place;
use crate::rounds::Rounds;
use crate::superblock::Superblock;
use crate::taker::Intake;
use crate::target::{Target, owner_of, stripe_locks};
use crate::watch::{WatchedDisk, WatchedFile};

/// What the superblock and the beginning of the lists take, in bytes.
const OVERHEAD: u64 = 1 << 20;
/// What the lists take for each cell, at the most, in bytes.
const OVERHEAD_PER_CELL: u64 = 512;

/// A target that was looked through, and does not serve yet.
pub struct Opening {
    host: Host,
    id: TargetId,
    options: TargetOptions,
    disk: WatchedDisk,
    spaces: Spaces,
    superblock: Superblock,
    is_first: bool,
    /// Where the list ends; `None` if a new one is due.
    place: Option<Place>,
    fences: BTreeMap<LogId, FenceEpoch>,
    found: Found,
    /// Blocks of the lists and of the intake that could not be read.
    unread: usize,
}

/// The byte spaces of a target.
struct Spaces {
    superblocks: WatchedFile,
    data: WatchedFile,
    lists: [WatchedFile; 2],
    intake: WatchedFile,
}

/// Whether a start writes the list anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Anew {
    No,
    /// Without room the old one goes on.
    Wanted,
    /// There is none that is right.
    Needed,
}

impl Opening {
    /// The first step: reads what a target holds, and makes durable what it found.
    pub async fn look(
        host: Host,
        disk: Disk,
        cluster: u128,
        id: TargetId,
        options: TargetOptions,
    ) -> Result<Opening, OpenError> {
        let disk = WatchedDisk::new(host.clone(), disk);
        let superblocks = disk.open(SPACES[0])?;
        let mut superblock = read_superblock(&superblocks, cluster, id).await?;
        let lists = [disk.open(SPACES[2])?, disk.open(SPACES[3])?];
        let (data, intake) = (disk.open(SPACES[1])?, disk.open(SPACES[4])?);
        let spaces = Spaces { superblocks, data, lists, intake };
        let is_first = superblock.incarnation == 0;
        superblock.sequence += 1;
        superblock.incarnation += 1;
        spaces.superblocks.write(superblock.place(), vec![superblock.encode()]).await?;
        spaces.superblocks.sync().await?;

        let Lists { mut replay, place, unread } = read_lists(&spaces.lists, &superblock).await?;
        let owner = owner_of(cluster, id);
        let (read, untaken) = read_around(&spaces.intake, 0, INTAKE_SIZE_MAX as usize).await?;
        let search = Search { data: spaces.data.clone(), superblock, owner, taken_in: find_entries(&read, owner) };
        let found = search.find(&mut replay, place.is_none()).await?;
        spaces.data.sync().await?;
        let (fences, unread) = (replay.fences, unread + untaken);
        Ok(Opening { host, id, options, disk, spaces, superblock, is_first, place, fences, found, unread })
    }

    /// The target's id.
    pub fn id(&self) -> TargetId {
        self.id
    }

    /// Whether it may lack something that was written last, for the disk did not give all that tells of it, or gave it wrong.
    pub fn may_have_forgotten(&self) -> bool {
        let is_list_damaged = self.superblock.list != 0 && self.place.is_none();
        is_list_damaged || self.unread > 0 || !self.found.unreadable.is_empty()
    }

    /// The second step: it serves from now on, and the next start may not find what this one found.
    pub async fn begin(self) -> Result<Arc<Target>, OpenError> {
        let (anew, plan) = (self.anew(), self.plan());
        let Opening { host, id, options, disk, spaces, superblock, is_first, place, found, fences, .. } = self;
        // The first step made durable what was taken in: that may be written over.
        let intake = Intake::open(spaces.intake, options.intake_size, is_first).await?;
        let total = plan.cells(disk.usage()?.bytes_total);
        let mut catalog = catalog_of(found, &superblock, total, plan.reserve(total));
        catalog.fences = fences;
        let list = place.unwrap_or(Place { offset: 0, number: 0, chain: 0, snapshot_end: 0 });
        let target = Arc::new(Target {
            host,
            id,
            disk,
            data: spaces.data,
            superblocks: spaces.superblocks,
            lists: spaces.lists,
            intake,
            owner: owner_of(superblock.cluster, id),
            cell_data: superblock.cell_data,
            plan,
            window_cells: options.window_cells.max(1),
            list_growth: u64::from(options.list_growth),
            incarnation: superblock.incarnation,
            catalog: Mutex::new(catalog),
            // Tails that were found count as covered by the sync of the first step: number one.
            syncs: Arc::new(Rounds::new(1)),
            listings: Arc::new(Rounds::new(0)),
            list_state: async_lock::Mutex::new(ListState::new(superblock, list)),
            failed: OnceLock::new(),
            stripes: stripe_locks(),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
        });
        target.begin_list(anew).await?;
        Ok(target)
    }

    fn anew(&self) -> Anew {
        match self.place {
            None => Anew::Needed,
            Some(_) if self.found.belied => Anew::Wanted,
            Some(_) => Anew::No,
        }
    }

    fn plan(&self) -> Plan {
        Plan {
            overhead: OVERHEAD + u64::from(self.options.intake_size),
            cell: HEAD_SIZE as u64 + u64::from(self.superblock.cell_data) + OVERHEAD_PER_CELL,
            journal_permille: self.options.journal_permille,
            clean_permille: self.options.clean_permille,
        }
    }
}

impl Target {
    /// Starts a target, both steps at once: for who needs not know whether it may have forgotten something.
    pub async fn open(
        host: Host,
        disk: Disk,
        cluster: u128,
        id: TargetId,
        options: TargetOptions,
    ) -> Result<Arc<Target>, OpenError> {
        Opening::look(host, disk, cluster, id, options).await?.begin().await
    }

    /// Writes a new list if there is none that is right, and announces the first window.
    async fn begin_list(self: &Arc<Self>, anew: Anew) -> Result<(), OpenError> {
        if anew != Anew::No {
            let mut state = self.list_state.lock().await;
            match self.snapshot(&mut state).await {
                Ok(_) => {}
                Err(StorageError::Full) if anew == Anew::Wanted => {}
                Err(error) => return Err(open_error(error)),
            }
        }
        match self.tell(Some(1)).await {
            // A full disk is opened all the same: it can be read, and what frees room may find some.
            Ok(_) | Err(StorageError::Full) => {}
            Err(error) => return Err(open_error(error)),
        }
        Ok(())
    }
}

impl std::fmt::Debug for Opening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Opening of target {}", self.id.0)
    }
}

fn open_error(error: StorageError) -> OpenError {
    OpenError::Disk(match error {
        StorageError::Full => DiskError::Full,
        other => DiskError::Failed(other.to_string()),
    })
}

/// What was found, on a disk of `total` cells.
fn catalog_of(found: Found, superblock: &Superblock, total: u32, reserve: Reserve) -> Catalog {
    let Found { fragments, losers, unreadable, .. } = found;
    let used = fragments.values().chain(&losers).map(|stored| stored.run).chain(unreadable);
    let first = Generation::first_of(superblock.incarnation);
    let mut catalog = Catalog::new(Cells::new(total, used), first, reserve, superblock.cell_data);
    catalog.unsettled = fragments.iter().filter(|(_, stored)| stored.tail.is_some()).map(|(id, _)| *id).collect();
    catalog.fragments = fragments;
    for Stored { run, generation, .. } in losers {
        catalog.cells_leaving += run.count;
        catalog.change(Change::Gone { run, generation });
    }
    catalog
}
