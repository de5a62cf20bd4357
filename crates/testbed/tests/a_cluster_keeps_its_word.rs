//! The danger: each part keeps its word, and all of them together do not: a registry that changes hands while slots are
//! handed over while a log is sealed while a frozen machine wakes up and writes.
//!
//! Three to twenty machines, each with all its roles as the daemon has them, are one cluster in the simulated world. Programs on
//! all of them share files, keep files and change names. `whole_cluster/harm.rs` says what is done to them meanwhile. In the
//! end every cell of every file must have a history that one file system can have; all that was fsynced must be there, bytes
//! and names, and what was not fsynced, where all machines stop together; some order must explain all names; redundancy must
//! come back; and a thorough check must find nothing, all within bounded time. `DAZZLE_SEEDS` says which worlds each story
//! has, `DAZZLE_SEED` replays one.

#[path = "whole_cluster/changes.rs"]
mod changes;
#[path = "whole_cluster/harm.rs"]
mod harm;
#[path = "many_clients/history.rs"]
mod history;
#[path = "../../manager/tests/linear/mod.rs"]
mod linear;
#[path = "whole_cluster/names.rs"]
mod names;
#[path = "whole_cluster/program.rs"]
mod program;
#[allow(dead_code, reason = "this test uses a part of the rack")]
#[path = "whole_cluster/rack.rs"]
mod rack;
#[path = "whole_cluster/story.rs"]
mod story;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::time::Duration;

use bytes::Bytes;
use client::WriteAt;
use futures_util::future::join_all;
use harm::{Blows, Harm};
use host::sim::{self, Crashed, Dice, World};
use host::{BoxFuture, Host};
use program::{Program, new_inode};
use protocol::file::Kind;
use protocol::id::InodeId;
use rack::{Life, Rack, Shape};
use story::{CELL_BYTES, CELLS, Confession, Counts, Told};

/// How long faults are made, of the world's time, at most.
const FAULTS_MAX: Duration = Duration::from_secs(25);
/// How soon after the last fault all daemons run and every target has all it should have.
const MENDED_MAX: Duration = Duration::from_secs(180);
/// How soon after the last fault machines and targets have come and gone that were to.
const CHANGED_MAX: Duration = Duration::from_secs(900);
/// How soon a machine that was promoted has begun: nobody refuses its calls, so it waits for answers that do not come.
const PROMOTED_MAX: Duration = Duration::from_secs(60);
/// How often a check is asked for.
const CHECKS_MAX: u32 = 4;
/// How soon everybody then has looked at everything.
const LOOK_MAX: Duration = Duration::from_secs(30);

fn shape(dice: &mut Dice) -> Shape {
    let machines = [3, 3, 3, 3, 3, 4, 4, 4, 5, 5, 5, dice.within(6..10)][dice.below(12) as usize];
    let targets = (0..machines).map(|_| [1, 1, 2, 3][dice.below(4) as usize]).collect();
    let parity = if machines > 3 && dice.coin() { 2 } else { 1 };
    let patience = Duration::from_secs(if dice.below(3) == 0 { 15 } else { 600 });
    // Where links are cut calls go around, which leaves less for the parts to cope with.
    Shape { has_byways: dice.coin(), ..Shape::new(targets, parity, patience) }
}

/// More machines than a stripe is wide, so that others take the places of those that are away for a moment.
fn wide_shape(dice: &mut Dice) -> Shape {
    let targets = (0..dice.within(6..9)).map(|_| 1 + u32::from(dice.below(4) == 0)).collect();
    Shape::new(targets, 1, Duration::from_secs(dice.below(6)))
}

/// As many machines as a simulation bears: most of them neither vote nor have a part of any one stripe.
fn large_shape(dice: &mut Dice) -> Shape {
    let targets = (0..dice.within(10..21)).map(|_| [1, 1, 1, 2][dice.below(4) as usize]).collect();
    let patience = Duration::from_secs(if dice.below(3) == 0 { 15 } else { 600 });
    Shape { has_byways: dice.coin(), ..Shape::new(targets, 1 + u8::from(dice.coin()), patience) }
}

/// Makes the files that all share, each with all its cells empty.
async fn make_shared(world: &World, rack: &Rack, count: u64) -> Vec<InodeId> {
    let client = rack.roles(0).expect("it has started").client.clone();
    let made = world.spawn(&world.host(rack.node(0)), async move {
        let mut files = Vec::new();
        for number in 0..count {
            let (name, new) = (Bytes::from(format!("shared-{number}")), new_inode(Kind::File, 0));
            let inode = client.create_open(InodeId::ROOT, name, new).await.expect("the name is new").inode;
            let zeros = Bytes::from(vec![0; (CELLS * CELL_BYTES) as usize]);
            client.write(inode, WriteAt::Offset(0), zeros).await.expect("there is room");
            client.fsync(inode, false).await.expect("it is stored");
            client.close(inode).await;
            files.push(inode);
        }
        files
    });
    made.await.expect("nothing disturbs it")
}

/// The programs of a world.
#[derive(Default)]
struct Programs {
    /// Which lives of daemons have some.
    lives: BTreeSet<Life>,
    working: Vec<BoxFuture<'static, Result<(), Crashed>>>,
}

impl Programs {
    /// Begins some for every daemon that has started and has none.
    fn begin(&mut self, world: &World, rack: &Rack, told: &Told, dice: &mut Dice) {
        for index in 0..rack.count() {
            let (Some(roles), life) = (rack.roles(index), rack.life(index)) else { continue };
            if self.lives.insert(life) {
                let host = world.host(life.0);
                for _ in 0..1 + dice.below(2) {
                    let dice = Dice::new(dice.roll());
                    let program = Program::new(host.clone(), roles.client.clone(), life, told.clone(), dice);
                    self.working.push(world.spawn(&host, program.run()));
                }
            }
        }
    }

    /// Returns when each has ended, of itself or with its daemon.
    async fn end(self) {
        join_all(self.working).await;
    }
}

async fn tell_a_story(
    (world, host): (World, Host),
    shape: impl FnOnce(&mut Dice) -> Shape,
    blows: Blows,
    total: &Cell<Counts>,
) {
    let mut dice = world.dice();
    let shape = shape(&mut dice);
    let rack = Rack::create(&world, &host, shape.clone()).await;
    let files = make_shared(&world, &rack, 1 + dice.below(2)).await;
    let told = Told::new(&world, files);
    told.lock().note(format!("{shape:?}"));
    let _confession = Confession(told.clone());
    let mut harm = Harm::new(&world, &rack, &told, blows);
    let mut programs = Programs::default();
    let end = world.now() + Duration::from_nanos(dice.below(FAULTS_MAX.as_nanos() as u64));
    programs.begin(&world, &rack, &told, &mut dice);
    while world.now() < end {
        world.sleep(Duration::from_millis(dice.below(1500))).await;
        harm.strike().await;
        harm.tend();
        programs.begin(&world, &rack, &told, &mut dice);
    }
    harm.mend();
    // Programs go on for a while.
    for _ in 0..10 {
        world.sleep(Duration::from_millis(200)).await;
        harm.tend();
        programs.begin(&world, &rack, &told, &mut dice);
    }
    told.lock().over = true;
    until_mended(&world, &rack, &mut harm).await;
    if dice.coin() {
        programs.end().await;
        told.lock().note("all machines stop together, lose their power, and start".into());
        rack.stop_and_start(any(&rack, &mut dice)).await;
        until_mended(&world, &rack, &mut harm).await;
    }
    look_at_all(&world, &rack, &told, &mut dice).await;
    check(&world, &rack, &mut dice).await;
    let mut known = told.lock();
    known.counts.replaced += rack.members_replaced();
    known.counts.doubled += world.network_counters().doubled;
    known.check_cells();
    known.end_era();
    total.set(total.get() + known.counts);
}

/// Two machines, of which one votes and dies; the other is promoted; then the first comes back.
async fn tell_of_a_promotion(world: World, host: Host, total: &Cell<Counts>) {
    let mut dice = world.dice();
    let targets = vec![1 + dice.below(2) as u32, 1 + dice.below(2) as u32];
    let rack = Rack::create(&world, &host, Shape::new(targets, 1, Duration::from_secs(600))).await;
    let told = Told::new(&world, make_shared(&world, &rack, 2).await);
    let _confession = Confession(told.clone());
    let mut harm = Harm::new(&world, &rack, &told, Blows::Kills);
    let mut programs = Programs::default();
    programs.begin(&world, &rack, &told, &mut dice);
    harm.promote_second().await;
    let promoted = world.now();
    while rack.roles(1).is_none() {
        let took = world.now().since(promoted);
        assert!(took < PROMOTED_MAX, "seed {}: it does not go on for {took:?}: {:?}", world.seed(), rack.ended(1));
        world.sleep(Duration::from_millis(200)).await;
    }
    for turn in 0..40 {
        if turn == 20 {
            rack.start(0);
        }
        programs.begin(&world, &rack, &told, &mut dice);
        world.sleep(Duration::from_millis(200)).await;
        harm.tend();
    }
    told.lock().over = true;
    until_mended(&world, &rack, &mut harm).await;
    assert_eq!(rack.roles(0).and_then(|roles| roles.registry.clone()).expect("it follows").leader(), Some(2));
    look_at_all(&world, &rack, &told, &mut dice).await;
    check(&world, &rack, &mut dice).await;
    let mut known = told.lock();
    known.counts.doubled += world.network_counters().doubled;
    known.check_cells();
    known.end_era();
    total.set(total.get() + known.counts);
}

async fn until_mended(world: &World, rack: &Rack, harm: &mut Harm) {
    let asked = world.now();
    while !harm.are_changes_done() {
        harm.tend();
        let took = world.now().since(asked);
        if took >= CHANGED_MAX {
            let maps = rack.roles(any(rack, &mut harm.dice)).map(|roles| roles.cluster.maps());
            panic!("seed {}: something has not come or gone for {took:?}: {maps:#?}", world.seed());
        }
        world.sleep(Duration::from_millis(500)).await;
    }
    let until = world.now() + MENDED_MAX;
    while world.now() < until {
        harm.tend();
        if rack.is_whole() {
            return;
        }
        world.sleep(Duration::from_millis(500)).await;
    }
    for index in 0..rack.count() {
        println!("machine {index}: ended {:?}", rack.ended(index));
        if let Some(roles) = rack.roles(index) {
            println!("  {:?} {:?}", roles.cluster.maps().targets, roles.rebuilder.status());
        }
    }
    panic!("seed {}: something is still missing {MENDED_MAX:?} after the last fault", world.seed());
}

/// Any machine.
fn any(rack: &Rack, dice: &mut Dice) -> usize {
    let present = rack.present();
    present[dice.below(present.len() as u64) as usize]
}

/// Everybody looks at everything, and nothing fails any more.
async fn look_at_all(world: &World, rack: &Rack, told: &Told, dice: &mut Dice) {
    let began = world.now();
    let looking = rack.present().into_iter().map(|index| {
        let (life, roles) = (rack.life(index), rack.roles(index).expect("all run"));
        let (host, dice) = (world.host(life.0), Dice::new(dice.roll()));
        let program = Program::new(host.clone(), roles.client.clone(), life, told.clone(), dice);
        let looked = world.spawn(&host, program.look_at_all());
        async move { (life, looked.await) }
    });
    for (life, looked) in join_all(looking).await {
        let looked = looked.expect("nobody dies any more");
        assert_eq!(looked, Ok(()), "seed {}: node {} fails when all are there", world.seed(), life.0.0);
    }
    let took = world.now().since(began);
    assert!(took < LOOK_MAX, "seed {}: looking took {took:?}", world.seed());
}

/// What `dazzle check --thorough` says, asked of any machine. While slots move there may be no answer; soon there is one.
async fn check(world: &World, rack: &Rack, dice: &mut Dice) {
    let index = any(rack, dice);
    let mut refused = String::new();
    for _ in 0..CHECKS_MAX {
        let roles = rack.roles(index).expect("all run");
        let checking = async move { roles::audit::check(&roles, true, &|_, _, _| ()).await };
        match world.spawn(&world.host(rack.node(index)), checking).await.expect("nobody dies any more") {
            Ok(checked) => {
                let problems = checked.problems;
                assert!(problems.is_empty(), "seed {}: the check found {problems:#?}", world.seed());
                return;
            }
            Err(error) => refused = error,
        }
        world.sleep(Duration::from_secs(5)).await;
    }
    panic!("seed {}: no check is possible: {refused}", world.seed());
}

/// As many worlds as DAZZLE_SEEDS asks for, or a few.
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "to tell how long it took, and nothing else")]
fn explore(shape: fn(&mut Dice) -> Shape, blows: Blows, worlds: u64) -> Counts {
    let (told, total, began) = (Cell::new(0), Cell::new(Counts::default()), std::time::Instant::now());
    sim::explore(sim::seeds(worlds), async |world, host| {
        tell_a_story((world, host), shape, blows, &total).await;
        told.set(told.get() + 1);
        if told.get() % 100 == 0 {
            println!("{} clusters so far, in {:?}", told.get(), began.elapsed());
        }
    });
    tell(format_args!("{} clusters in {:?}, every promise kept: {:?}", told.get(), began.elapsed(), total.get()));
    total.get()
}

/// Says it also where a test that passes is to be silent: how many worlds there were is what it is worth.
fn tell(words: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{words}");
}

#[test]
fn killed_frozen_and_cut_off_machines_lose_nothing_that_was_answered() {
    explore(shape, Blows::Kills, 150);
}

#[test]
fn machines_without_power_lose_nothing_that_was_fsynced() {
    explore(shape, Blows::PowerLosses, 150);
}

#[test]
fn others_take_the_places_of_machines_that_are_away_and_nothing_is_lost() {
    let counts = explore(wide_shape, Blows::PowerLosses, 24);
    assert!(counts.replaced > 0, "nobody took a place");
}

#[test]
fn large_clusters_keep_their_word_too() {
    explore(large_shape, Blows::Kills, 4);
    explore(large_shape, Blows::PowerLosses, 4);
}

#[test]
fn a_machine_that_is_promoted_has_all_that_was_answered() {
    let total = Cell::new(Counts::default());
    let worlds = sim::explore(sim::seeds(60), async |world, host| tell_of_a_promotion(world, host, &total).await);
    tell(format_args!("{worlds} clusters of two, every promise kept: {:?}", total.get()));
}

#[test]
fn one_seed_tells_one_story() {
    let total = Cell::new(Counts::default());
    sim::replay(7, async |world, host| tell_a_story((world, host), shape, Blows::PowerLosses, &total).await);
}
