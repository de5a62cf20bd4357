//! What all programs of one world know together: what was promised to whom, and what everybody saw.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use host::sim::World;
use protocol::file::Kind;
use protocol::id::InodeId;

use super::history::{NOTHING, Register};
use super::linear::model::Maker;
use super::linear::{self, Event};
use super::rack::Life;

/// Cells of a shared file, and the bytes of each: a number written over and over.
pub const CELLS: u64 = 4;
pub const CELL_BYTES: u64 = 256;

/// A file that all use, and what happened to it.
pub struct Shared {
    pub inode: InodeId,
    pub cells: Vec<Register>,
}

/// A file that was fsynced whole, and what may be found of it.
#[derive(Clone, Debug)]
pub struct Kept {
    pub inode: InodeId,
    pub bytes: Vec<u8>,
    /// Names that it must have.
    pub names: BTreeSet<String>,
    /// What somebody does to its names, or did when that life ended.
    pub pending: Option<Pending>,
    /// Who stored it, and when.
    pub story: String,
}

#[derive(Clone, Debug)]
pub enum Pending {
    Rename { from: String, to: String },
    Link { to: String },
    Unlink { name: String },
}

/// Operations on names since the last time that something of them may have been lost.
#[derive(Default)]
pub struct Era {
    pub number: u32,
    /// The directory that the era's names are in.
    pub root: Option<InodeId>,
    /// Somebody makes that directory.
    pub making: Option<Life>,
    pub history: Vec<Event>,
    /// By maker.
    pub inodes: BTreeMap<Maker, (InodeId, Kind)>,
    /// Operations begun.
    pub asked: u64,
}

/// What the programs of one world know.
pub struct Known {
    world: World,
    pub files: Vec<Shared>,
    values: u64,
    /// What an fsync that ended has covered.
    lasting: BTreeSet<u64>,
    pub kept: BTreeMap<u64, Kept>,
    pub era: Era,
    pub makers: Maker,
    ticks: u64,
    /// Programs end.
    pub over: bool,
    /// The life whose programs ask for nothing, for its daemon is restarted; and the calls under way of each life.
    pub held: Option<Life>,
    pub busy: BTreeMap<Life, u32>,
    pub counts: Counts,
    /// What was done to machines, for whoever looks for the cause of a failure.
    deeds: Vec<String>,
}

/// What was done in worlds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls that were answered as asked.
    pub calls: u64,
    /// Calls that were not, while faults were made.
    pub failed: u64,
    /// Files that were fsynced whole.
    pub kept: u64,
    /// Operations on names.
    pub names: u64,
    /// Daemons killed, machines without power, and daemons that ended with their lease.
    pub killed: u64,
    pub unpowered: u64,
    pub expelled: u64,
    /// Machines whose disks were full for a while.
    pub filled: u64,
    /// Machines of which disks answered nothing for a while.
    pub hung: u64,
    /// Requests that were handled twice.
    pub doubled: u64,
    /// Daemons that were restarted and lost nothing.
    pub followed: u64,
    /// Places in groups that others had taken in the end.
    pub replaced: u64,
    /// Machines and targets that came, and that were taken away.
    pub came: u64,
    pub went: u64,
}

impl std::ops::Add for Counts {
    type Output = Counts;

    fn add(self, other: Counts) -> Counts {
        Counts {
            calls: self.calls + other.calls,
            failed: self.failed + other.failed,
            kept: self.kept + other.kept,
            names: self.names + other.names,
            killed: self.killed + other.killed,
            unpowered: self.unpowered + other.unpowered,
            expelled: self.expelled + other.expelled,
            filled: self.filled + other.filled,
            hung: self.hung + other.hung,
            doubled: self.doubled + other.doubled,
            followed: self.followed + other.followed,
            replaced: self.replaced + other.replaced,
            came: self.came + other.came,
            went: self.went + other.went,
        }
    }
}

/// The same for all programs of a world.
#[derive(Clone)]
pub struct Told(Arc<Mutex<Known>>);

impl Told {
    pub fn new(world: &World, files: Vec<InodeId>) -> Told {
        let shared = |inode| Shared { inode, cells: (0..CELLS).map(|_| Register::default()).collect() };
        Told(Arc::new(Mutex::new(Known {
            world: world.clone(),
            files: files.into_iter().map(shared).collect(),
            values: NOTHING,
            lasting: BTreeSet::new(),
            kept: BTreeMap::new(),
            era: Era::default(),
            makers: 0,
            ticks: 0,
            over: false,
            held: None,
            busy: BTreeMap::new(),
            counts: Counts::default(),
            deeds: Vec::new(),
        })))
    }

    pub fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().expect("nobody panics over the story")
    }

    /// The world's time.
    pub fn now(&self) -> u64 {
        self.lock().world.now().0
    }
}

/// Where a test fails, what was done to machines is told.
pub struct Confession(pub Told);

impl Drop for Confession {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let told = self.0.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            println!("what was done:\n  {}", told.deeds.join("\n  "));
        }
    }
}

impl Known {
    /// A number that was written nowhere yet.
    pub fn value(&mut self) -> u64 {
        self.values += 1;
        self.values
    }

    /// A time that nothing else has.
    pub fn tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    /// Notes what is done to machines.
    pub fn note(&mut self, deed: String) {
        if self.deeds.len() < 200 {
            self.deeds.push(format!("{:?}: {deed}", self.time()));
        }
    }

    /// How long the world has been there.
    pub fn time(&self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.world.now().0)
    }

    pub fn outlasts(&mut self, values: impl IntoIterator<Item = u64>) {
        self.lasting.extend(values);
    }

    /// A life has ended, with what it had not stored.
    pub fn lose(&mut self, life: Life) {
        let Known { files, lasting, era, .. } = self;
        for register in files.iter_mut().flat_map(|file| &mut file.cells) {
            register.lose(life.number(), &|value| lasting.contains(&value));
        }
        if era.making == Some(life) {
            era.making = None;
        }
    }

    /// Names that nobody fsynced may be gone: from here on there are others.
    ///
    /// # Panics
    /// When no order explains what was seen so far.
    pub fn end_era(&mut self) {
        let seed = self.world.seed();
        let checked = linear::check(&self.era.history);
        assert!(checked.is_ok(), "seed {seed}: {}", checked.unwrap_err());
        self.counts.names += self.era.history.len() as u64;
        self.era = Era { number: self.era.number + 1, ..Era::default() };
    }

    /// Whether every cell has a history that one file system can have.
    ///
    /// # Panics
    /// When not.
    pub fn check_cells(&self) {
        for (number, file) in self.files.iter().enumerate() {
            for (cell, register) in file.cells.iter().enumerate() {
                let wrong = register.contradiction();
                let seed = self.world.seed();
                assert!(wrong.is_none(), "seed {seed}, file {number}, cell {cell}: {}", wrong.unwrap());
            }
        }
    }
}
