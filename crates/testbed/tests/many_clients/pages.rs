//! The danger: a kernel goes on showing pages that others have overwritten, or that its own WRITE should have; or it waits for
//! a page whose reader waits for the call-back that drops it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use client::{Client, WriteAt};
use host::sim::{self, Dice, World};
use protocol::id::InodeId;

use super::history::{NOTHING, Register};
use super::kernel::{FILE_PAGES, Kernel, PAGE_BYTES};
use super::machines::Machines;
use super::{CALL_MAX, plain};

/// What happened to each page, and the newest value.
struct Told {
    pages: Vec<Register>,
    values: u64,
}

/// A program on one machine.
struct Program {
    kernel: Arc<Kernel>,
    node: u32,
    world: World,
    inode: InodeId,
    told: Arc<Mutex<Told>>,
    dice: Dice,
    /// It takes its time.
    slow: bool,
    /// Its machine loses its lease: it only looks, and ends once nothing can be seen any more.
    parts: bool,
}

impl Program {
    async fn run(mut self, steps: u64) {
        for _ in 0..steps {
            let page = self.dice.below(FILE_PAGES);
            let began = self.world.now();
            if !self.parts && self.dice.below(5) == 0 {
                self.write(page, began.0).await;
            } else {
                let value = match self.kernel.read(self.inode, page).await {
                    Err(_) if self.parts => return,
                    value => value.expect("it can be read"),
                };
                let time = began.0..self.world.now().0;
                if let Some(value) = value {
                    self.told.lock().unwrap().pages[page as usize].read(value, self.node, time);
                }
            }
            assert!(self.world.now() - began < CALL_MAX, "a call took too long");
            if self.dice.coin() {
                let magnitude = self.dice.within(if self.slow { 20..31 } else { 8..24 });
                self.world.sleep(Duration::from_nanos(self.dice.below(1 << magnitude))).await;
            }
        }
    }

    /// Writes to a page, and perhaps to some behind it.
    async fn write(&mut self, page: u64, began: u64) {
        let count = 1 + self.dice.below(FILE_PAGES - page);
        let values = {
            let mut told = self.told.lock().unwrap();
            let first = told.values + 1;
            told.values += count;
            first..first + count
        };
        for (page, value) in (page..).zip(values.clone()) {
            self.told.lock().unwrap().pages[page as usize].begin(value, self.node, began);
        }
        self.kernel.write(self.inode, page, values.clone()).await.expect("there is room");
        for (page, value) in (page..).zip(values) {
            self.told.lock().unwrap().pages[page as usize].end(value, self.world.now().0);
        }
    }
}

async fn make_file(client: &Client) -> InodeId {
    let made = client.create_open(InodeId::ROOT, Bytes::from_static(b"file"), plain()).await;
    let inode = made.expect("the name is new").inode;
    let zeros = Bytes::from(vec![0; (FILE_PAGES * PAGE_BYTES) as usize]);
    client.write(inode, WriteAt::Offset(0), zeros).await.expect("there is room");
    client.fsync(inode, false).await.expect("it is stored");
    inode
}

#[test]
fn no_kernel_shows_the_past() {
    sim::explore(0..300, async |world, _| tell_a_story(world, false).await);
}

/// A machine that stands still altogether is not among these stories: its kernel goes on before its client does.
#[test]
fn the_kernel_of_a_lost_lease_shows_nothing() {
    sim::explore(0..100, async |world, _| tell_a_story(world, true).await);
}

async fn tell_a_story(world: World, loses_lease: bool) {
    let mut dice = world.dice();
    let mut machines = Machines::start(&world, 1 + dice.below(2) as usize, 2 + dice.below(2) as u32).await;
    let (node, client) = machines.client(0);
    let made = world.spawn(&world.host(node), async move { make_file(&client).await });
    let inode = made.await.unwrap();
    let pages = (0..FILE_PAGES).map(|_| Register::default()).collect();
    let told = Arc::new(Mutex::new(Told { pages, values: NOTHING }));
    let parting = loses_lease.then(|| dice.below(u64::from(machines.clients())) as u32);
    let mut programs = Vec::new();
    for number in 0..machines.clients() {
        let (node, client) = machines.client(number);
        let opened = world.spawn(&world.host(node), async move { client.open(inode).await.map(drop) });
        opened.await.unwrap().expect("it is there");
        for _ in 0..1 + dice.below(3) {
            let (kernel, (node, _)) = (machines.kernel(number), machines.client(number));
            let (world, told, dice) = (world.clone(), told.clone(), Dice::new(dice.roll()));
            let parts = parting == Some(number);
            let program =
                Program { kernel, node: node.0, world: world.clone(), inode, told, dice, parts, slow: loses_lease };
            programs.push(world.spawn(&world.host(node), program.run(60)));
        }
    }
    if let Some(number) = parting {
        let node = machines.client(number).0;
        machines.part(node, false, &mut dice).await;
    }
    for program in programs {
        program.await.unwrap();
    }
    for (page, register) in told.lock().unwrap().pages.iter().enumerate() {
        let wrong = register.contradiction();
        assert!(wrong.is_none(), "seed {}, page {page}: {}", world.seed(), wrong.unwrap());
    }
}
