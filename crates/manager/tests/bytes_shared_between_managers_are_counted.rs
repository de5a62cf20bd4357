//! The danger: files in slots of several managers share bytes, or lose their last name on one manager while another's
//! client holds them open. A count that one manager keeps for another's file drifts, and bytes that live are deleted, or
//! dead ones kept for ever.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use host::sim::{self, Dice, World};
use host::{Address, Host, NodeId, Port};
use log::Cluster;
use protocol::address::{LogAddress, Position};
use protocol::delta::{Change, Delta};
use protocol::file::{Caller, Kind, NewInode, SetAttributes, Time};
use protocol::id::{InodeId, LogId, StripeNumber};
use protocol::manager::{
    Answer, CloneRange, Deltas, MANAGER_PORT, ManagerAnswer, ManagerError, ManagerRequest, Rename, RenameMode,
};

use crate::several::{CLIENTS, GROUND, Site, harm};

/// What the clients of one world know together.
#[derive(Default)]
struct Known {
    directories: Vec<InodeId>,
    files: Vec<InodeId>,
    working: u32,
}

struct Client {
    host: Host,
    cluster: Cluster,
    known: Arc<Mutex<Known>>,
    dice: Dice,
    written: u32,
    open: Vec<InodeId>,
}

impl Client {
    /// Asks until there is an answer: all that is asked here may be asked twice.
    async fn ask(&self, inode: InodeId, request: ManagerRequest) -> Result<Answer, ManagerError> {
        loop {
            let node = NodeId(self.cluster.maps().slot(inode.slot().0).node);
            let to = Address { node, port: Port(MANAGER_PORT) };
            match self.host.call::<_, ManagerAnswer>(to, request.clone()).await {
                Ok(Err(ManagerError::NotMine | ManagerError::Failed(_))) | Err(_) => {}
                Ok(answer) => return answer.map(|reply| reply.answer),
            }
            self.host.sleep(Duration::from_millis(50)).await;
            let _ = self.cluster.refresh().await;
        }
    }

    fn directory(&mut self) -> InodeId {
        let known = self.known.lock().unwrap();
        known.directories[self.dice.below(known.directories.len() as u64) as usize]
    }

    fn file(&mut self) -> Option<InodeId> {
        let known = self.known.lock().unwrap();
        let count = known.files.len() as u64;
        (count > 0).then(|| known.files[self.dice.below(count) as usize])
    }

    fn name(&mut self) -> Bytes {
        Bytes::from(format!("n{}", self.dice.below(6)))
    }

    async fn create(&mut self) {
        let (directory, name) = (self.directory(), self.name());
        let kind = if self.dice.below(5) == 0 { Kind::Directory } else { Kind::File };
        let caller = Caller { uid: 0, gid: 0 };
        let new = NewInode { kind, mode: 0o755, mask: 0, device: 0, target: Bytes::new(), caller };
        let open = kind == Kind::File && self.dice.below(4) == 0;
        let request = ManagerRequest::Create { directory, name, new, open };
        let Ok(Answer::Entry(attributes, _)) = self.ask(directory, request).await else { return };
        let mut known = self.known.lock().unwrap();
        match kind {
            Kind::Directory => known.directories.push(attributes.inode),
            _ => known.files.push(attributes.inode),
        }
        if open {
            self.open.push(attributes.inode);
        }
    }

    async fn write(&mut self, inode: InodeId) {
        let mut list = Vec::new();
        for _ in 0..=self.dice.below(4) {
            let (offset, length) = (self.dice.below(20) * 1000, 1 + self.dice.below(5000) as u32);
            let stripe = StripeNumber(self.dice.below(4));
            // No two writes of a client lie at one place.
            self.written += 5000;
            let log = LogId(1_000_000 + u64::from(self.host.node().0));
            let address = LogAddress { log, stripe, offset: self.written, length };
            list.push(Delta { inode, change: Change::Extent { offset, address } });
            list.push(Delta { inode, change: Change::Wrote { size: offset + u64::from(length), time: Time(1) } });
        }
        let log = LogId(1_000_000 + u64::from(self.host.node().0));
        let position = Position::new(StripeNumber(0), self.written);
        let _ = self.ask(inode, ManagerRequest::Deltas(Deltas { log, position, list })).await;
    }

    async fn step(&mut self) -> Option<()> {
        match self.dice.below(16) {
            0..=4 => self.create().await,
            5..=7 => {
                let file = self.file()?;
                self.write(file).await;
            }
            8..=10 => {
                let (source, target) = (self.file()?, self.file()?);
                let (source_offset, target_offset) = (self.dice.below(10) * 1000, self.dice.below(10) * 1000);
                let length = self.dice.below(15_000);
                let clone = CloneRange { source, source_offset, target, target_offset, length };
                let _ = self.ask(target, ManagerRequest::CloneRange(clone)).await;
            }
            11 => {
                let file = self.file()?;
                let set = SetAttributes { size: Some(self.dice.below(20_000)), ..SetAttributes::default() };
                let _ = self.ask(file, ManagerRequest::SetAttributes(file, set)).await;
            }
            12 => {
                let (from_directory, to_directory) = (self.directory(), self.directory());
                let (from_name, to_name, mode) = (self.name(), self.name(), RenameMode::Replace);
                let rename = Rename { from_directory, from_name, to_directory, to_name, mode };
                let _ = self.ask(from_directory, ManagerRequest::Rename(rename)).await;
            }
            13 => {
                if let Some(file) = self.open.pop() {
                    let _ = self.ask(file, ManagerRequest::Close(file)).await;
                } else {
                    let file = self.file()?;
                    self.ask(file, ManagerRequest::Open { inode: file, keep: None }).await.ok()?;
                    self.open.push(file);
                }
            }
            _ => {
                let (directory, name) = (self.directory(), self.name());
                let _ = self.ask(directory, ManagerRequest::Unlink { directory, name }).await;
            }
        }
        Some(())
    }
}

async fn work(host: Host, known: Arc<Mutex<Known>>, dice: Dice) {
    let cluster = Cluster::connect(host.clone(), GROUND).await.unwrap();
    let mut client = Client { host, cluster, known, dice, written: 0, open: Vec::new() };
    for _ in 0..40 {
        client.step().await;
    }
    for file in std::mem::take(&mut client.open) {
        let _ = client.ask(file, ManagerRequest::Close(file)).await;
    }
    client.known.lock().unwrap().working -= 1;
}

fn start_clients(world: &World, known: &Arc<Mutex<Known>>, dice: &mut Dice) {
    known.lock().unwrap().working = CLIENTS;
    for number in 0..CLIENTS {
        let host = world.add_node(NodeId(101 + number));
        drop(world.spawn(&host.clone(), work(host, known.clone(), Dice::new(dice.below(u64::MAX)))));
    }
}

async fn share(world: World, host: Host, audits: Option<Arc<AtomicU64>>) {
    let mut dice = world.dice();
    let mut site = Site::create(&world, &host, &mut dice).await;
    site.audits = audits;
    site.start_managers().await;
    let known = Arc::new(Mutex::new(Known { directories: vec![InodeId::ROOT], ..Known::default() }));
    start_clients(&world, &known, &mut dice);
    harm(&mut site, || known.lock().unwrap().working > 0, &mut dice).await;
    while known.lock().unwrap().working > 0 {
        world.sleep(Duration::from_millis(100)).await;
    }
    // What nobody was told is asked for, and what nobody holds open is freed.
    world.sleep(Duration::from_secs(30)).await;
    site.audit().await;
}

#[test]
fn bytes_shared_between_managers_are_counted() {
    sim::explore(sim::seeds(30), async |world, host| share(world, host, None).await);
}

#[test]
fn bytes_that_are_shared_meanwhile_are_no_problem_to_an_audit() {
    let audits = Arc::new(AtomicU64::new(0));
    let worlds = sim::explore(sim::seeds(40), async |world, host| share(world, host, Some(audits.clone())).await);
    assert!(audits.load(Ordering::Relaxed) > worlds, "there are moments to look at all slots");
}
