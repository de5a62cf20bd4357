//! The danger: the maps are lost, and with them the file system, though every byte is on the disks; or maps that are made anew
//! lose or mix what was fsynced.
//!
//! The whole daemon runs in the simulated world, life after life. Between two lives the copies of the registry are damaged, and
//! it is rebuilt from what is left: one copy of several, one of a former life, none. Power is lost on the way. What the witness
//! was promised is there afterwards, and all records agree. `DAZZLE_SEEDS` sets how many worlds each story has, `DAZZLE_SEED`
//! replays one.

use std::cell::Cell;

use bytes::Bytes;
use host::Host;
use host::sim::{self, Dice, SimDisk, Stop, World};
use roles::rebuild::NotRebuilt;
use testbed::{Counts, Shape, Site, Witness};

const LIVES: u64 = 4;
const SPACES: [&str; 3] = ["registry.0", "registry.1", "registry.log"];

/// What is left of the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// One, as it is.
    One,
    /// One of a former life.
    Old,
    /// None.
    Nothing,
    /// Bits and pieces.
    Pieces,
}

/// A copy as it was once.
type Copy = Vec<(&'static str, Bytes)>;

async fn copy(disk: &SimDisk) -> Copy {
    let mut copy = Vec::new();
    for space in SPACES {
        let file = disk.plug().open(space).expect("the disk is well");
        let size = file.size().expect("the disk is well") as usize;
        copy.push((space, file.read(0, size).await.expect("the disk is well")));
    }
    copy
}

async fn write(disk: &SimDisk, space: &'static str, bytes: Bytes) {
    let file = disk.plug().open(space).expect("the disk is well");
    file.write(0, vec![bytes]).await.expect("the disk is well");
    file.sync().await.expect("the disk is well");
}

/// Writes zeros, or rubbish, over a copy.
async fn ruin(disk: &SimDisk, dice: &mut Dice) {
    for (space, bytes) in copy(disk).await {
        let mut rubbish = vec![0; bytes.len()];
        if dice.coin() {
            rubbish.iter_mut().for_each(|byte| *byte = dice.roll() as u8);
        }
        write(disk, space, rubbish.into()).await;
    }
}

/// Ruins some of the spaces of a copy, and some sectors of others.
async fn break_up(disk: &SimDisk, dice: &mut Dice) {
    for (space, bytes) in copy(disk).await {
        let mut bytes = bytes.to_vec();
        if dice.below(3) == 0 {
            bytes.fill(0);
        }
        for _ in 0..dice.below(3) {
            let at = dice.below(bytes.len().max(1) as u64) as usize;
            bytes.iter_mut().skip(at).take(512).for_each(|byte| *byte = !*byte);
        }
        write(disk, space, bytes.into()).await;
    }
}

async fn harm(site: &Site, left: Left, old: &Copy, dice: &mut Dice) {
    let spared = dice.below(site.disks().len() as u64) as usize;
    let spared = if site.disks()[spared].plug().usage().is_ok() { spared } else { 0 };
    for (index, disk) in site.disks().iter().enumerate().filter(|(_, disk)| disk.plug().usage().is_ok()) {
        match left {
            Left::Pieces => break_up(disk, dice).await,
            Left::One if index == spared => {}
            Left::One | Left::Old | Left::Nothing => ruin(disk, dice).await,
        }
    }
    if left == Left::Old {
        for (space, bytes) in old {
            write(&site.disks()[spared], space, bytes.clone()).await;
        }
    }
}

/// A kind of world.
struct Story {
    shape: Shape,
    left: Left,
    /// How many targets are lost too, at most.
    losses: u64,
    /// Operations of one life, at most.
    work: u64,
}

impl Story {
    fn of(shape: Shape, left: Left) -> Story {
        Story { shape, left, losses: 0, work: 150 }
    }
}

fn explore(default: u64, story: impl Fn(&mut Dice) -> Story) {
    let rebuilt = Cell::new(0);
    let total = Cell::new(Counts::default());
    let count = sim::explore(sim::seeds(default), async |world, host| {
        let story = story(&mut world.dice());
        let (counts, times) = lives(world, host, story).await;
        rebuilt.set(rebuilt.get() + times);
        let before = total.get();
        total.set(Counts { files_compared: before.files_compared + counts.files_compared, ..before });
    });
    println!("{count} seeds, rebuilt {} times, {} files compared", rebuilt.get(), total.get().files_compared);
    assert!(rebuilt.get() > 0 || std::env::var_os("DAZZLE_SEED").is_some(), "something was rebuilt");
}

async fn lives(world: World, host: Host, mut story: Story) -> (Counts, u64) {
    let (mut dice, left) = (world.dice(), story.left);
    let site = Site::create(&world, &host, story.shape).await;
    let mut parts = site.start().await;
    let mut witness = Witness::new();
    let (mut old, mut rebuilt) = (copy(&site.disks()[0]).await, 0);
    for life in 0..LIVES {
        witness.live(&world, &parts.client, &mut dice, story.work).await;
        let stop = if dice.coin() { Stop::Kill } else { Stop::PowerLoss };
        site.reboot(stop);
        if story.losses > 0 && dice.coin() {
            story.losses -= 1;
            // Not the first, of which the old copy is.
            site.disks()[1 + story.losses as usize].fail();
        }
        if life > 0 && dice.coin() {
            harm(&site, left, &old, &mut dice).await;
            match site.plan_rebuild().await {
                Ok(_) => {
                    site.rebuild(stop, &mut dice).await;
                    rebuilt += 1;
                }
                // What was broken was not needed.
                Err(NotRebuilt::Sound) if matches!(left, Left::One | Left::Pieces) => {}
                Err(error) => panic!("with {left:?} left it cannot be rebuilt: {error}"),
            }
        } else if dice.coin() {
            old = copy(&site.disks()[0]).await;
        }
        parts = site.start().await;
        witness.testify(&parts.client, stop).await;
        parts.audit().await;
    }
    (witness.counts(), rebuilt)
}

fn any_shape(dice: &mut Dice) -> Shape {
    let (targets, parity) = *dice.pick(&[(5, 1), (3, 1), (2, 1), (1, 0), (6, 2)]).expect("there are some");
    let shape = Shape::new(targets, parity);
    if dice.below(3) == 0 { shape } else { shape.with_small_stripes() }
}

#[test]
fn one_copy_of_many_is_enough() {
    explore(40, |dice| Story::of(any_shape(dice), Left::One));
}

#[test]
fn a_copy_of_a_former_life_is_completed_from_fragments() {
    explore(100, |dice| Story::of(any_shape(dice), Left::Old));
}

#[test]
fn without_any_copy_fragments_tell_everything() {
    explore(200, |dice| Story::of(any_shape(dice), Left::Nothing));
}

#[test]
fn targets_that_are_lost_too_take_nothing_with_them() {
    let any_left = |dice: &mut Dice| *dice.pick(&[Left::One, Left::Old, Left::Nothing, Left::Pieces]).expect("some");
    explore(60, |dice| Story { losses: 1, ..Story::of(Shape::new(5, 1).with_small_stripes(), any_left(dice)) });
    explore(40, |dice| Story { losses: 2, ..Story::of(Shape::new(6, 2).with_small_stripes(), any_left(dice)) });
}

#[test]
fn what_was_cleaned_since_is_not_missed() {
    explore(40, |dice| {
        let shape = Shape::new(5, 1).with_small_disks(dice.within(20..40));
        let left = if dice.coin() { Left::Nothing } else { Left::Old };
        Story { work: 1500, ..Story::of(shape, left) }
    });
}

#[test]
fn what_can_be_read_of_damaged_copies_is_completed() {
    explore(60, |dice| Story::of(any_shape(dice), Left::Pieces));
}
