//! The danger: the manager that knows who has a file open dies, and its successor frees one that lost its last name though
//! somebody reads and writes it; or keeps for ever what nobody has open.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientError, WriteAt};
use host::sim::{self, Dice, World};
use protocol::id::InodeId;
use protocol::manager::ManagerError;

use super::machines::{MANAGERS, Machines};
use super::{disturb, plain};

const BYTES: usize = 9000;
/// Within so long what nobody has open is freed, once all managers live.
const FREED_MAX: Duration = Duration::from_secs(15);

/// What programs know of each other's files.
#[derive(Default)]
struct Told {
    /// What is in each file.
    files: BTreeMap<InodeId, u8>,
    made: u64,
    reads: u64,
    reads_unnamed: u64,
}

/// A file that a program has open.
struct Mine {
    inode: InodeId,
    name: Option<Bytes>,
}

struct Program {
    client: Client,
    world: World,
    told: Arc<Mutex<Told>>,
    dice: Dice,
    open: Vec<Mine>,
}

impl Program {
    async fn run(mut self, steps: u64) {
        for _ in 0..steps {
            match self.dice.below(12) {
                0 | 1 => self.make().await,
                2 => self.open_another().await,
                3 | 4 => self.unlink().await,
                5..=8 => self.read().await,
                9 => self.close().await,
                _ => self.world.sleep(Duration::from_micros(self.dice.below(1 << 20))).await,
            }
        }
        while !self.open.is_empty() {
            self.read().await;
            self.unlink().await;
            self.close().await;
        }
    }

    async fn make(&mut self) {
        let number = {
            let mut told = self.told.lock().unwrap();
            told.made += 1;
            told.made
        };
        let name = self.dice.coin().then(|| Bytes::from(format!("open-{number}")));
        let made = match name.clone() {
            Some(name) => self.client.create_open(InodeId::ROOT, name, plain()).await,
            None => self.client.create_unnamed(InodeId::ROOT, plain()).await,
        };
        let inode = made.expect("the name is new").inode;
        let bytes = Bytes::from(vec![number as u8; BYTES]);
        self.client.write(inode, WriteAt::Offset(0), bytes).await.expect("there is room");
        self.client.fsync(inode, false).await.expect("it is stored");
        self.told.lock().unwrap().files.insert(inode, number as u8);
        self.open.push(Mine { inode, name });
    }

    /// Opens a file that another program made, while it is there.
    async fn open_another(&mut self) {
        let files: Vec<InodeId> = self.told.lock().unwrap().files.keys().copied().collect();
        let Some(&inode) = self.dice.pick(&files) else { return };
        match self.client.open(inode).await {
            Ok(_) => self.open.push(Mine { inode, name: None }),
            Err(ClientError::Manager(ManagerError::Stale | ManagerError::NotFound)) => {}
            Err(error) => panic!("nothing else fails: {error}"),
        }
    }

    async fn unlink(&mut self) {
        let named = self.open.iter_mut().find_map(|mine| mine.name.take());
        if let Some(name) = named {
            self.client.unlink(InodeId::ROOT, name).await.expect("it has its name");
        }
    }

    async fn read(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let mine = &self.open[self.dice.below(self.open.len() as u64) as usize];
        let read = self.client.read(mine.inode, 0, 2 * BYTES as u32).await;
        let bytes = read.unwrap_or_else(|error| panic!("{:?} is open: {error}", mine.inode)).concat();
        let mut told = self.told.lock().unwrap();
        let value = told.files[&mine.inode];
        assert!(bytes == vec![value; BYTES], "{:?} has {} bytes", mine.inode, bytes.len());
        told.reads += 1;
        told.reads_unnamed += u64::from(mine.name.is_none());
    }

    async fn close(&mut self) {
        // A file that keeps its name is closed by whoever unlinked it.
        let Some(at) = self.open.iter().position(|mine| mine.name.is_none()) else { return };
        let mine = self.open.swap_remove(at);
        self.client.close(mine.inode).await;
    }
}

/// How many inodes there are.
async fn inodes(client: &Client) -> u64 {
    let told = client.statfs().await.expect("the managers answer");
    told.inodes_total - told.inodes_free
}

/// Removes what the dead left; then there is the root, and nothing else.
async fn nothing_is_left(client: Client, world: World) {
    let (entries, is_all) = client.list(InodeId::ROOT, 0, 10_000, false).await.expect("it can be listed");
    assert!(is_all);
    for entry in entries {
        client.unlink(InodeId::ROOT, entry.name).await.expect("it has its name");
    }
    let until = world.now() + FREED_MAX;
    while inodes(&client).await > 1 {
        assert!(world.now() < until, "{} inodes are left that nobody has open", inodes(&client).await - 1);
        world.sleep(Duration::from_millis(500)).await;
    }
}

async fn tell_a_story(world: World, clients_die: bool, told: Arc<Mutex<Told>>) {
    let mut dice = world.dice();
    let mut machines = Machines::start(&world, MANAGERS.len(), 2 + dice.below(2) as u32).await;
    told.lock().unwrap().files.clear();
    disturb(&world, &mut dice);
    for _ in 0..3 {
        let mut programs = Vec::new();
        for number in 0..machines.clients() {
            let (node, client) = machines.client(number);
            let (told, world) = (told.clone(), world.clone());
            let dice = Dice::new(dice.roll());
            let program = Program { client, told, world: world.clone(), dice, open: Vec::new() };
            programs.push((node, world.spawn(&world.host(node), program.run(60))));
        }
        world.sleep(Duration::from_millis(dice.below(3000))).await;
        let mut dying = vec![*dice.pick(&MANAGERS).unwrap()];
        if clients_die && dice.coin() {
            dying.push(machines.client(dice.below(u64::from(machines.clients())) as u32).0);
        }
        for &node in &dying {
            machines.die(node, &mut dice).await;
        }
        for (node, program) in programs {
            assert!(program.await.is_ok() || dying.contains(&node), "only programs of a machine that died are gone");
        }
        for node in dying {
            machines.come_back(node).await;
        }
    }
    world.dismiss_judge();
    let (node, client) = machines.client(0);
    world.spawn(&world.host(node), nothing_is_left(client, world.clone())).await.expect("nobody dies any more");
}

fn explore(clients_die: bool) {
    let told = Arc::new(Mutex::new(Told::default()));
    let worlds = sim::explore(sim::seeds(40), async |world, _| tell_a_story(world, clients_die, told.clone()).await);
    let told = told.lock().unwrap();
    println!(
        "{worlds} worlds: {} files, {} reads, {} of them without a name",
        told.made, told.reads, told.reads_unnamed
    );
    assert!(told.made > worlds * 20 && told.reads_unnamed > worlds * 20, "there is something to check");
}

#[test]
fn open_files_outlive_names_and_managers() {
    explore(false);
}

#[test]
fn files_that_only_the_dead_had_open_are_freed() {
    explore(true);
}
