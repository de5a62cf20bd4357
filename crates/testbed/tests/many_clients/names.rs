//! The danger: a kernel goes on showing a name, or that there is none, or whose a directory is, after another machine has
//! changed that.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use client::Client;
use host::Moment;
use host::sim::{self, Dice, World};
use protocol::file::{Kind, NewInode};
use protocol::id::InodeId;

use super::history::{NOTHING, Register};
use super::kernel::{Failed, Kernel};
use super::machines::Machines;
use super::{CALL_MAX, plain};

/// Directories that all use, and names in each.
const DIRECTORIES: usize = 2;
const NAMES: u64 = 5;
/// Names beside those in a directory that is to be split.
const MORE_NAMES: usize = 40;

/// So often a directory is looked into before a kernel remembers its names for a moment; and so long nobody has to change it
/// before it does for longer (`fuse/src/face/kept_names.rs`).
const LOOKS: usize = 400;
const QUIET: Duration = Duration::from_secs(6);

/// What happened.
#[derive(Default)]
struct Told {
    /// What each name was, by directory and name.
    names: BTreeMap<(usize, Bytes), Register>,
    /// Whose each directory was.
    owners: Vec<Register>,
    values: u64,
    /// Answers that no manager was asked for.
    remembered: u64,
}

/// A program on one machine. There is no other on it: while a kernel has a name changed, it shows what was before.
struct Program {
    client: Client,
    kernel: Arc<Kernel>,
    node: u32,
    world: World,
    /// The directories that all use, and one of its own.
    directories: Vec<InodeId>,
    own: InodeId,
    told: Arc<Mutex<Told>>,
    dice: Dice,
    /// It does nothing for long at times.
    is_slow: bool,
    /// Its machine loses its lease: it only looks, and ends once nothing can be seen any more.
    parts: bool,
}

impl Program {
    async fn run(mut self, steps: u64) {
        for _ in 0..steps {
            let at = self.dice.below(DIRECTORIES as u64) as usize;
            let began = self.world.now();
            let done = match self.dice.below(12) {
                0 | 1 if !self.parts => self.replace(at, began.0).await,
                2 if !self.parts => self.give(at, began.0).await,
                3..=5 => self.ask_owner(at, began.0).await,
                6 if self.dice.below(4) == 0 => self.look_often(at).await,
                7 => self.list(at, began.0).await,
                _ => self.look(at, began.0).await,
            };
            match done {
                Err(Failed) if self.parts => return,
                done => done.expect("it can be done"),
            }
            if self.is_slow && self.dice.below(20) == 0 {
                self.world.sleep(QUIET).await;
            } else if self.dice.coin() {
                let magnitude = self.dice.within(10..32);
                self.world.sleep(Duration::from_nanos(self.dice.below(1 << magnitude))).await;
            }
        }
    }

    fn name(&mut self) -> Bytes {
        Bytes::from(format!("name-{}", self.dice.below(NAMES)))
    }

    async fn look_often(&mut self, at: usize) -> Result<(), Failed> {
        for _ in 0..LOOKS {
            self.look(at, self.world.now().0).await?;
            // What is remembered takes no time.
            self.world.sleep(Duration::from_nanos(self.dice.below(1 << 21))).await;
        }
        Ok(())
    }

    /// When a call ends that began then.
    fn in_time(&self, began: u64) -> u64 {
        let now = self.world.now();
        assert!(now - Moment(began) < CALL_MAX, "a call took too long");
        now.0
    }

    async fn look(&mut self, at: usize, began: u64) -> Result<(), Failed> {
        let name = self.name();
        let (found, is_remembered) = self.kernel.lookup(self.directories[at], &name).await?;
        let (value, time) = (found.map_or(NOTHING, |inode| inode.0), began..self.in_time(began));
        let mut told = self.told.lock().unwrap();
        told.names.entry((at, name)).or_default().read(value, self.node, time);
        told.remembered += u64::from(is_remembered);
        Ok(())
    }

    /// What is listed was there; of what is not, nothing is said.
    async fn list(&mut self, at: usize, began: u64) -> Result<(), Failed> {
        let (listed, is_remembered) = self.kernel.list(self.directories[at]).await?;
        let time = began..self.in_time(began);
        let mut told = self.told.lock().unwrap();
        for (name, inode) in listed.into_iter().filter(|(name, _)| name.starts_with(b"name-")) {
            told.names.entry((at, name)).or_default().read(inode.0, self.node, time.clone());
        }
        told.remembered += u64::from(is_remembered);
        Ok(())
    }

    async fn ask_owner(&mut self, at: usize, began: u64) -> Result<(), Failed> {
        let (owner, is_remembered) = self.kernel.owner(self.directories[at]).await?;
        let time = began..self.in_time(began);
        let mut told = self.told.lock().unwrap();
        told.owners[at].read(u64::from(owner), self.node, time);
        told.remembered += u64::from(is_remembered);
        Ok(())
    }

    /// Puts a new file under a name, in whose place ever.
    async fn replace(&mut self, at: usize, began: u64) -> Result<(), Failed> {
        let (name, new) = (self.name(), Bytes::from_static(b"new"));
        let made = self.client.create(self.own, new.clone(), plain()).await.expect("nobody else makes files there");
        let value = made.inode.0;
        let key = (at, name.clone());
        self.told.lock().unwrap().names.entry(key.clone()).or_default().begin(value, self.node, began);
        self.kernel.rename((self.own, &new), (self.directories[at], &name)).await?;
        self.told.lock().unwrap().names.entry(key).or_default().end(value, self.in_time(began));
        Ok(())
    }

    /// Gives a directory to another owner.
    async fn give(&mut self, at: usize, began: u64) -> Result<(), Failed> {
        let value = {
            let mut told = self.told.lock().unwrap();
            told.values += 1;
            let value = told.values;
            told.owners[at].begin(value, self.node, began);
            value
        };
        self.kernel.give(self.directories[at], value as u32).await?;
        self.told.lock().unwrap().owners[at].end(value, self.in_time(began));
        Ok(())
    }
}

async fn make_directory(client: &Client, name: String) -> InodeId {
    let new = NewInode { kind: Kind::Directory, mode: 0o755, ..plain() };
    client.create(InodeId::ROOT, name.into(), new).await.expect("the name is new").inode
}

#[test]
fn no_kernel_shows_a_name_that_another_machine_has_changed() {
    let remembered = Cell::new(0);
    sim::explore(0..150, async |world, _| remembered.set(remembered.get() + tell_a_story(world, false).await));
    println!("{} answers from what kernels remember", remembered.get());
    assert!(remembered.get() > 1000, "kernels remember next to nothing");
}

#[test]
fn the_kernel_of_a_lost_lease_shows_no_names() {
    sim::explore(0..100, async |world, _| {
        tell_a_story(world, true).await;
    });
}

/// How many answers came from what kernels remember.
async fn tell_a_story(world: World, loses_lease: bool) -> u64 {
    let mut dice = world.dice();
    let mut machines = Machines::start(&world, 1 + dice.below(2) as usize, 2 + dice.below(2) as u32).await;
    // Managers learn of each other: directories come to lie with both.
    world.sleep(Duration::from_secs(1)).await;
    let (node, client) = machines.client(0);
    let count = machines.clients() as usize + DIRECTORIES;
    let more = if machines.directories_split() { MORE_NAMES } else { 0 };
    let making = async move {
        let mut made = Vec::new();
        for number in 0..count {
            made.push(make_directory(&client, format!("directory-{number}")).await);
        }
        for &directory in &made[..DIRECTORIES] {
            for number in 0..more {
                let name = Bytes::from(format!("more-{number}"));
                client.create(directory, name, plain()).await.expect("the name is new");
            }
        }
        made
    };
    let made = world.spawn(&world.host(node), making).await.unwrap();
    let owners = (0..DIRECTORIES).map(|_| Register::default()).collect();
    let told = Arc::new(Mutex::new(Told { owners, ..Told::default() }));
    let is_slow = dice.coin();
    let parting = loses_lease.then(|| dice.below(u64::from(machines.clients())) as u32);
    let mut programs = Vec::new();
    for number in 0..machines.clients() {
        let (kernel, (node, client)) = (machines.kernel(number), machines.client(number));
        let (directories, own) = (made[..DIRECTORIES].to_vec(), made[DIRECTORIES + number as usize]);
        let (told, dice, parts) = (told.clone(), Dice::new(dice.roll()), parting == Some(number));
        let (host, world) = (world.host(node), world.clone());
        let spawner = world.clone();
        let program = Program { client, kernel, node: node.0, world, directories, own, told, dice, is_slow, parts };
        programs.push(spawner.spawn(&host, program.run(80)));
    }
    if let Some(number) = parting {
        let node = machines.client(number).0;
        machines.part(node, false, &mut dice).await;
    }
    for program in programs {
        program.await.unwrap();
    }
    let told = told.lock().unwrap();
    let names = told.names.iter().map(|(name, register)| (format!("{name:?}"), register));
    let owners = told.owners.iter().enumerate().map(|(at, register)| (format!("owner of {at}"), register));
    for (what, register) in names.chain(owners) {
        let wrong = register.contradiction();
        assert!(wrong.is_none(), "seed {}, {what}: {}", world.seed(), wrong.unwrap());
    }
    told.remembered
}

/// A kernel lists a directory that nobody has changed for a while, so that it may use the names for long, and another machine
/// changes one of them meanwhile. How often it was the old one that was listed.
async fn list_beside_a_change(world: World) -> u64 {
    let (mut dice, machines) = (world.dice(), Machines::start(&world, 1, 2).await);
    let ((node, client), (other_node, _)) = (machines.client(0), machines.client(1));
    let (mut old, name, new) = (0, Bytes::from_static(b"name-1"), Bytes::from_static(b"new"));
    for round in 0..4 {
        let (client, [kernel, other]) = (client.clone(), [machines.kernel(0), machines.kernel(1)]);
        let making = async move {
            let directory = make_directory(&client, format!("listed-{round}")).await;
            for number in 0..NAMES {
                client.create(directory, format!("name-{number}").into(), plain()).await.expect("it is new");
            }
            let made = client.create(InodeId::ROOT, Bytes::from_static(b"new"), plain()).await.expect("it is new");
            (directory, made.inode)
        };
        let (directory, made) = world.spawn(&world.host(node), making).await.unwrap();
        let look = || {
            let (kernel, name) = (other.clone(), name.clone());
            async move { kernel.lookup(directory, &name).await.expect("it can be looked up").0 }
        };
        let (sleeper, looks) = (world.clone(), [look(), look(), look()]);
        let quiet = async move {
            for look in looks {
                look.await;
                sleeper.sleep(Duration::from_secs(4)).await;
            }
        };
        world.spawn(&world.host(other_node), quiet).await.unwrap();
        let listing = world.spawn(&world.host(other_node), {
            let other = other.clone();
            async move { other.list(directory).await }
        });
        world.sleep(Duration::from_nanos(dice.below(1 << 27))).await;
        let (from, to) = (new.clone(), name.clone());
        let rename = async move { kernel.rename((InodeId::ROOT, &from), (directory, &to)).await };
        world.spawn(&world.host(node), rename).await.unwrap().expect("it is renamed");
        let changed = world.spawn(&world.host(other_node), look()).await.unwrap();
        assert_eq!(changed, Some(made), "seed {}: it is renamed, but not for who lists it", world.seed());
        let listed = listing.await.unwrap().expect("it is listed").0;
        let again = {
            let other = other.clone();
            async move { other.list(directory).await }
        };
        let (again, _) = world.spawn(&world.host(other_node), again).await.unwrap().expect("it is listed");
        assert!(again.contains(&(name.clone(), made)), "seed {}: the listing of before was kept", world.seed());
        let changed = world.spawn(&world.host(other_node), look()).await.unwrap();
        assert_eq!(changed, Some(made), "seed {}: a listing brought back what was", world.seed());
        old += u64::from(listed.iter().any(|(listed, inode)| *listed == name && *inode != made));
    }
    old
}

#[test]
fn no_listing_brings_back_what_another_machine_has_changed() {
    let old = Cell::new(0);
    let worlds = sim::explore(0..60, async |world, _| old.set(old.get() + list_beside_a_change(world).await));
    println!("{worlds} worlds: {} times the name was listed as it was before", old.get());
    assert!(old.get() > 10, "names are not changed while they are listed");
}

#[test]
fn a_listing_that_nobody_changes_is_remembered() {
    let remembered = Cell::new(0);
    let worlds = sim::explore(0..20, async |world, _| {
        let machines = Machines::start(&world, 1, 2).await;
        let ((node, client), (other_node, _), kernel) = (machines.client(0), machines.client(1), machines.kernel(1));
        let making = async move { make_directory(&client, "quiet".into()).await };
        let directory = world.spawn(&world.host(node), making).await.unwrap();
        let sleeper = world.clone();
        let list = async move {
            let mut remembered = 0;
            for _ in 0..3 {
                kernel.owner(directory).await.expect("it is there");
                sleeper.sleep(Duration::from_secs(1)).await;
                remembered += u64::from(kernel.list(directory).await.expect("it is listed").1);
            }
            remembered
        };
        remembered.set(remembered.get() + world.spawn(&world.host(other_node), list).await.unwrap());
    });
    assert!(remembered.get() >= worlds, "{} listings of {} are remembered", remembered.get(), worlds * 3);
}
