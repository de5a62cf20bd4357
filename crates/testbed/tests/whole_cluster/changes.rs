//! Machines and targets come and go on somebody's command, while everything else happens to them.
//!
//! 1. Commands fail, or end with the machine that carries them out, at any point; they are given again until they are done.
//! 2. One thing comes and one goes at a time, whichever: also the first machine, which founded the cluster.
//! 3. What goes is emptied, and taken away when nothing lies there any more; or it stays after all.
//! 4. A machine is killed once it is empty, whatever is wrong with others then, and never comes back.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::FutureExt;
use host::sim::{Crashed, Dice, DiskOptions, SimDisk, World};
use host::{BoxFuture, Moment, NodeId};
use log::removal::{self, Silence};
use protocol::id::TargetId;
use protocol::maps::{Drain, Maps, NodeState, TargetState};
use protocol::registry::{Attempt, Invitation, RegistryError, RegistryReply, RegistryRequest};

use super::rack::{Rack, Taking};
use super::story::Told;

/// Between two attempts at the same thing.
const PAUSE: Duration = Duration::from_millis(500);
/// With more machines a world takes too long.
const MACHINES_MAX: usize = 22;

/// What somebody has done to the cluster.
pub struct Changes {
    world: World,
    rack: Rack,
    told: Told,
    dice: Dice,
    coming: Option<Coming>,
    going: Option<Going>,
    /// How many things came, which all have names of their own.
    came: u32,
}

/// What is to be part of the cluster.
struct Coming {
    what: Newcomer,
    attempt: Option<Step>,
    next: Moment,
}

enum Newcomer {
    /// A machine that asks to be let in.
    Stranger { name: String, attempt: Attempt },
    /// A machine that was let in, whose targets may have no numbers yet.
    Guest { node: NodeId, disks: Vec<SimDisk> },
    /// A disk in a machine.
    Disk { index: usize, disk: SimDisk },
}

/// What is to be taken away.
struct Going {
    /// The targets of this machine, or the one.
    index: usize,
    target: Option<TargetId>,
    phase: Phase,
    /// What is tried, and for which phase: it may be another one by the time that ends.
    attempt: Option<(Phase, BoxFuture<'static, Result<Outcome, Crashed>>)>,
    next: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It is to be emptied.
    Begins,
    Empties,
    /// It is to stay after all.
    Returns,
    /// Nothing lies there.
    Leaves,
}

/// How an attempt ended.
enum Outcome {
    Done,
    /// It is not possible, or not any more: a command before it was not heard, and took effect.
    Refused,
    /// It is to be tried again.
    Failed(String),
}

enum Step {
    LetIn(BoxFuture<'static, Result<Result<u32, String>, Crashed>>),
    Number(BoxFuture<'static, Result<Result<Vec<TargetId>, String>, Crashed>>),
    TakeIn(Taking),
}

impl Changes {
    pub fn new(world: &World, rack: &Rack, told: &Told, dice: Dice) -> Changes {
        let (world, rack, told) = (world.clone(), rack.clone(), told.clone());
        Changes { world, rack, told, dice, coming: None, going: None, came: 0 }
    }

    /// Whether nothing is under way.
    pub fn are_done(&self) -> bool {
        self.coming.is_none() && self.going.is_none()
    }

    /// Has another machine join, if none is about to.
    pub fn invite(&mut self) {
        if self.coming.is_some() || self.rack.present().len() >= MACHINES_MAX {
            return;
        }
        self.came += 1;
        let invitation = Invitation { number: self.came.into(), expires: 1 << 40 };
        let (name, attempt) = (format!("new-{}", self.came), Attempt { invitation, number: 0 });
        self.note(format!("{name} is to join"));
        self.begin_to_come(Newcomer::Stranger { name, attempt });
    }

    /// Puts another disk into a machine.
    pub fn add_disk(&mut self, index: usize) {
        if self.coming.is_some() || self.going.as_ref().is_some_and(|going| going.index == index) {
            return;
        }
        self.came += 1;
        let disk = self.rack.spare_disk(index, &format!("new-{}", self.came));
        self.note(format!("{} is to be a target", disk.name()));
        self.begin_to_come(Newcomer::Disk { index, disk });
    }

    fn begin_to_come(&mut self, what: Newcomer) {
        self.coming = Some(Coming { what, attempt: None, next: self.world.now() });
    }

    /// Takes a target away from a machine that has others, or the machine, where enough are left.
    pub fn take_away(&mut self, index: usize, parity: u8) {
        let Some((_, roles)) = self.someone().filter(|_| self.going.is_none()) else { return };
        if matches!(self.coming, Some(Coming { what: Newcomer::Disk { index: at, .. }, .. }) if at == index) {
            return;
        }
        let own = targets_of(&roles.cluster.maps(), self.rack.node(index));
        let target = (own.len() > 1 && self.dice.coin()).then(|| own.iter().copied().nth(self.dice.below(2) as usize));
        if target.is_none() && self.rack.present().len() < 4 + usize::from(parity - 1) {
            return;
        }
        let target = target.flatten();
        self.note(format!("{:?} is to go: {target:?}", self.rack.node(index)));
        self.going = Some(Going { index, target, phase: Phase::Begins, attempt: None, next: self.world.now() });
    }

    /// What is being emptied is to stay after all.
    pub fn keep(&mut self) {
        if let Some(going) = self.going.as_mut().filter(|going| going.phase == Phase::Empties) {
            going.phase = Phase::Returns;
            self.note("it is to stay".into());
        }
    }

    /// Goes on with what is under way. Returns the machine that is empty and to be switched off for good.
    pub fn tend(&mut self) -> Option<usize> {
        if let Some(coming) = self.coming.take() {
            self.coming = self.receive(coming);
        }
        let going = self.going.take()?;
        let (going, off) = self.see_off(going);
        self.going = going;
        off
    }

    fn note(&self, deed: String) {
        self.told.lock().note(deed);
    }

    /// A machine whose daemon runs, any.
    fn someone(&mut self) -> Option<(host::Host, std::sync::Arc<roles::Roles>)> {
        let present = self.rack.present();
        let index = present[self.dice.below(present.len() as u64) as usize];
        let roles = self.rack.roles(index)?;
        Some((self.world.host(self.rack.node(index)), roles))
    }

    fn receive(&mut self, mut coming: Coming) -> Option<Coming> {
        let Some(attempt) = coming.attempt.take() else {
            if self.world.now() >= coming.next {
                coming.attempt = self.attempt_at(&mut coming.what);
            }
            return Some(coming);
        };
        coming.next = self.world.now() + PAUSE;
        let mut is_refused = false;
        match attempt {
            Step::LetIn(mut asked) => match asked.as_mut().now_or_never() {
                None => coming.attempt = Some(Step::LetIn(asked)),
                Some(Ok(Ok(node))) => coming.what = self.let_in(NodeId(node)),
                Some(Ok(Err(why))) => self.note(format!("it is not let in: {why}")),
                Some(Err(Crashed)) => {}
            },
            Step::Number(mut asked) => match (asked.as_mut().now_or_never(), &coming.what) {
                (None, _) => coming.attempt = Some(Step::Number(asked)),
                (Some(Ok(Ok(targets))), Newcomer::Guest { node, disks }) => {
                    self.note(format!("{node:?} has joined"));
                    self.told.lock().counts.came += 1;
                    self.rack.add(*node, targets.into_iter().zip(disks.iter().cloned()).collect());
                    return None;
                }
                (Some(Ok(Err(why))), _) => self.note(format!("its targets get no numbers: {why}")),
                (Some(_), _) => {}
            },
            Step::TakeIn(mut taking) => match taking.as_mut().now_or_never() {
                None => coming.attempt = Some(Step::TakeIn(taking)),
                Some(Ok(Err(why))) => {
                    self.note(format!("it is not taken in: {why}"));
                    is_refused = true;
                }
                Some(_) => {}
            },
        }
        match &coming.what {
            // What is noted alone the next start takes in; who was refused asks again.
            Newcomer::Disk { index, disk } if coming.attempt.is_none() && self.is_there(*index, disk, is_refused) => {
                self.note(format!("{} is a target", disk.name()));
                self.told.lock().counts.came += 1;
                None
            }
            _ => Some(coming),
        }
    }

    fn is_there(&self, index: usize, disk: &SimDisk, is_refused: bool) -> bool {
        let Some(target) = self.rack.target_on(index, disk) else { return false };
        let is_new = |maps: &Maps| maps.targets.get(&target).is_none_or(|entry| entry.state == TargetState::New);
        !is_refused || self.rack.roles(index).is_some_and(|roles| !is_new(&roles.cluster.maps()))
    }

    fn attempt_at(&mut self, what: &mut Newcomer) -> Option<Step> {
        match what {
            Newcomer::Stranger { name, attempt } => {
                let (host, roles) = self.someone()?;
                attempt.number += 1;
                let (name, attempt) = (name.clone(), Some(*attempt));
                let request = RegistryRequest::AddNode { name, address: String::new(), stores: true, attempt };
                Some(Step::LetIn(self.world.spawn(&host, async move {
                    match roles.cluster.registry(request).await {
                        Ok(RegistryReply::Node(node, _)) => Ok(node),
                        Ok(other) => panic!("a number, not {other:?}"),
                        Err(error) => Err(error.to_string()),
                    }
                })))
            }
            Newcomer::Guest { node, disks } => Some(Step::Number(self.rack.number(*node, disks))),
            Newcomer::Disk { index, disk } => {
                self.rack.roles(*index)?;
                Some(Step::TakeIn(self.rack.take_in(*index, disk, None)))
            }
        }
    }

    fn let_in(&mut self, node: NodeId) -> Newcomer {
        self.note(format!("{node:?} is let in"));
        drop(self.world.add_node(node));
        let count = 1 + self.dice.below(2);
        let name = |n| format!("new-{}-{n}", self.came);
        let disks = (0..count).map(|n| self.world.add_disk(node, &name(n), DiskOptions::default())).collect();
        Newcomer::Guest { node, disks }
    }

    fn see_off(&mut self, mut going: Going) -> (Option<Going>, Option<usize>) {
        let Some((phase, mut attempt)) = going.attempt.take() else {
            if self.world.now() >= going.next {
                going.attempt = self.attempt_to(&going).map(|attempt| (going.phase, attempt));
            }
            return (Some(going), None);
        };
        let Some(ended) = attempt.as_mut().now_or_never() else {
            going.attempt = Some((phase, attempt));
            return (Some(going), None);
        };
        if phase != going.phase {
            return (Some(going), None);
        }
        going.next = self.world.now() + PAUSE;
        match (ended, phase) {
            (Ok(Outcome::Done), Phase::Begins) => going.phase = Phase::Empties,
            (Ok(Outcome::Done), Phase::Empties) if going.target.is_none() => {
                self.note(format!("{:?} is empty, and switched off", self.rack.node(going.index)));
                going.phase = Phase::Leaves;
                let index = going.index;
                return (Some(going), Some(index));
            }
            (Ok(Outcome::Done), Phase::Returns) => {
                self.note("it stays".into());
                return (None, None);
            }
            (Ok(Outcome::Done), Phase::Empties | Phase::Leaves) => {
                self.note("it is taken away".into());
                self.told.lock().counts.went += 1;
                return (None, None);
            }
            (Ok(Outcome::Refused), _) => {
                self.note("it may not go, or not stay any more".into());
                return (None, None);
            }
            (Ok(Outcome::Failed(why)), phase) => self.note(format!("it {phase:?}, in vain: {why}")),
            (Err(Crashed), _) => {}
        }
        (Some(going), None)
    }

    fn attempt_to(&mut self, going: &Going) -> Option<BoxFuture<'static, Result<Outcome, Crashed>>> {
        let (host, roles) = self.someone()?;
        let (node, target, phase) = (self.rack.node(going.index), going.target, going.phase);
        Some(self.world.spawn(&host, async move {
            let cluster = &roles.cluster;
            let maps = match cluster.refresh().await {
                Ok(maps) => maps,
                Err(error) => return Outcome::Failed(error.to_string()),
            };
            let targets = target.map_or_else(|| targets_of(&maps, node), |target| [target].into());
            if targets.is_empty() && phase != Phase::Leaves {
                return Outcome::Failed("its targets are not known here yet".into());
            }
            let list: Vec<TargetId> = targets.iter().copied().collect();
            let answer = match phase {
                Phase::Begins => decide(cluster, &list, Drain::Careful).await,
                Phase::Returns => decide(cluster, &list, Drain::No).await,
                Phase::Empties if target.is_none() => return is_empty(cluster, node, &targets).await,
                Phase::Empties | Phase::Leaves => return take_away(cluster, (node, target), &targets).await,
            };
            match answer {
                Ok(()) => Outcome::Done,
                Err(RegistryError::InUse(_) | RegistryError::Unknown(_)) => Outcome::Refused,
                Err(error) => Outcome::Failed(error.to_string()),
            }
        }))
    }
}

async fn decide(cluster: &log::Cluster, targets: &[TargetId], drain: Drain) -> Result<(), RegistryError> {
    cluster.decide(|seen| RegistryRequest::Drain(targets.to_vec(), drain, seen)).await.map(drop)
}

/// The targets of a machine that were not taken away.
fn targets_of(maps: &Maps, node: NodeId) -> BTreeSet<TargetId> {
    maps.present().filter(|(_, entry)| entry.node == node.0).map(|(id, _)| id).collect()
}

/// Whether nothing lies on a machine any more, and it manages nothing: what `dazzle node drain` waits for.
async fn is_empty(cluster: &log::Cluster, node: NodeId, targets: &BTreeSet<TargetId>) -> Outcome {
    if let Err(error) = removal::conclude(cluster, targets).await {
        return Outcome::Failed(error.to_string());
    }
    match cluster.maps().slots.values().filter(|slot| slot.node == node.0).count() {
        0 => Outcome::Done,
        slots => Outcome::Failed(format!("{slots} runs of slots are managed there")),
    }
}

/// What `dazzle target remove` and `dazzle node remove` do.
async fn take_away(
    cluster: &log::Cluster,
    (node, target): (NodeId, Option<TargetId>),
    targets: &BTreeSet<TargetId>,
) -> Outcome {
    if let Some(entry) = cluster.maps().nodes.get(&node.0)
        && target.is_none()
        && entry.state != NodeState::Gone
    {
        return Outcome::Failed("its lease goes on".into());
    }
    // Asked before, and not heard: it may be done.
    let are_there = |maps: &Maps| targets.iter().all(|target| maps.present().any(|(id, _)| id == *target));
    if !targets.is_empty()
        && are_there(&cluster.maps())
        && let Err(error) = removal::remove(cluster, targets, Silence::Refused).await
    {
        return Outcome::Failed(error.to_string());
    }
    if target.is_none() {
        match cluster.registry(RegistryRequest::RemoveNode(node.0)).await {
            Ok(_) | Err(RegistryError::Removed(_)) => {}
            Err(error) => return Outcome::Failed(error.to_string()),
        }
    }
    Outcome::Done
}
