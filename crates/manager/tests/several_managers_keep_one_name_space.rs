//! The danger: an operation changes slots of several managers, and one of them dies, loses a message, or gives its slots to
//! another in the middle of it. Then one half of a rename is done, a lock is never let go, or somebody sees what never was.
//!
//! Several managers share the slots; clients on other nodes work on few names in few directories, at once. Managers are
//! killed and come back, messages to them are lost, links are cut, and all slots change hands, after a stop of all or from
//! one that lives to another. In the end nothing is held,
//! all records agree, and some order of the operations explains every answer. `DAZZLE_SEEDS` sets how many worlds are tried.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use host::sim::{self, Dice, Stop, World};
use host::{Address, Host, NodeId, Port};
use log::Cluster;
use protocol::file::{Caller, Kind, NewInode};
use protocol::id::InodeId;
use protocol::manager::{
    Answer, MANAGER_PORT, ManagerAnswer, ManagerError, ManagerReply, ManagerRequest, Rename, RenameMode,
};

use crate::linear::model::{Answered, Asked, Maker, Name};
use crate::linear::{self, Event};
use crate::several::{CLIENTS, GROUND, Site, harm, some_time};

/// Few, so that clients get in each other's way.
const NAMES: u64 = 4;
/// What a client does, in each of as many worlds as are tried.
const STEPS: u64 = 24;

/// What the clients of one world know together.
#[derive(Default)]
struct Known {
    clock: u64,
    history: Vec<Event>,
    /// By maker.
    inodes: BTreeMap<Maker, (InodeId, Kind)>,
    makers: Maker,
    working: u32,
    /// Directories below each other: the highest and the lowest.
    chains: BTreeMap<u8, (Maker, Maker)>,
}

#[derive(Clone)]
struct Board(Arc<Mutex<Known>>);

impl Board {
    fn new() -> Board {
        let known = Known { inodes: [(0, (InodeId::ROOT, Kind::Directory))].into(), ..Known::default() };
        Board(Arc::new(Mutex::new(known)))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Known) -> T) -> T {
        work(&mut self.0.lock().unwrap())
    }

    fn tick(&self) -> u64 {
        self.with(|known| {
            known.clock += 1;
            known.clock
        })
    }

    fn inode(&self, maker: Maker) -> InodeId {
        self.with(|known| known.inodes[&maker].0)
    }

    fn maker(&self, inode: InodeId) -> Option<Maker> {
        self.with(|known| known.inodes.iter().find(|(_, (known, _))| *known == inode).map(|(maker, _)| *maker))
    }
}

/// One client.
struct Client {
    host: Host,
    cluster: Cluster,
    board: Board,
    dice: Dice,
}

impl Client {
    fn any(&mut self, kind: Option<Kind>) -> Maker {
        let (board, dice) = (&self.board, &mut self.dice);
        board.with(|known| {
            let fits = |(_, (_, of)): &(&Maker, &(InodeId, Kind))| kind.is_none_or(|kind| kind == *of);
            let all: Vec<Maker> = known.inodes.iter().filter(fits).map(|(maker, _)| *maker).collect();
            // The newest are more fun.
            let from = all.len().saturating_sub(6) as u64;
            let index =
                if dice.below(3) == 0 { dice.below(all.len() as u64) } else { dice.within(from..all.len() as u64) };
            all.get(index as usize).copied().unwrap_or(0)
        })
    }

    fn any_directory(&mut self) -> Maker {
        self.any(Some(Kind::Directory))
    }

    fn name(&mut self) -> Name {
        self.dice.below(NAMES) as Name
    }

    fn choose(&mut self) -> Asked {
        let directory = self.any_directory();
        let name = self.name();
        match self.dice.below(20) {
            0..=5 => {
                let is_directory = self.dice.below(2) == 0;
                let maker = self.board.with(|known| {
                    known.makers += 1;
                    known.makers
                });
                Asked::Create { directory, name, maker, is_directory }
            }
            6 | 7 => Asked::Link { inode: self.any(None), directory, name },
            8 | 9 => Asked::Unlink { directory, name },
            10 | 11 => Asked::RemoveDirectory { directory, name },
            12..=15 => {
                let modes = [RenameMode::Replace, RenameMode::Replace, RenameMode::Keep, RenameMode::Exchange];
                let mode = modes[self.dice.below(4) as usize];
                Asked::Rename { from: (directory, name), to: (self.any_directory(), self.name()), mode }
            }
            16 => Asked::List { directory },
            17 => Asked::Stat { inode: self.any(None) },
            _ => Asked::Lookup { directory, name },
        }
    }

    fn request(&self, asked: &Asked) -> (InodeId, ManagerRequest) {
        let at = |maker: &Maker| self.board.inode(*maker);
        let name = |name: &Name| Bytes::from(format!("name {name}, which is not very short"));
        match asked {
            Asked::Create { directory, name: as_name, maker, is_directory } => {
                let kind = if *is_directory { Kind::Directory } else { Kind::File };
                let caller = Caller { uid: *maker, gid: 0 };
                let new = NewInode { kind, mode: 0o755, mask: 0, device: 0, target: Bytes::new(), caller };
                let directory = at(directory);
                (directory, ManagerRequest::Create { directory, name: name(as_name), new, open: false })
            }
            Asked::Link { inode, directory, name: as_name } => {
                let directory = at(directory);
                (directory, ManagerRequest::Link { inode: at(inode), directory, name: name(as_name) })
            }
            Asked::Unlink { directory, name: of } => {
                (at(directory), ManagerRequest::Unlink { directory: at(directory), name: name(of) })
            }
            Asked::RemoveDirectory { directory, name: of } => {
                (at(directory), ManagerRequest::RemoveDirectory { directory: at(directory), name: name(of) })
            }
            Asked::Rename { from, to, mode } => {
                let rename = Rename {
                    from_directory: at(&from.0),
                    from_name: name(&from.1),
                    to_directory: at(&to.0),
                    to_name: name(&to.1),
                    mode: *mode,
                };
                (at(&from.0), ManagerRequest::Rename(rename))
            }
            Asked::Lookup { directory, name: of } => {
                (at(directory), ManagerRequest::Lookup { directory: at(directory), name: name(of) })
            }
            Asked::List { directory } => {
                let directory = at(directory);
                (directory, ManagerRequest::List { directory, after: 0, limit: 100, attributes: false })
            }
            Asked::Stat { inode } => (at(inode), ManagerRequest::Attributes(at(inode))),
        }
    }

    async fn send(&self, inode: InodeId, request: ManagerRequest) -> Option<ManagerAnswer> {
        loop {
            let node = NodeId(self.cluster.maps().slot(inode.slot().0).node);
            let to = Address { node, port: Port(MANAGER_PORT) };
            match self.host.call::<_, ManagerAnswer>(to, request.clone()).await {
                // Refused before anything was done.
                Ok(Err(ManagerError::NotMine | ManagerError::Held)) => {}
                Ok(Err(ManagerError::Failed(_))) | Err(_) => {
                    self.host.sleep(Duration::from_millis(100)).await;
                    let _ = self.cluster.refresh().await;
                    return None;
                }
                Ok(answer) => return Some(answer),
            }
            self.host.sleep(Duration::from_millis(50)).await;
            let _ = self.cluster.refresh().await;
        }
    }

    /// What an answer tells; nothing when it names what nobody knows, or only a part.
    fn read(&self, asked: &Asked, answer: ManagerAnswer) -> Option<Answered> {
        let reply: ManagerReply = match answer {
            Ok(reply) => reply,
            Err(error) => return Some(Answered::Refused(error)),
        };
        match reply.answer {
            Answer::Entry(attributes, _) | Answer::Attributes(attributes) => {
                let known = (attributes.inode, attributes.kind);
                let before = self.board.with(|board| board.inodes.insert(attributes.uid, known));
                assert!(before.is_none_or(|before| before == known), "a number is given once");
                Some(Answered::Inode(attributes.uid, attributes.links))
            }
            Answer::Listing(entries, true) => {
                let name = |text: &[u8]| text[5] - b'0';
                let named = entries.iter().map(|entry| Some((name(&entry.name), self.board.maker(entry.inode)?)));
                let mut names: Vec<(Name, Maker)> = named.collect::<Option<_>>()?;
                names.sort_unstable();
                Some(Answered::Names(names))
            }
            Answer::Listing(_, false) => None,
            Answer::Removed(_) | Answer::Renamed { .. } => Some(Answered::Done),
            other => panic!("{asked:?} was answered with {other:?}"),
        }
    }

    async fn step(&mut self) {
        let asked = self.choose();
        self.ask(asked).await;
    }

    async fn ask(&mut self, asked: Asked) {
        let (inode, request) = self.request(&asked);
        let began = self.board.tick();
        let answer = self.send(inode, request).await;
        let changes = !matches!(asked, Asked::List { .. } | Asked::Lookup { .. } | Asked::Stat { .. });
        let event = match answer {
            Some(answer) => match self.read(&asked, answer) {
                Some(answered) => Event { began, ended: Some(self.board.tick()), asked, answered: Some(answered) },
                None => return,
            },
            None if changes => Event { began, ended: None, asked, answered: None },
            None => return,
        };
        self.board.with(|known| known.history.push(event));
    }
}

async fn work(host: Host, board: Board, dice: Dice, steps: u64) {
    let cluster = Cluster::connect(host.clone(), GROUND).await.unwrap();
    let mut client = Client { host, cluster, board, dice };
    for _ in 0..steps {
        client.step().await;
        if client.dice.below(6) == 0 {
            let pause = client.dice.below(60);
            client.host.sleep(Duration::from_millis(pause)).await;
        }
    }
    client.board.with(|known| known.working -= 1);
}

fn start_clients(world: &World, board: &Board, dice: &mut Dice, steps: u64) {
    for number in 0..CLIENTS {
        let node = NodeId(101 + number);
        let host = if world.runs(node) { world.host(node) } else { world.add_node(node) };
        board.with(|known| known.working += 1);
        drop(world.spawn(&host.clone(), work(host, board.clone(), Dice::new(dice.below(u64::MAX)), steps)));
    }
}

/// Looks at everything, one after the other.
async fn look_at_all(world: &World, board: &Board) {
    let host = world.add_node(NodeId(100));
    let (looking, at) = (board.clone(), host.clone());
    let looked = world.spawn(&host, async move {
        let cluster = Cluster::connect(at.clone(), GROUND).await.unwrap();
        let mut client = Client { host: at, cluster, board: looking, dice: Dice::new(0) };
        let all: Vec<(Maker, Kind)> =
            client.board.with(|known| known.inodes.iter().map(|(maker, (_, kind))| (*maker, *kind)).collect());
        for (maker, kind) in all {
            client.ask(Asked::Stat { inode: maker }).await;
            for name in (0..NAMES as Name).filter(|_| kind == Kind::Directory) {
                client.ask(Asked::Lookup { directory: maker, name }).await;
            }
        }
    });
    looked.await.unwrap();
}

#[test]
fn some_order_explains_every_answer() {
    sim::explore(sim::seeds(40), async |world, host| {
        let mut dice = world.dice();
        let mut site = Site::create(&world, &host, &mut dice).await;
        site.start_managers().await;
        let board = Board::new();
        start_clients(&world, &board, &mut dice, STEPS);
        harm(&mut site, || board.with(|known| known.working) > 0, &mut dice).await;
        while board.with(|known| known.working) > 0 {
            world.sleep(Duration::from_millis(100)).await;
        }
        // What nobody was told is asked for.
        world.sleep(Duration::from_secs(30)).await;
        site.audit().await;
        look_at_all(&world, &board).await;
        let history = board.with(|known| known.history.clone());
        if let Err(story) = linear::check(&history) {
            panic!("seed {}: {story}", world.seed());
        }
    });
}

/// Makes `depth` directories below each other in the root; returns the highest and the lowest.
async fn chain(client: &mut Client, name: Name, depth: u32) -> (Maker, Maker) {
    let mut path = vec![0];
    for step in 0..depth {
        let maker = client.board.with(|known| {
            known.makers += 1;
            known.makers
        });
        let directory = path[path.len() - 1];
        let name = if step == 0 { name } else { 0 };
        client.ask(Asked::Create { directory, name, maker, is_directory: true }).await;
        path.push(maker);
    }
    (path[1], path[path.len() - 1])
}

#[test]
fn what_changes_meanwhile_is_no_problem_to_an_audit() {
    let audits = Arc::new(AtomicU64::new(0));
    let worlds = sim::explore(sim::seeds(40), async |world, host| {
        let mut dice = world.dice();
        let mut site = Site::create(&world, &host, &mut dice).await;
        site.audits = Some(audits.clone());
        site.start_managers().await;
        let board = Board::new();
        start_clients(&world, &board, &mut dice, 4 * STEPS);
        harm(&mut site, || board.with(|known| known.working) > 0, &mut dice).await;
        while board.with(|known| known.working) > 0 {
            world.sleep(Duration::from_millis(100)).await;
        }
        site.audit().await;
    });
    assert!(audits.load(Ordering::Relaxed) > worlds, "there are moments to look at all slots");
}

#[test]
fn renames_at_once_close_no_circle() {
    sim::explore(sim::seeds(40), async |world, host| {
        let mut dice = world.dice();
        let mut site = Site::create(&world, &host, &mut dice).await;
        site.start_managers().await;
        let board = Board::new();
        let renaming: Vec<_> = (0..3_u8)
            .map(|number| {
                let host = world.add_node(NodeId(101 + u32::from(number)));
                let (board, at, depth) = (board.clone(), host.clone(), dice.within(3..6) as u32);
                world.spawn(&host, async move {
                    let cluster = Cluster::connect(at.clone(), GROUND).await.unwrap();
                    let mut client = Client { host: at, cluster, board, dice: Dice::new(0) };
                    let ends = chain(&mut client, number, depth).await;
                    client.board.with(|known| known.chains.insert(number, ends));
                    while client.board.with(|known| known.chains.len()) < 3 {
                        client.host.sleep(Duration::from_millis(1)).await;
                    }
                    // What is in the highest goes below the next one's lowest: two can, the third would close a circle. No
                    // two of them read or change the same directories but on the way up.
                    let (_, below) = client.board.with(|known| known.chains[&((number + 1) % 3)]);
                    client.ask(Asked::Rename { from: (ends.0, 0), to: (below, 1), mode: RenameMode::Replace }).await;
                })
            })
            .collect();
        for done in renaming {
            done.await.unwrap();
        }
        world.sleep(Duration::from_secs(10)).await;
        site.audit().await;
        look_at_all(&world, &board).await;
        if let Err(story) = linear::check(&board.with(|known| known.history.clone())) {
            panic!("seed {}: {story}", world.seed());
        }
    });
}

#[test]
fn a_power_loss_leaves_no_half_of_an_operation() {
    sim::explore(sim::seeds(20), async |world, host| {
        let mut dice = world.dice();
        let mut site = Site::create(&world, &host, &mut dice).await;
        let board = Board::new();
        for _ in 0..3 {
            site.start_managers().await;
            start_clients(&world, &board, &mut dice, 30);
            world.sleep(some_time(&mut dice, 12..21)).await;
            world.crash_all(Stop::PowerLoss);
            site.managers.values_mut().for_each(|manager| *manager = None);
            drop(world.restart(GROUND));
            (0..CLIENTS).for_each(|number| drop(world.restart(NodeId(101 + number))));
            site.start_ground().await;
            site.start_managers().await;
            // What was lost is nobody's: clients begin with the root again.
            board.with(|known| known.inodes.retain(|maker, _| *maker == 0));
            world.sleep(Duration::from_secs(30)).await;
            site.audit().await;
        }
    });
}
