//! What is done to a cluster, and by which rules.
//!
//! 1. Daemons are killed at any moment, one or all, and started again after any time; what they wrote to disks and did not
//!    sync stays there.
//! 2. All machines lose power at one moment: what is not synced may be gone. One alone loses power, or a disk fails for good,
//!    only when nothing else is missing: so never more is lost than the parity makes up for.
//! 3. Machines stand still, links are cut, one way too, messages are lost and late, and in half of the worlds doubled
//!    (`doubles.rs`), disks are slow, or answer nothing for a while, one or all of a machine, at any moment.
//! 4. Daemons are restarted with what is open kept, at any moment; some are killed over it.
//! 5. All disks of a machine are full at any moment, of somebody else's bytes, and have room again at another.
//! 6. Clocks differ by at most what the lease allows for.
//! 7. Machines and targets come and go (`changes.rs`), in half of the worlds.

use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::{Either, select};
use host::Moment;
use host::byways::BYWAY_PORT;
use host::sim::{Dice, DiskFaults, DiskOptions, NetworkOptions, Stop, Verdict, World};
use log::Walk;
use log::exposure::{Sums, Tally};
use protocol::manager::MANAGER_PORT;
use protocol::token::CLIENT_PORT;
use roles::NoWill;
use testbed::doubles;

use super::changes::Changes;
use super::rack::Rack;
use super::story::Told;

/// How fast or slow a clock may run, in millionths: two such differ by as much as a lease allows for.
pub const DRIFT_PPM: u64 = 10_000;
/// What makes the die for doubling another one than the world's.
const DOUBLED: u64 = 0x646f_7562_6c65_6421;
/// How long nothing was wrong before something may be lost for good.
const CALM: Duration = Duration::from_secs(5);
/// How long a daemon that is restarted is waited for before it is killed.
const RESTART_MAX: Duration = Duration::from_secs(15);

/// What may happen in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blows {
    /// Daemons are killed, frozen, cut off, disks are full; nothing that was written is lost.
    Kills,
    /// Machines lose power too, and a disk may fail.
    PowerLosses,
}

/// Whoever does it.
pub struct Harm {
    world: World,
    rack: Rack,
    told: Told,
    pub dice: Dice,
    blows: Blows,
    /// When something was wrong last.
    troubled: Moment,
    /// A machine of which a disk has failed, and which disk.
    failed: Option<(usize, usize)>,
    frozen: Vec<usize>,
    full: Vec<usize>,
    /// Disks that answer nothing, by their machines.
    hung: Vec<(usize, usize)>,
    is_cut: bool,
    /// How many requests of a million arrive twice.
    doubled_ppm: u32,
    changes: Option<Changes>,
}

impl Harm {
    pub fn new(world: &World, rack: &Rack, told: &Told, blows: Blows) -> Harm {
        let mut dice = world.dice();
        for index in 0..rack.count() {
            world.drift_clock(rack.node(index), dice.below(2 * DRIFT_PPM) as i32 - DRIFT_PPM as i32);
        }
        // In half of the worlds, so that others go on as before: from a die of its own.
        let doubled_ppm = [0, 0, 2_000, 50_000][Dice::new(world.seed() ^ DOUBLED).below(4) as usize];
        world.copy_requests(doubles::copy);
        world.set_network(NetworkOptions { doubled_ppm, ..NetworkOptions::default() });
        let changes = dice.coin().then(|| Changes::new(world, rack, told, Dice::new(dice.roll())));
        let (world, rack, told, troubled) = (world.clone(), rack.clone(), told.clone(), world.now());
        Harm {
            world,
            rack,
            told,
            dice,
            blows,
            troubled,
            failed: None,
            frozen: Vec::new(),
            full: Vec::new(),
            hung: Vec::new(),
            is_cut: false,
            doubled_ppm,
            changes,
        }
    }

    fn note(&self, deed: String) {
        self.told.lock().note(deed);
    }

    /// Does one harm, or undoes one.
    pub async fn strike(&mut self) {
        let present = self.rack.present();
        let index = present[self.dice.below(present.len() as u64) as usize];
        let other = present[self.dice.below(present.len() as u64) as usize];
        let (node, other_node) = (self.rack.node(index), self.rack.node(other));
        match self.dice.below(if self.changes.is_some() { 26 } else { 21 }) {
            0..=2 => self.crash(index, Stop::Kill),
            3 => self.crash_all(),
            4..=6 => self.start_some(),
            7 | 8 => {
                self.note(format!("{node:?} freezes"));
                self.world.pause(node);
                self.frozen.push(index);
            }
            9 | 10 => self.thaw(),
            11 => {
                self.note(format!("{node:?} is cut off"));
                self.world.isolate(node);
                self.is_cut = true;
            }
            12 if index != other => {
                self.note(format!("nothing of {node:?} reaches {other_node:?}"));
                self.world.cut_one_way(node, other_node);
                self.is_cut = true;
            }
            13 => self.disturb(),
            16 if self.blows == Blows::Kills => self.restart(index).await,
            14 => self.rack.disks(index).iter().for_each(|disk| disk.slow([1, 1, 20, 200][other % 4])),
            15 | 16 if self.blows == Blows::PowerLosses => self.lose_one(index).await,
            17 if self.hung.is_empty() => self.hang(index),
            17 => self.let_answer(),
            20 if self.full.is_empty() => self.fill(index),
            20 => self.make_room(),
            21..=25 => self.change(index),
            _ => {
                self.note("all links heal".into());
                self.world.heal_all();
                self.is_cut = false;
            }
        }
        if !self.is_calm() {
            self.troubled = self.world.now();
        }
    }

    /// Has something come, or go.
    fn change(&mut self, index: usize) {
        let (parity, which) = (self.rack.parity(), self.dice.below(6));
        let changes = self.changes.as_mut().expect("there are some");
        match which {
            0 | 1 => changes.invite(),
            2 => changes.add_disk(index),
            3 | 4 => changes.take_away(index, parity),
            _ => changes.keep(),
        }
    }

    /// Whether whoever gave commands has what he wanted.
    pub fn are_changes_done(&self) -> bool {
        self.changes.as_ref().is_none_or(Changes::are_done)
    }

    fn is_calm(&self) -> bool {
        let is_well = self.frozen.is_empty() && self.full.is_empty() && self.hung.is_empty();
        self.rack.is_whole() && is_well && !self.is_cut && self.failed.is_none()
    }

    /// A service manager starts daemons that have ended by themselves, and whoever gave commands sees to them.
    pub fn tend(&mut self) {
        if let Some(index) = self.changes.as_mut().and_then(Changes::tend) {
            self.stop(index, Stop::Kill);
            self.rack.forget(index);
        }
        for index in self.rack.present() {
            if let Some(why) = self.rack.ended(index) {
                self.note(format!("{:?} starts again: {why}", self.rack.life(index)));
                self.told.lock().counts.expelled += 1;
                self.stop(index, Stop::Kill);
                self.rack.start(index);
                self.troubled = self.world.now();
            }
        }
    }

    fn stop(&mut self, index: usize, stop: Stop) {
        let life = self.rack.life(index);
        self.rack.crash(index, stop);
        self.frozen.retain(|frozen| *frozen != index);
        self.told.lock().lose(life);
    }

    fn crash(&mut self, index: usize, stop: Stop) {
        if !self.rack.is_down(index) {
            self.note(format!("{stop:?} {:?}", self.rack.life(index)));
            self.stop(index, stop);
            let mut told = self.told.lock();
            match stop {
                Stop::Kill => told.counts.killed += 1,
                Stop::PowerLoss => told.counts.unpowered += 1,
            }
        }
    }

    /// The only machine that votes dies, and the other one is promoted; the first comes back later.
    pub async fn promote_second(&mut self) {
        while !self.is_safe().await || !self.is_calm() {
            self.tend();
            self.world.sleep(Duration::from_millis(100)).await;
        }
        self.world.sleep(Duration::from_millis(self.dice.below(3000))).await;
        self.crash(0, Stop::PowerLoss);
        self.world.sleep(Duration::from_millis(self.dice.below(6000))).await;
        self.crash(1, Stop::Kill);
        self.rack.promote(1, 0).await;
        self.rack.start(1);
        self.note("the second machine is promoted".into());
    }

    fn crash_all(&mut self) {
        let stop = if self.blows == Blows::PowerLosses && self.dice.coin() { Stop::PowerLoss } else { Stop::Kill };
        for index in self.rack.present() {
            self.crash(index, stop);
        }
        if stop == Stop::PowerLoss {
            self.told.lock().end_era();
        }
    }

    /// A daemon is restarted: what its process leaves another one goes on with, and no program loses anything. Where the
    /// machine cannot store everything now, it goes on; one that takes too long over it is killed.
    async fn restart(&mut self, index: usize) {
        let Some(roles) = self.rack.roles(index).filter(|_| !self.frozen.contains(&index)) else { return };
        let life = self.rack.life(index);
        self.note(format!("{life:?} is to be followed"));
        let (told, host) = (self.told.clone(), self.world.host(life.0));
        told.lock().held = Some(life);
        let leaving = self.world.spawn(&host.clone(), async move {
            let parting = roles.part().await.map_err(|error| NoWill::GoesOn(error.to_string()))?;
            while told.lock().busy.get(&life).is_some_and(|busy| *busy > 0) {
                host.sleep(Duration::from_millis(1)).await;
            }
            parting.last_will(std::future::ready(())).await
        });
        let left = match select(leaving, pin!(self.world.sleep(RESTART_MAX))).await {
            Either::Left((Ok(left), _)) => left,
            Either::Left((Err(_), _)) => return self.told.lock().held = None,
            Either::Right(_) => Err(NoWill::Ends("it takes too long".into())),
        };
        match left {
            Ok(heritage) => {
                self.rack.follow(index, heritage);
                self.note(format!("{:?} follows", self.rack.life(index)));
                self.told.lock().counts.followed += 1;
            }
            Err(NoWill::GoesOn(why)) => self.note(format!("{life:?} goes on: {why}")),
            Err(NoWill::Ends(why)) => {
                self.note(format!("{life:?} ends: {why}"));
                self.crash(index, Stop::Kill);
                self.rack.start(index);
            }
        }
        self.told.lock().held = None;
    }

    /// A machine loses power, or one of its disks for good, where nothing else is missing.
    async fn lose_one(&mut self, index: usize) {
        if !self.is_calm() || self.world.now().since(self.troubled) < CALM {
            return;
        }
        let disks = self.rack.disks(index);
        // The registry's replica is on most of a machine's disks.
        if disks.len() < 3 || self.dice.coin() {
            self.crash(index, Stop::PowerLoss);
        } else if self.is_safe().await && self.is_calm() {
            let which = self.dice.below(disks.len() as u64) as usize;
            self.note(format!("disk {} fails", disks[which].name()));
            disks[which].fail();
            self.failed = Some((index, which));
        }
    }

    /// Whether all that is stored is as safe as it can be.
    async fn is_safe(&self) -> bool {
        let index = self.rack.present()[0];
        let Some(roles) = self.rack.roles(index) else { return false };
        let looked = self.world.spawn(&self.world.host(self.rack.node(index)), async move {
            let (maps, mut sums) = (roles.cluster.maps(), Sums::default());
            Walk::over_all(&roles.cluster, &maps).to_end(|state| sums.add(&maps, &state)).await;
            Tally::of(&maps, sums).bytes_exposed.is_empty()
        });
        looked.await.unwrap_or(false)
    }

    /// Starts some of the machines that are down.
    fn start_some(&mut self) {
        for index in self.rack.present() {
            if self.rack.is_down(index) && self.dice.below(4) > 0 {
                self.rack.start(index);
                self.note(format!("{:?} starts", self.rack.life(index)));
            }
        }
    }

    fn thaw(&mut self) {
        self.note(format!("machines {:?} go on", self.frozen));
        for index in std::mem::take(&mut self.frozen) {
            self.world.resume(self.rack.node(index));
        }
    }

    fn fill(&mut self, index: usize) {
        self.note(format!("the disks of {:?} are full", self.rack.node(index)));
        let full = DiskOptions { capacity_bytes: 0, ..DiskOptions::default() };
        self.rack.disks(index).iter().for_each(|disk| disk.set_options(full));
        self.full.push(index);
        self.told.lock().counts.filled += 1;
    }

    fn make_room(&mut self) {
        self.note(format!("there is room on the disks of {:?}", self.full));
        for index in std::mem::take(&mut self.full) {
            self.rack.disks(index).iter().for_each(|disk| disk.set_options(DiskOptions::default()));
        }
    }

    /// A disk of a machine answers nothing any more, or none of its disks does.
    fn hang(&mut self, index: usize) {
        let (disks, are_all) = (self.rack.disks(index), self.dice.below(4) == 0);
        let chosen = self.dice.below(disks.len() as u64) as usize;
        for (which, disk) in disks.iter().enumerate() {
            if (are_all || which == chosen) && self.failed != Some((index, which)) {
                self.note(format!("disk {} hangs", disk.name()));
                disk.set_faults(DiskFaults { hung: true, ..DiskFaults::default() });
                self.hung.push((index, which));
            }
        }
        self.told.lock().counts.hung += 1;
    }

    fn let_answer(&mut self) {
        self.note(format!("disks {:?} answer again", self.hung));
        for (index, which) in std::mem::take(&mut self.hung) {
            self.rack.disks(index)[which].heal();
        }
    }

    /// The network becomes slow, loses messages, doubles them, or delivers them late.
    fn disturb(&mut self) {
        let loss_ppm = [0, 0, 5_000, 50_000][self.dice.below(4) as usize];
        let slow = [500, 500, 5_000, 30_000][self.dice.below(4) as usize];
        let latency_max = Duration::from_micros(slow);
        let doubled_ppm = self.doubled_ppm;
        self.world.set_network(NetworkOptions { loss_ppm, doubled_ppm, latency_max, ..NetworkOptions::default() });
        self.note(format!(
            "of a million messages {loss_ppm} are lost, {doubled_ppm} doubled, and take {latency_max:?}"
        ));
        let late_ppm = if self.dice.coin() { 0 } else { self.dice.below(100_000) as u32 };
        let dice = Mutex::new(self.world.dice());
        self.world.judge_messages(move |passing| {
            let mut dice = dice.lock().expect("nobody panics over dice");
            let is_ours = [MANAGER_PORT, CLIENT_PORT, BYWAY_PORT].contains(&passing.called.port.0);
            match is_ours && dice.chance(late_ppm) {
                true => Verdict::Delay(Duration::from_nanos(dice.below(3_000_000_000))),
                false => Verdict::Pass,
            }
        });
    }

    /// Undoes everything; a disk that failed is replaced by an empty one.
    pub fn mend(&mut self) {
        self.note("all is mended".into());
        self.world.heal_all();
        self.is_cut = false;
        self.world.set_network(NetworkOptions::default());
        self.world.dismiss_judge();
        self.thaw();
        self.make_room();
        self.let_answer();
        let present = self.rack.present();
        if let Some((index, which)) = self.failed.take().filter(|(index, _)| present.contains(index)) {
            self.crash(index, Stop::Kill);
            let disk = &self.rack.disks(index)[which];
            disk.heal();
            disk.wipe();
        }
        for index in present {
            self.rack.disks(index).iter().for_each(|disk| disk.slow(1));
            if self.rack.is_down(index) {
                self.rack.start(index);
            }
        }
    }
}
