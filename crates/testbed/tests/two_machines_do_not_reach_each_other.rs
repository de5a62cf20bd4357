//! The link between two machines is cut, and both reach the others. The dangers: calls that need both wait for the link; slots that
//! come to one of them are answered for by nobody, because it cannot hear what the other's client holds; one of them, or both, lose
//! their leases over it.

use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientError, WriteAt};
use futures_util::future::join_all;
use host::Host;
use host::sim::{self, Stop, World};
use protocol::file::{Caller, Kind, NewInode};
use protocol::id::InodeId;

use crate::rack::{Rack, Shape};

/// How often everybody makes, writes and reads.
const ROUNDS: usize = 6;
/// No call takes longer where a link is cut: a call over it fails after a second, and the next one goes around.
const CUT_MAX: Duration = Duration::from_secs(2);
/// Nor where a machine dies, too: that is found within a lease, and its slots are answered for soon after.
const DEATH_MAX: Duration = Duration::from_secs(6);

fn new_inode(kind: Kind) -> NewInode {
    let caller = Caller { uid: 0, gid: 0 };
    NewInode { kind, mode: 0o755, mask: 0, device: 0, target: Bytes::new(), caller }
}

fn content(writer: usize, round: usize) -> Bytes {
    Bytes::from(format!("machine {writer}, round {round}, ").repeat(1000))
}

/// The outcome of a call, which comes within a time.
async fn soon<T>((host, most): (&Host, Duration), call: impl Future<Output = Result<T, ClientError>>) -> T {
    let begun = host.now();
    let outcome = call.await.expect("nothing is wrong with it");
    assert!(host.now() - begun < most, "a call waits for {:?}", host.now() - begun);
    outcome
}

/// What a machine does in a round: it overwrites its own file, reads those of all, and makes a name in a directory that all use.
/// `last` tells in which round each machine worked last, or works.
async fn work(client: &Client, clock: (&Host, Duration), own: usize, files: &[InodeId], last: &[usize]) {
    let name = Bytes::from(format!("{own}-{}", last[own]));
    soon(clock, client.create(InodeId::ROOT, name, new_inode(Kind::Directory))).await;
    soon(clock, client.write(files[own], WriteAt::Offset(0), content(own, last[own]))).await;
    soon(clock, client.fsync(files[own], false)).await;
    for (other, file) in files.iter().enumerate() {
        let read = soon(clock, client.read(*file, 0, 1 << 20)).await.concat();
        let known = [last[other].saturating_sub(1), last[other]].map(|round| content(other, round));
        let is_known = known.iter().any(|known| read == known[..]) || read.is_empty() && last[other] == 0;
        assert!(is_known, "machine {own} reads what {other} did not write last, round {}", last[own]);
    }
}

async fn tell_a_story((world, host): (World, Host), machines: usize, most: Duration) {
    let mut dice = world.dice();
    let rack = Rack::create(&world, &host, Shape::new(vec![1; machines], 1, Duration::from_secs(600))).await;
    let files = make_files(&world, &rack).await;
    let one = dice.below(machines as u64) as usize;
    let other = (one + 1 + dice.below(machines as u64 - 1) as usize) % machines;
    let mut alive: Vec<usize> = (0..machines).collect();
    let dies = alive.iter().copied().find(|index| ![one, other].contains(index)).filter(|_| machines > 3);
    world.cut(rack.node(one), rack.node(other));
    let mut last = vec![0; machines];
    for round in 0..ROUNDS {
        if let (true, Some(dies)) = (round == ROUNDS / 2, dies) {
            rack.crash(dies, Stop::PowerLoss);
            alive.retain(|index| *index != dies);
        }
        alive.iter().for_each(|&index| last[index] = round);
        let working = alive.iter().map(|&index| {
            let (client, there) = (rack.roles(index).expect("it runs").client.clone(), world.host(rack.node(index)));
            let (files, last) = (files.clone(), last.clone());
            world.spawn(&there.clone(), async move { work(&client, (&there, most), index, &files, &last).await })
        });
        for worked in join_all(working).await {
            worked.expect("nobody else dies");
        }
    }
    for index in alive {
        assert_eq!(rack.ended(index), None, "its lease goes on");
    }
}

async fn make_files(world: &World, rack: &Rack) -> Vec<InodeId> {
    let client = rack.roles(0).expect("it runs").client.clone();
    let (count, there) = (rack.count(), world.host(rack.node(0)));
    let made = world.spawn(&there, async move {
        let make = async |index| {
            let name = Bytes::from(format!("file-{index}"));
            client.create(InodeId::ROOT, name, new_inode(Kind::File)).await.expect("the name is new").inode
        };
        join_all((0..count).map(make)).await
    });
    made.await.expect("nothing disturbs it")
}

#[test]
fn nobody_notices_that_two_machines_do_not_reach_each_other() {
    sim::explore(0..12, async |world, host| tell_a_story((world, host), 3, CUT_MAX).await);
}

#[test]
fn slots_come_to_machines_that_do_not_reach_each_other() {
    sim::explore(0..12, async |world, host| tell_a_story((world, host), 5, DEATH_MAX).await);
}
