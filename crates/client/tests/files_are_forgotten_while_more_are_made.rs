//! Files are made, written and closed without a pause, while a manager may be slow: the client knows those of the last few
//! seconds, however many there were before. And what waits to be written out stays within its bound, when it is many
//! small files as well as when it is a large one.
//!
//! Danger: a file that somebody holds is not forgotten. Whoever held files while waiting, for a manager or for a target,
//! would keep them all as long as more are made, for then somebody always waits (`docs/bugs-found.md`, found at full
//! size). One thread runs this world, so holding files for a moment on another does not show here.

use std::time::Duration;

use bytes::Bytes;
use client::{Client, WriteAt};
use host::sim::{self, Dice, DiskOptions, World};
use host::{Host, Moment};
use protocol::id::InodeId;

use crate::support::{DIRTY_BYTES, Site, plain_file};

/// How long files are made.
const MAKING: Duration = Duration::from_secs(200);
/// How long a file may be known: five seconds until it is written out, sendings of up to three seconds until a slow manager
/// knows, two looks.
const KNOWN: Duration = Duration::from_secs(20);
const PROGRAMS: u64 = 20;

/// Makes files one after the other; tells how many.
async fn make_files(client: Client, host: Host, (program, mut dice): (u64, Dice), until: Moment) -> u64 {
    let mut made = 0;
    while host.now() < until {
        let name = Bytes::from(format!("{program}-{made}"));
        let file = client.create_open(InodeId::ROOT, name, plain_file()).await.expect("the name is new").inode;
        let bytes = Bytes::from(vec![made as u8; 1 + dice.below(3000) as usize]);
        client.write(file, WriteAt::End, bytes).await.expect("there is room");
        if dice.below(50) == 0 {
            client.fsync(file, false).await.expect("there is room");
        }
        client.close(file).await;
        made += 1;
        host.sleep(Duration::from_millis(dice.below(200))).await;
    }
    made
}

async fn watch_files(world: World, host: Host) {
    let site = Site::start(&world, &host, DiskOptions::default()).await;
    let mut dice = world.dice();
    if dice.coin() {
        site.manager.delay(Duration::from_millis(1500));
    }
    let client = site.client().await;
    let until = host.now() + MAKING;
    let start = |program| {
        let dice = Dice::new(dice.roll());
        world.spawn(&host, make_files(client.clone(), host.clone(), (program, dice), until))
    };
    let programs: Vec<_> = (0..PROGRAMS).map(start).collect();
    let mut known_max = 0;
    while host.now() < until {
        host.sleep(Duration::from_millis(500)).await;
        let memory = client.memory();
        known_max = known_max.max(memory.inodes);
        assert!(memory.bytes_dirty <= DIRTY_BYTES as u64 + PROGRAMS * (8 << 10), "{memory:?}");
    }
    let mut made = 0;
    for program in programs {
        made += program.await.expect("nobody stops the node");
    }
    let share = KNOWN.as_secs_f64() / MAKING.as_secs_f64();
    assert!(known_max as f64 <= made as f64 * share, "{known_max} known at a time, of {made}");
    host.sleep(KNOWN).await;
    assert_eq!((client.memory().inodes, client.memory().bytes_dirty), (0, 0));
    client.stop().await.expect("everything can be written");
}

#[test]
fn files_are_forgotten_while_more_are_made() {
    sim::explore(0..6, watch_files);
}
