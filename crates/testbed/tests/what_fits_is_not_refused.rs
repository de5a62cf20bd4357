//! The danger: what lives fits well, and a program is told that there is no room, because cleaning lags behind writing.
//!
//! One program rewrites its files at random on small disks, as fast as it can, with many an fsync: those take room beyond
//! their bytes. `DAZZLE_SEEDS` sets how many worlds are tried, `DAZZLE_SEED` replays one.

use std::cell::Cell;

use bytes::Bytes;
use client::{Client, WriteAt};
use host::sim;
use protocol::file::{Caller, Kind, NewInode};
use protocol::id::InodeId;
use testbed::{Shape, Site};

/// A quarter of the room lives.
const FILES: u64 = 40;
const FILE_BYTES_MAX: u64 = 200_000;
const REWRITES: u64 = 1500;

#[test]
fn what_fits_is_not_refused() {
    let written = Cell::new(0);
    let count = sim::explore(sim::seeds(10), async |world, host| {
        let mut dice = world.dice();
        let shape = Shape::new(5, 1).with_small_disks(dice.within(80..100));
        let parts = Site::create(&world, &host, shape).await.start().await;
        let client = &parts.client;
        let mut files = Vec::new();
        for number in 0..FILES {
            files.push(create(client, number).await);
        }
        for rewrite in 0..REWRITES {
            let file = *dice.pick(&files).expect("there are some");
            let length = if dice.coin() { 5_000 } else { dice.below(FILE_BYTES_MAX) };
            let offset = dice.below(FILE_BYTES_MAX - length);
            let bytes = Bytes::from(vec![rewrite as u8; length as usize]);
            client.write(file, WriteAt::Offset(offset), bytes).await.expect("it fits");
            if dice.below(3) > 0 {
                client.fsync(file, false).await.expect("it fits, and is stored");
            }
            written.set(written.get() + length);
        }
        client.sync_all().await.expect("it all fits");
    });
    println!("{count} seeds, {} MB written, nothing refused", written.get() / 1_000_000);
}

async fn create(client: &Client, number: u64) -> InodeId {
    let (mode, mask, target) = (0o644, 0, Bytes::new());
    let plain = NewInode { kind: Kind::File, mode, mask, device: 0, target, caller: Caller::default() };
    client.create(InodeId::ROOT, Bytes::from(format!("file-{number}")), plain).await.expect("it is new").inode
}
