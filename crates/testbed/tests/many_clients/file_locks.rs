//! The danger: the manager that granted file locks dies, and its successor grants them once more, though their holders live;
//! or a lock vanishes that somebody holds, or stays that nobody does.
//!
//! A program holds a lock from when a call returned with it until it begins one that gives it up.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientError};
use fuse::operation::{Handle, LockOwner};
use futures_util::future::{Either, select};
use host::sim::{self, Dice, World};
use protocol::file::{Lock, LockFamily};
use protocol::id::InodeId;
use protocol::locks::HeldLocks;
use protocol::manager::ManagerError;

use super::machines::{MANAGERS, Machines};
use super::{CALL_MAX, disturb, plain};

const FILES: usize = 3;
/// Bytes that ranges are taken of.
const BYTES: u64 = 12;

/// A file, and who is sure to hold which locks of it.
struct File {
    inode: InodeId,
    held: HeldLocks,
    /// How often somebody gave something up.
    given: u64,
}

impl File {
    /// A call begins by which an owner may give up what it holds of the range, but for `kept`.
    fn give(&mut self, range: &Lock, kept: Option<Lock>) {
        self.given += 1;
        self.held.release(range);
        kept.into_iter().for_each(|kept| self.held.take(kept));
    }

    /// What an owner holds that would be less after a call that asks for `lock`, as it then is.
    fn lowered(&self, lock: &Lock) -> Vec<Lock> {
        let own = self.held.iter().filter(|held| held.owner == lock.owner && held.family == lock.family);
        let higher = own.filter(|held| held.exclusive && !lock.exclusive);
        let cut =
            higher.map(|held| Lock { start: held.start.max(lock.start), last: held.last.min(lock.last), ..*lock });
        cut.filter(|cut| cut.start <= cut.last).collect()
    }
}

#[derive(Default)]
struct Counts {
    granted: u64,
    refused: u64,
    broken_off: u64,
}

struct Told {
    files: Vec<File>,
    counts: Counts,
}

/// One owner of locks.
struct Program {
    client: Client,
    owner: u64,
    world: World,
    told: Arc<Mutex<Told>>,
    dice: Dice,
}

impl Program {
    async fn run(mut self, steps: u64) {
        for _ in 0..steps {
            let began = self.world.now();
            let number = self.dice.below(FILES as u64) as usize;
            let lock = self.any_lock();
            match self.dice.below(10) {
                0..=2 => self.lock(number, lock).await,
                3 | 4 => self.lock_waiting(number, lock).await,
                5 | 6 => self.unlock(number, lock).await,
                7 => self.close(number).await,
                8 => self.look(number).await,
                _ => self.world.sleep(Duration::from_micros(self.dice.below(1 << 19))).await,
            }
            assert!(self.world.now() - began < CALL_MAX, "a call took too long");
        }
        for number in 0..FILES {
            self.close(number).await;
        }
    }

    fn any_lock(&mut self) -> Lock {
        let (owner, exclusive) = (self.client.lock_owner(self.owner), self.dice.coin());
        if self.dice.below(3) == 0 {
            return Lock { family: LockFamily::Flock, owner, pid: 1, exclusive, start: 0, last: u64::MAX };
        }
        let start = self.dice.below(BYTES);
        let last = start + self.dice.below(BYTES - start);
        Lock { family: LockFamily::Posix, owner, pid: 1, exclusive, start, last }
    }

    fn inode(&self, number: usize) -> InodeId {
        self.told.lock().unwrap().files[number].inode
    }

    /// The outcome of a call that asks for a lock.
    fn asked(&self, number: usize, lock: Lock, outcome: Result<(), ClientError>) {
        let mut told = self.told.lock().unwrap();
        match outcome {
            Ok(()) => {
                told.counts.granted += 1;
                let held = &mut told.files[number].held;
                let conflict = held.conflicts(&lock).next();
                assert!(conflict.is_none(), "file {number}: {lock:?} is granted, but held is {conflict:?}");
                held.take(lock);
            }
            Err(ClientError::Manager(ManagerError::Locked | ManagerError::Deadlock)) => told.counts.refused += 1,
            Err(error) => panic!("nothing fails: {error}"),
        }
    }

    async fn lock(&self, number: usize, lock: Lock) {
        let inode = self.inode(number);
        {
            let mut told = self.told.lock().unwrap();
            let file = &mut told.files[number];
            for lower in file.lowered(&lock) {
                file.give(&lower, Some(lower));
            }
        }
        let outcome = self.client.lock(inode, lock).await;
        self.asked(number, lock, outcome);
    }

    async fn lock_waiting(&mut self, number: usize, lock: Lock) {
        let inode = self.inode(number);
        {
            // An interrupted call leaves to chance what its owner held of the range.
            let mut told = self.told.lock().unwrap();
            told.files[number].give(&lock, None);
        }
        let magnitude = self.dice.within(10..34);
        let patience = self.world.sleep(Duration::from_nanos(self.dice.below(1 << magnitude)));
        let (client, world) = (self.client.clone(), self.world.clone());
        let outcome = match select(pin!(client.lock_waiting(0, inode, lock)), pin!(patience)).await {
            Either::Left((outcome, _)) => Some(outcome),
            Either::Right(_) => None,
        };
        match outcome {
            Some(outcome) => self.asked(number, lock, outcome),
            None => self.told.lock().unwrap().counts.broken_off += 1,
        }
        drop(world);
    }

    async fn unlock(&self, number: usize, range: Lock) {
        let inode = self.inode(number);
        self.told.lock().unwrap().files[number].give(&range, None);
        self.client.unlock(inode, range).await.expect("nothing fails");
    }

    async fn close(&self, number: usize) {
        let (inode, owner) = (self.inode(number), self.client.lock_owner(self.owner));
        {
            let mut told = self.told.lock().unwrap();
            told.files[number].given += 1;
            told.files[number].held.release_owners(|held| held == owner);
        }
        self.client.release_owner(inode, owner).await.expect("nothing fails");
    }

    /// What others hold all the while stands in the way.
    async fn look(&mut self, number: usize) {
        let lock = Lock { exclusive: true, start: 0, last: u64::MAX, ..self.any_lock() };
        let seen = |told: &Told| {
            let file = &told.files[number];
            (file.given, file.held.conflicts(&lock).copied().collect::<Vec<_>>())
        };
        let (given, before) = seen(&self.told.lock().unwrap());
        let conflict = self.client.test_lock(self.inode(number), lock).await.expect("nothing fails");
        let (given_then, _) = seen(&self.told.lock().unwrap());
        if given == given_then && !before.is_empty() {
            assert!(conflict.is_some(), "file {number}: nothing stands in the way, but held is {before:?}");
        }
    }
}

async fn make_files(client: &Client) -> Vec<File> {
    let mut files = Vec::new();
    for number in 0..FILES {
        let name = Bytes::from(format!("locked-{number}"));
        let inode = client.create_open(InodeId::ROOT, name, plain()).await.expect("the name is new").inode;
        files.push(File { inode, held: HeldLocks::default(), given: 0 });
    }
    files
}

/// Nobody holds anything any more: whoever comes gets everything at once.
async fn nothing_is_held(client: Client, files: Vec<InodeId>) {
    for inode in files {
        for family in [LockFamily::Flock, LockFamily::Posix] {
            let owner = client.lock_owner(1 << 40);
            let all = Lock { family, owner, pid: 1, exclusive: true, start: 0, last: u64::MAX };
            let conflict = client.test_lock(inode, all).await.expect("nothing fails");
            assert_eq!(conflict, None, "a lock that nobody holds");
            client.lock(inode, all).await.expect("nobody holds it");
        }
    }
}

async fn tell_a_story(world: World, clients_die: bool, told: Arc<Mutex<Told>>) {
    let mut dice = world.dice();
    let mut machines = Machines::start(&world, MANAGERS.len(), 2 + dice.below(2) as u32).await;
    let (node, client) = machines.client(0);
    let files = world.spawn(&world.host(node), async move { make_files(&client).await }).await.unwrap();
    told.lock().unwrap().files = files;
    disturb(&world, &mut dice);
    let mut owners = 0;
    for _ in 0..3 {
        let mut programs = Vec::new();
        for number in 0..machines.clients() {
            let (node, client) = machines.client(number);
            for _ in 0..1 + dice.below(3) {
                owners += 1;
                let (client, told, world) = (client.clone(), told.clone(), world.clone());
                let program =
                    Program { client, owner: owners, told, dice: Dice::new(dice.roll()), world: world.clone() };
                programs.push((node, world.spawn(&world.host(node), program.run(40))));
            }
        }
        world.sleep(Duration::from_millis(dice.below(3000))).await;
        let mut dying = vec![*dice.pick(&MANAGERS).unwrap()];
        if clients_die && dice.coin() {
            dying.push(machines.client(dice.below(u64::from(machines.clients())) as u32).0);
        }
        for &node in &dying {
            machines.die(node, &mut dice).await;
            for file in &mut told.lock().unwrap().files {
                file.given += 1;
                file.held.release_owners(|held| held.node == node.0);
            }
        }
        for (node, program) in programs {
            assert!(program.await.is_ok() || dying.contains(&node), "only programs of a machine that died are gone");
        }
        for node in dying {
            machines.come_back(node).await;
        }
    }
    world.dismiss_judge();
    // What was broken off is given back, and what the dead held is given up, within moments.
    world.sleep(Duration::from_secs(10)).await;
    let (node, client) = machines.client(0);
    let files = told.lock().unwrap().files.iter().map(|file| file.inode).collect();
    world.spawn(&world.host(node), nothing_is_held(client, files)).await.expect("nobody dies any more");
}

fn explore(clients_die: bool) {
    let told = Arc::new(Mutex::new(Told { files: Vec::new(), counts: Counts::default() }));
    let worlds = sim::explore(sim::seeds(8), async |world, _| tell_a_story(world, clients_die, told.clone()).await);
    let Counts { granted, refused, broken_off } = told.lock().unwrap().counts;
    println!("{worlds} worlds: {granted} locks granted, {refused} refused, {broken_off} no longer waited for");
    assert!(granted > worlds * 100 && refused > worlds * 10 && broken_off > worlds, "there is something to check");
}

#[test]
fn file_locks_outlive_their_manager() {
    explore(false);
}

#[test]
fn file_locks_of_the_dead_and_of_no_others_are_given_up() {
    explore(true);
}

/// The last close finds what its owner holds, though a close came while a thread waited for it.
async fn close_beside_a_waiter(world: World) {
    let machines = Machines::start(&world, 1, 2).await;
    let ((node, client), (other_node, other)) = (machines.client(0), machines.client(1));
    let make = client.clone();
    let file = world.spawn(&world.host(node), async move { make_files(&make).await }).await.unwrap().remove(0).inode;
    let lock = |client: &Client, owner| {
        let (family, owner) = (LockFamily::Posix, client.lock_owner(owner));
        Lock { family, owner, pid: 1, exclusive: true, start: 0, last: u64::MAX }
    };
    let held = lock(&other, 1);
    let holding = other.clone();
    world.spawn(&world.host(other_node), async move { holding.lock(file, held).await }).await.unwrap().unwrap();
    // Two threads of a process: one waits with the first of its descriptors, one closes the second.
    let owner = LockOwner(7);
    let [waiting, closing] = [machines.kernel(0), machines.kernel(0)];
    let waiter = world.spawn(&world.host(node), async move { waiting.lock(file, owner, Handle(10)).await });
    world.sleep(Duration::from_secs(1)).await;
    let close = async move |handle| closing.flush(file, owner, handle).await.expect("it is closed");
    let closer = close.clone();
    world.spawn(&world.host(node), async move { closer(Handle(11)).await }).await.unwrap();
    let giving = other.clone();
    world.spawn(&world.host(other_node), async move { giving.unlock(file, held).await }).await.unwrap().unwrap();
    waiter.await.unwrap().expect("it is granted");
    let conflict = other.clone();
    let conflict = world.spawn(&world.host(other_node), async move { conflict.test_lock(file, held).await });
    assert!(conflict.await.unwrap().unwrap().is_some(), "who waited holds it");
    world.spawn(&world.host(node), async move { close(Handle(10)).await }).await.unwrap();
    world.spawn(&world.host(other_node), nothing_is_held(other, vec![file])).await.unwrap();
}

#[test]
fn a_lock_that_was_granted_behind_a_close_goes_with_the_next() {
    sim::explore(0..8, async |world, _| close_beside_a_waiter(world).await);
}
