//! The danger: what lives fits well, and a program is told that there is no room, because cleaning lags behind writing.
//!
//! Programs rewrite their files at random on small disks, as fast as they can, with many an fsync: those take room beyond
//! their bytes. `DAZZLE_SEEDS` sets how many worlds are tried, `DAZZLE_SEED` replays one.

use std::cell::Cell;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, WriteAt};
use futures_util::future::join_all;
use host::sim::{self, Dice, World};
use protocol::file::{Caller, Kind, NewInode};
use protocol::id::InodeId;
use testbed::{Machines, Shape, Site};

const FILES: u64 = 40;
const FILE_BYTES_MAX: u64 = 200_000;

/// A program that rewrites its own files.
struct Program<'a> {
    client: &'a Client,
    dice: Dice,
    files: Vec<InodeId>,
    written: u64,
}

impl Program<'_> {
    async fn begin<'a>(client: &'a Client, world: &World, name: &str) -> Program<'a> {
        let mut made = Vec::new();
        for number in 0..FILES {
            made.push(create(client, format!("{name}-{number}")).await);
        }
        Program { client, dice: world.dice(), files: made, written: 0 }
    }

    async fn rewrite(&mut self, times: u64) -> u64 {
        for time in 0..times {
            let file = *self.dice.pick(&self.files).expect("there are some");
            let length = if self.dice.coin() { 5_000 } else { self.dice.below(FILE_BYTES_MAX) };
            let offset = self.dice.below(FILE_BYTES_MAX - length);
            let bytes = Bytes::from(vec![time as u8; length as usize]);
            self.client.write(file, WriteAt::Offset(offset), bytes).await.expect("it fits");
            if self.dice.below(3) > 0 {
                self.client.fsync(file, false).await.expect("it fits, and is stored");
            }
            self.written += length;
        }
        self.client.sync_all().await.expect("it all fits");
        self.written
    }
}

#[test]
fn what_fits_is_not_refused() {
    let written = Cell::new(0);
    let count = sim::explore(sim::seeds(40), async |world, host| {
        // A third of the room lives.
        let shape = Shape::new(5, 1).with_small_disks(world.dice().within(80..100));
        let parts = Site::create(&world, &host, shape).await.start().await;
        let mut program = Program::begin(&parts.client, &world, "file").await;
        written.set(written.get() + program.rewrite(1500).await);
    });
    println!("{count} seeds, {} MB written, nothing refused", written.get() / 1_000_000);
}

#[test]
fn what_fits_is_not_refused_where_several_write() {
    let written = Cell::new(0);
    let count = sim::explore(sim::seeds(10), async |world, _| {
        let machines = Machines::create(&world, &[2, 2, 2], Duration::from_secs(600)).await;
        // As above: no more than 24 MB of 80 live.
        machines.limit(world.dice().within(80..100));
        let all = [machines.start(0).await, machines.join(1).await, machines.join(2).await];
        let clients =
            [machines.client(0, &all[0]).await, machines.client(1, &all[1]).await, machines.client(2, &all[2]).await];
        let mut programs = Vec::new();
        for (client, name) in clients.iter().zip(["one", "two", "three"]) {
            programs.push(Program::begin(client, &world, name).await);
        }
        let rewritten = join_all(programs.iter_mut().map(|program| program.rewrite(1500))).await;
        written.set(written.get() + rewritten.iter().sum::<u64>());
    });
    println!("{count} seeds, {} MB written, nothing refused", written.get() / 1_000_000);
}

async fn create(client: &Client, name: String) -> InodeId {
    let (mode, mask, target) = (0o644, 0, Bytes::new());
    let plain = NewInode { kind: Kind::File, mode, mask, device: 0, target, caller: Caller::default() };
    client.create(InodeId::ROOT, name.into(), plain).await.expect("it is new").inode
}
