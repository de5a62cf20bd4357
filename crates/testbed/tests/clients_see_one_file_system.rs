//! The danger: a client reads from its memory what another has overwritten; two clients believe to be alone; a size, an
//! append or a truncation is overlooked by somebody who has the file in memory; what fsync promised goes with its client;
//! or a call waits for a token for ever.
//!
//! One node stores and keeps the registry, one or two manage, two to four others each run a client on a machine of its own
//! with a clock of its own. Programs on all of them use the same few files at once. Messages get lost, links are slow, clients
//! and managers die and come back. Every call is noted with its time, and in the end each cell of each file must have a
//! history that one file system can have.

#[path = "many_clients/copies.rs"]
mod copies;
#[path = "many_clients/deaths.rs"]
mod deaths;
#[path = "many_clients/dentries.rs"]
mod dentries;
#[path = "many_clients/file_locks.rs"]
mod file_locks;
#[path = "many_clients/forgotten.rs"]
mod forgotten;
#[path = "many_clients/history.rs"]
mod history;
#[path = "many_clients/kernel.rs"]
mod kernel;
#[path = "many_clients/lease.rs"]
mod lease;
#[path = "many_clients/machines.rs"]
mod machines;
#[path = "many_clients/names.rs"]
mod names;
#[path = "many_clients/open_files.rs"]
mod open_files;
#[path = "many_clients/pages.rs"]
mod pages;
#[path = "many_clients/removals.rs"]
mod removals;

use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientError, WriteAt};
use history::{NOTHING, Register};
use host::sim::{self, Dice, NetworkOptions, Verdict, World};
use machines::{MANAGERS, Machines};
use protocol::file::{Attributes, Caller, Kind, NewInode, SetAttributes};
use protocol::id::InodeId;
use protocol::manager::MANAGER_PORT;
use protocol::token::CLIENT_PORT;

/// Cells of a file, and the bytes of each: a number written over and over.
const CELLS: u64 = 6;
const CELL_BYTES: u64 = 200;
/// Two of the deeds of a program.
const READ: u64 = 4;
const PAUSE: u64 = 13;
/// No call takes longer: it asks up to three questions, of which each is given up after 40 seconds.
const CALL_MAX: Duration = Duration::from_secs(120);

/// A file that all use, and what happened to it.
struct Shared {
    inode: InodeId,
    cells: Vec<Register>,
    size: Register,
    owner: Register,
}

struct Story {
    world: World,
    files: Vec<Shared>,
    values: u64,
    /// What an fsync that ended has covered.
    lasting: Vec<u64>,
    /// Whose lease runs out.
    parting: Option<u32>,
    calls: u64,
    failed: u64,
}

impl Story {
    /// A client died, with what it had not stored.
    fn lose(&mut self, node: u32) {
        let Story { files, lasting, .. } = self;
        for register in files.iter_mut().flat_map(|file| &mut file.cells) {
            register.lose(node, &|value| lasting.contains(&value));
        }
    }
}

type Told = Arc<Mutex<Story>>;

fn now(told: &Told) -> u64 {
    told.lock().unwrap().world.now().0
}

/// What one program does: one call after the other.
struct Program {
    client: Client,
    node: u32,
    told: Told,
    dice: Dice,
    /// Its own writes of each file that no fsync has covered.
    loose: Vec<Vec<u64>>,
}

impl Program {
    async fn run(mut self, steps: u64) {
        for _ in 0..steps {
            let begin = now(&self.told);
            let file = self.dice.below(self.loose.len() as u64) as usize;
            // All else waits for the others.
            let is_parting = self.told.lock().unwrap().parting == Some(self.node);
            let deed = if is_parting { *self.dice.pick(&[READ, PAUSE]).unwrap() } else { self.dice.below(PAUSE + 1) };
            let outcome = match deed {
                0..=3 => self.write(file).await,
                READ..=7 => self.read(file).await,
                8 => self.resize(file).await,
                9 => self.look(file).await,
                10 => self.fsync(file).await,
                11 => self.give(file).await,
                12 => self.open(file).await,
                PAUSE.. => {
                    let pause = Duration::from_micros(self.dice.below(1 << 20));
                    let world = self.told.lock().unwrap().world.clone();
                    world.sleep(pause).await;
                    continue;
                }
            };
            let took = Duration::from_nanos(now(&self.told) - begin);
            assert!(took < CALL_MAX, "a call of node {} took {took:?}", self.node);
            let mut told = self.told.lock().unwrap();
            told.calls += 1;
            match outcome {
                Ok(()) => {}
                // Nothing more can come of it, in this life.
                Err(ClientError::Expelled | ClientError::Log(_)) if told.parting == Some(self.node) => return,
                Err(ClientError::Unreachable(_)) => told.failed += 1,
                Err(error) => panic!("node {}: {error}", self.node),
            }
        }
    }

    fn inode(&self, file: usize) -> InodeId {
        self.told.lock().unwrap().files[file].inode
    }

    fn value(&self) -> u64 {
        let mut told = self.told.lock().unwrap();
        told.values += 1;
        told.values
    }

    async fn write(&mut self, file: usize) -> Result<(), ClientError> {
        let (value, inode) = (self.value(), self.inode(file));
        let first = self.dice.below(CELLS);
        let count = 1 + self.dice.below(CELLS - first);
        let begin = now(&self.told);
        for cell in first..first + count {
            self.told.lock().unwrap().files[file].cells[cell as usize].begin(value, self.node, begin);
        }
        let bytes = value.to_le_bytes().repeat((count * CELL_BYTES / 8) as usize);
        self.loose[file].push(value);
        self.client.write(inode, WriteAt::Offset(first * CELL_BYTES), bytes.into()).await?;
        let end = now(&self.told);
        for cell in first..first + count {
            self.told.lock().unwrap().files[file].cells[cell as usize].end(value, end);
        }
        Ok(())
    }

    async fn read(&mut self, file: usize) -> Result<(), ClientError> {
        let inode = self.inode(file);
        let first = self.dice.below(CELLS);
        let count = 1 + self.dice.below(CELLS - first);
        let begin = now(&self.told);
        let pieces = self.client.read(inode, first * CELL_BYTES, (count * CELL_BYTES) as u32).await?;
        let time = begin..now(&self.told);
        let bytes = pieces.concat();
        assert_eq!(bytes.len() as u64, count * CELL_BYTES, "no file is shorter than its cells");
        for (number, cell) in bytes.chunks(CELL_BYTES as usize).enumerate() {
            let words: Vec<u64> = cell.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
            let mut told = self.told.lock().unwrap();
            assert!(words.iter().all(|word| *word == words[0]), "a cell is written at once: {words:?}");
            told.files[file].cells[first as usize + number].read(words[0], self.node, time.clone());
        }
        Ok(())
    }

    /// The size behind the cells is a register, too.
    async fn resize(&mut self, file: usize) -> Result<(), ClientError> {
        let (value, inode) = (self.value(), self.inode(file));
        let begin = now(&self.told);
        self.told.lock().unwrap().files[file].size.begin(value, self.node, begin);
        let set = SetAttributes { size: Some(CELLS * CELL_BYTES + value), ..SetAttributes::default() };
        self.client.set_attributes(inode, set).await?;
        let end = now(&self.told);
        self.told.lock().unwrap().files[file].size.end(value, end);
        Ok(())
    }

    /// So is the owner: nothing but attributes tells it.
    async fn give(&mut self, file: usize) -> Result<(), ClientError> {
        let (value, inode) = (self.value(), self.inode(file));
        let begin = now(&self.told);
        self.told.lock().unwrap().files[file].owner.begin(value, self.node, begin);
        let set = SetAttributes { uid: Some(value as u32), ..SetAttributes::default() };
        self.client.set_attributes(inode, set).await?;
        let end = now(&self.told);
        self.told.lock().unwrap().files[file].owner.end(value, end);
        Ok(())
    }

    async fn look(&mut self, file: usize) -> Result<(), ClientError> {
        let inode = self.inode(file);
        let begin = now(&self.told);
        let attributes = match self.dice.coin() {
            true => self.client.attributes(inode).await?,
            false => self.client.lookup(InodeId::ROOT, Bytes::from(format!("file-{file}"))).await?,
        };
        self.saw(file, &attributes, begin);
        Ok(())
    }

    /// For a moment.
    async fn open(&mut self, file: usize) -> Result<(), ClientError> {
        let inode = self.inode(file);
        let begin = now(&self.told);
        let opened = self.client.open(inode).await;
        if let Ok(attributes) = &opened {
            self.saw(file, attributes, begin);
            self.client.close(inode).await;
        }
        opened.map(drop)
    }

    fn saw(&self, file: usize, attributes: &Attributes, begin: u64) {
        let time = begin..now(&self.told);
        let value = attributes.size - CELLS * CELL_BYTES;
        let file = &mut self.told.lock().unwrap().files[file];
        file.size.read(value, self.node, time.clone());
        file.owner.read(u64::from(attributes.uid), self.node, time);
    }

    async fn fsync(&mut self, file: usize) -> Result<(), ClientError> {
        let covered = self.loose[file].clone();
        self.client.fsync(self.inode(file), false).await?;
        self.loose[file].clear();
        self.told.lock().unwrap().lasting.extend(covered);
        Ok(())
    }
}

fn plain() -> NewInode {
    NewInode { kind: Kind::File, mode: 0o644, mask: 0, device: 0, target: Bytes::new(), caller: Caller::default() }
}

/// Makes the files, each with all its cells empty.
async fn make_files(client: &Client, count: u64) -> Vec<Shared> {
    let mut files = Vec::new();
    for number in 0..count {
        let name = Bytes::from(format!("file-{number}"));
        let inode = client.create_open(InodeId::ROOT, name, plain()).await.expect("the name is new").inode;
        let zeros = Bytes::from(vec![0; (CELLS * CELL_BYTES) as usize]);
        client.write(inode, WriteAt::Offset(0), zeros).await.expect("there is room");
        client.fsync(inode, false).await.expect("it is stored");
        let cells = (0..CELLS).map(|_| Register::default()).collect();
        files.push(Shared { inode, cells, size: Register::default(), owner: Register::default() });
    }
    files
}

/// What goes wrong meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Harm {
    Nothing,
    Losses,
    DyingClients,
    DyingManagers,
    LostLeases,
}

async fn tell_a_story(world: World, harm: Harm, calls: &Cell<u64>, failed: &Cell<u64>) {
    let mut dice = world.dice();
    let managers = if harm == Harm::DyingManagers { MANAGERS.len() } else { 1 + dice.below(2) as usize };
    let mut machines = Machines::start(&world, managers, 2 + dice.below(3) as u32).await;
    let first = machines.client(0);
    let count = 1 + dice.below(3);
    let made = world.spawn(&world.host(first.0), async move { make_files(&first.1, count).await });
    let files = made.await.unwrap();
    let story =
        Story { world: world.clone(), files, values: NOTHING, lasting: Vec::new(), parting: None, calls: 0, failed: 0 };
    let told: Told = Arc::new(Mutex::new(story));
    if harm == Harm::Losses {
        let slow = Duration::from_micros(1 + dice.below(50_000));
        lose_some(&world, dice.below(50_000) as u32);
        double_some(&world, NetworkOptions { latency_max: slow, ..NetworkOptions::default() });
    }
    for _ in 0..if harm == Harm::Nothing { 1 } else { 3 } {
        let mut programs = Vec::new();
        for number in 0..machines.clients() {
            for _ in 0..1 + dice.below(2) {
                let (node, client) = machines.client(number);
                let loose = vec![Vec::new(); count as usize];
                let told = told.clone();
                let dice = Dice::new(dice.roll());
                let program = Program { client, node: node.0, told, dice, loose };
                programs.push((node, world.spawn(&world.host(node), program.run(60))));
            }
        }
        let dying = match harm {
            Harm::DyingClients => Some(machines.client(dice.below(u64::from(machines.clients())) as u32).0),
            Harm::DyingManagers => Some(*dice.pick(&MANAGERS).unwrap()),
            _ => None,
        };
        if let Some(node) = dying {
            world.sleep(Duration::from_millis(dice.below(3000))).await;
            machines.die(node, &mut dice).await;
        }
        let mut parted = None;
        if harm == Harm::LostLeases {
            let node = machines.client(dice.below(u64::from(machines.clients())) as u32).0;
            told.lock().unwrap().parting = Some(node.0);
            world.sleep(Duration::from_millis(dice.below(3000))).await;
            parted = machines.part(node, dice.coin(), &mut dice).await.then_some(node);
            if parted.is_none() {
                told.lock().unwrap().parting = None;
            }
        }
        for (node, program) in programs {
            assert!(program.await.is_ok() || Some(node) == dying, "only programs of a machine that died are gone");
        }
        if let Some(node) = parted {
            told.lock().unwrap().lose(node.0);
            machines.begin_again(node).await;
        }
        if let Some(node) = dying {
            told.lock().unwrap().lose(node.0);
            machines.come_back(node).await;
        }
    }
    look_at_all(&world, &machines, &told, count).await;
    let told = told.lock().unwrap();
    for (number, file) in told.files.iter().enumerate() {
        for (cell, register) in file.cells.iter().enumerate() {
            let wrong = register.contradiction();
            assert!(wrong.is_none(), "seed {}, file {number}, cell {cell}: {}", world.seed(), wrong.unwrap());
        }
        for (what, register) in [("size", &file.size), ("owner", &file.owner)] {
            let wrong = register.contradiction();
            assert!(wrong.is_none(), "seed {}, {what} of file {number}: {}", world.seed(), wrong.unwrap());
        }
    }
    calls.set(calls.get() + told.calls);
    failed.set(failed.get() + told.failed);
}

/// Of what clients and managers say to each other, so much of a million gets lost.
fn lose_some(world: &World, loss_ppm: u32) {
    let dice = Mutex::new(world.dice());
    world.judge_messages(move |passing| {
        let is_ours = [MANAGER_PORT, CLIENT_PORT].contains(&passing.called.port.0);
        if is_ours && dice.lock().unwrap().chance(loss_ppm) { Verdict::Lose } else { Verdict::Pass }
    });
}

/// In half of the worlds requests are doubled, from now on: a die of its own leaves the rest of a story as it was.
fn double_some(world: &World, options: NetworkOptions) {
    let doubled_ppm = [0, 0, 5_000, 50_000][Dice::new(!world.seed()).below(4) as usize];
    world.copy_requests(testbed::doubles::copy);
    world.set_network(NetworkOptions { doubled_ppm, ..options });
}

/// In half of the worlds, some of what clients and managers say gets lost, or is late: behind much that was said after it. In
/// half of all, some of what they ask arrives twice.
fn disturb(world: &World, dice: &mut Dice) {
    double_some(world, NetworkOptions::default());
    if dice.coin() {
        return;
    }
    let (loss_ppm, late_ppm) = (dice.below(30_000) as u32, dice.below(200_000) as u32);
    let dice = Mutex::new(world.dice());
    world.judge_messages(move |passing| {
        let mut dice = dice.lock().unwrap();
        let is_ours = [MANAGER_PORT, CLIENT_PORT].contains(&passing.called.port.0);
        match is_ours {
            true if dice.chance(loss_ppm) => Verdict::Lose,
            true if dice.chance(late_ppm) => Verdict::Delay(Duration::from_nanos(dice.below(3_000_000_000))),
            _ => Verdict::Pass,
        }
    });
}

/// In the end all clients see the same.
async fn look_at_all(world: &World, machines: &Machines, told: &Told, count: u64) {
    world.set_network(NetworkOptions::default());
    world.dismiss_judge();
    for number in 0..machines.clients() {
        let (node, client) = machines.client(number);
        let loose = vec![Vec::new(); count as usize];
        let mut program = Program { client, node: node.0, told: told.clone(), dice: world.dice(), loose };
        let looked = world.spawn(&world.host(node), async move {
            for file in 0..count as usize {
                for _ in 0..4 {
                    program.read(file).await.expect("nothing fails any more");
                }
                program.look(file).await.expect("nothing fails any more");
            }
        });
        looked.await.expect("nobody dies any more");
    }
}

/// As many worlds as DAZZLE_SEEDS asks for, or a few.
fn explore(harm: Harm, worlds: u64) {
    let (calls, failed) = (Cell::new(0), Cell::new(0));
    let worlds = sim::explore(sim::seeds(worlds), async |world, _| tell_a_story(world, harm, &calls, &failed).await);
    println!("{worlds} worlds, {} calls, of which {} found nobody in time", calls.get(), failed.get());
    assert!(failed.get() * 20 <= calls.get(), "most calls end well");
}

#[test]
fn every_client_reads_what_was_written_last() {
    explore(Harm::Nothing, 12);
}

#[test]
fn slow_links_and_lost_messages_change_nothing() {
    explore(Harm::Losses, 8);
}

#[test]
fn what_was_fsynced_outlives_its_client() {
    explore(Harm::DyingClients, 8);
}

#[test]
fn tokens_outlive_their_manager() {
    explore(Harm::DyingManagers, 8);
}

#[test]
fn whoever_lost_its_lease_answers_nothing_from_memory() {
    explore(Harm::LostLeases, 12);
}
