//! Files used by several programs at once through one client, on a simulated node with slow disks and a slow manager: a
//! read returns the last completed write, whatever is flushed, evicted, acknowledged or truncated meanwhile; and another
//! client that starts afterwards reads the same.
//!
//! Danger: a byte that is on its way (dirty, appended, recorded, acknowledged) is overlooked or comes back.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use client::{Allocate, AllocateMode, Client, ClientError, NothingAbove, WriteAt};
use futures_util::future::join;
use host::sim::{self, Dice, DiskOptions, World};
use host::{Address, Host, Port};
use protocol::file::SetAttributes;
use protocol::id::{InodeId, SLOT_COUNT, SlotId};
use protocol::manager::ManagerError;
use protocol::token::{CLIENT_PORT, Claims, ClientAnswer, ClientRequest, TokenVersion};

use crate::support::{Site, plain_file};

const SIZE_MAX: u64 = 3 << 20;

async fn read_all(client: &Client, inode: InodeId, range: std::ops::Range<u64>) -> Bytes {
    let mut bytes = BytesMut::new();
    let length = (range.end - range.start) as u32;
    for piece in client.read(inode, range.start, length).await.expect("the bytes are readable") {
        bytes.extend_from_slice(&piece);
    }
    bytes.freeze()
}

fn pattern(dice: &mut Dice, length: u64) -> Vec<u8> {
    let first = dice.roll() as u8;
    (0..length).map(|at| first.wrapping_add((at / 5) as u8) | 1).collect()
}

/// One program that alone uses one file.
struct Program {
    client: Client,
    host: Host,
    inode: InodeId,
    model: Vec<u8>,
    dice: Dice,
    size_max: u64,
}

impl Program {
    async fn step(&mut self) {
        let max = self.size_max;
        let offset = self.dice.below(max);
        let length = match self.dice.below(4) {
            0 => 1 + self.dice.below(100),
            1 => 4096,
            2 => 1 + self.dice.below(70_000),
            _ => 1 + self.dice.below(max / 2),
        };
        match self.dice.below(16) {
            0..=4 => self.write(offset, length).await,
            5 => self.append(length.min(20_000)).await,
            6..=8 => self.read(offset..offset + length).await,
            9 => self.client.fsync(self.inode, false).await.expect("there is room"),
            10 => self.truncate(offset).await,
            11 => self.punch(offset, length).await,
            12 => self.look().await,
            13 => self.reopen().await,
            14 => self.host.sleep(Duration::from_millis(self.dice.below(8000))).await,
            _ => self.client.flush(self.inode).await.expect("nothing failed"),
        }
    }

    async fn write(&mut self, offset: u64, length: u64) {
        let bytes = pattern(&mut self.dice, length);
        let end = (offset + length) as usize;
        self.model.resize(self.model.len().max(end), 0);
        self.model[offset as usize..end].copy_from_slice(&bytes);
        self.client.write(self.inode, WriteAt::Offset(offset), bytes.into()).await.expect("there is room");
    }

    async fn append(&mut self, length: u64) {
        let bytes = pattern(&mut self.dice, length);
        self.model.extend_from_slice(&bytes);
        self.client.write(self.inode, WriteAt::End, bytes.into()).await.expect("there is room");
    }

    async fn read(&mut self, range: std::ops::Range<u64>) {
        let bytes = read_all(&self.client, self.inode, range.clone()).await;
        let end = self.model.len().min(range.end as usize);
        let expected = &self.model[end.min(range.start as usize)..end];
        assert!(bytes == expected, "a read of {range:?} returns the last write");
    }

    async fn truncate(&mut self, size: u64) {
        let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
        let attributes = self.client.set_attributes(self.inode, set).await.expect("the manager truncates");
        assert_eq!(attributes.size, size);
        self.model.resize(size as usize, 0);
    }

    async fn punch(&mut self, offset: u64, length: u64) {
        let allocate = Allocate { mode: AllocateMode::Punch, offset, length };
        self.client.allocate(self.inode, allocate).await.expect("the manager punches");
        let end = self.model.len().min((offset + length) as usize);
        self.model[end.min(offset as usize)..end].fill(0);
    }

    async fn look(&mut self) {
        let attributes = self.client.attributes(self.inode).await.expect("the manager answers");
        assert_eq!(attributes.size, self.model.len() as u64);
    }

    async fn reopen(&mut self) {
        self.client.close(self.inode).await;
        let attributes = self.client.open(self.inode).await.expect("the file is there");
        assert_eq!(attributes.size, self.model.len() as u64);
    }
}

async fn use_files(world: World, host: Host) {
    let site = Site::start(&world, &host, DiskOptions::default()).await;
    let mut dice = world.dice();
    if dice.coin() {
        site.manager.delay(Duration::from_millis(1 + dice.below(200)));
    }
    let client = site.client().await;
    let mut programs = Vec::new();
    for size_max in [700, 60_000, SIZE_MAX, SIZE_MAX] {
        let name = Bytes::from(format!("file-{}", programs.len()));
        let attributes = client.create_open(InodeId::ROOT, name, plain_file()).await.expect("the name is new");
        let (client, host, dice) = (client.clone(), host.clone(), Dice::new(dice.roll()));
        let program =
            Program { client, host: host.clone(), inode: attributes.inode, model: Vec::new(), dice, size_max };
        programs.push(world.spawn(&host, async move {
            let mut program = program;
            for _ in 0..60 {
                program.step().await;
            }
            program.client.close(program.inode).await;
            (program.inode, program.model)
        }));
    }
    let mut models = Vec::new();
    for program in programs {
        models.push(program.await.expect("nobody stops the node"));
    }
    client.stop().await.expect("everything can be written");

    let client = site.client().await;
    for (inode, model) in models {
        assert_eq!(site.manager.attributes(inode).expect("it exists").size, model.len() as u64);
        client.open(inode).await.expect("it exists");
        let bytes = read_all(&client, inode, 0..2 * SIZE_MAX).await;
        assert!(bytes == model, "another client reads what was written");
    }
}

#[test]
fn what_was_written_is_read() {
    sim::explore(0..12, use_files);
}

#[test]
fn a_writer_in_order_is_slowed_down_not_refused() {
    sim::run(7, async |world: World, host: Host| {
        let site = Site::start(&world, &host, DiskOptions::default()).await;
        let client = site.client().await;
        let name = Bytes::from_static(b"large");
        let inode = client.create_open(InodeId::ROOT, name, plain_file()).await.expect("the name is new").inode;
        let total = 48_u64 << 20;
        for at in (0..total).step_by(128 << 10) {
            let bytes = Bytes::from(vec![(at >> 17) as u8; 128 << 10]);
            client.write(inode, WriteAt::Offset(at), bytes).await.expect("there is room");
        }
        client.fsync(inode, false).await.expect("there is room");
        for at in (0..total).step_by(128 << 10) {
            let bytes = read_all(&client, inode, at..at + (128 << 10)).await;
            assert!(bytes.len() == 128 << 10 && bytes.iter().all(|&byte| byte == (at >> 17) as u8));
        }
    });
}

#[test]
fn what_was_accepted_fits() {
    sim::run(3, async |world: World, host: Host| {
        let disk = DiskOptions { capacity_bytes: 24 << 20, ..DiskOptions::default() };
        let site = Site::start(&world, &host, disk).await;
        let client = site.client().await;
        let name = Bytes::from_static(b"large");
        let inode = client.create_open(InodeId::ROOT, name, plain_file()).await.expect("the name is new").inode;
        let before = client.statfs().await.expect("the targets answer");
        let mut written = 0_u64;
        loop {
            let bytes = Bytes::from(vec![written as u8 | 1; 64 << 10]);
            match client.write(inode, WriteAt::End, bytes).await {
                Ok(_) => written += 64 << 10,
                Err(ClientError::NoRoom) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(written <= before.bytes_total && written >= before.bytes_available / 2, "{written} of {before:?}");
        client.fsync(inode, false).await.expect("what was accepted fits");
        assert_eq!(client.attributes(inode).await.expect("it exists").size, written);
    });
}

/// What is on its way to slow disks, and takes room of them already, counts but once.
#[test]
fn nobody_is_refused_before_all_is_full() {
    sim::run(4, async |world: World, host: Host| {
        let disk =
            DiskOptions { capacity_bytes: 64 << 20, sync_latency: Duration::from_secs(1), ..DiskOptions::default() };
        let site = Site::start(&world, &host, disk).await;
        let client = site.client().await;
        let name = Bytes::from_static(b"large");
        let inode = client.create_open(InodeId::ROOT, name, plain_file()).await.expect("the name is new").inode;
        let before = client.statfs().await.expect("the targets answer").bytes_available;
        let mut written = 0;
        while client.write(inode, WriteAt::End, Bytes::from(vec![1; 1 << 20])).await.is_ok() {
            written += 1 << 20;
        }
        assert!(written + (4 << 20) >= before, "{written} bytes fit, and there was room for {before}");
        client.fsync(inode, false).await.expect("what was accepted fits");
    });
}

/// What went to the log and was cut off before any manager heard of it is not recorded, and nothing is stored because of it.
#[test]
fn what_was_cut_off_counts_but_once() {
    sim::run(4, async |world: World, host: Host| {
        let disk = DiskOptions { capacity_bytes: 64 << 20, ..DiskOptions::default() };
        let site = Site::start(&world, &host, disk).await;
        let client = site.client().await;
        let name = Bytes::from_static(b"large");
        let inode = client.create_open(InodeId::ROOT, name, plain_file()).await.expect("the name is new").inode;
        let before = client.statfs().await.expect("the targets answer").bytes_available;
        for _ in 0..2 {
            client.write(inode, WriteAt::End, Bytes::from(vec![1; 1 << 20])).await.expect("there is room");
        }
        let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
        client.set_attributes(inode, cut).await.expect("it is open");
        // Targets are asked once more.
        host.sleep(Duration::from_secs(3)).await;
        let begun = host.now();
        let length = before - (3 << 20);
        client.allocate(inode, Allocate { offset: 0, length, mode: AllocateMode::Grow }).await.expect("there is room");
        let took = host.now().since(begun);
        assert!(took < Duration::from_secs(1), "it took {took:?}");
    });
}

#[test]
fn an_fsync_flushes_the_managers_journal_once() {
    sim::run(5, async |world: World, host: Host| {
        let site = Site::start(&world, &host, DiskOptions::default()).await;
        let client = site.client().await;
        let name = Bytes::from_static(b"small");
        let inode = client.create_open(InodeId::ROOT, name, plain_file()).await.expect("the name is new").inode;
        for _ in 0..10 {
            client.write(inode, WriteAt::End, Bytes::from_static(b"a line\n")).await.expect("there is room");
            client.fsync(inode, false).await.expect("there is room");
        }
        assert_eq!(site.manager.flushes(), 1);
        assert!(site.manager.delta_messages() <= 1, "no fsync waits for the manager");
        client.unlink(InodeId::ROOT, Bytes::from_static(b"small")).await.expect("it exists");
        client.write(inode, WriteAt::End, Bytes::from_static(b"still open")).await.expect("there is room");
        assert_eq!(read_all(&client, inode, 0..1000).await.len(), 80);
        client.close(inode).await;
        client.stop().await.expect("nothing is left to write");
    });
}

/// What was opened before its last name went is read whole, stored or not, in whatever order the answers come.
async fn open_and_remove(world: World, host: Host) -> bool {
    let site = Site::start(&world, &host, DiskOptions::default()).await;
    let client = site.client().await;
    let mut dice = world.dice();
    let name = Bytes::from_static(b"file");
    let inode = client.create_open(InodeId::ROOT, name.clone(), plain_file()).await.expect("the name is new").inode;
    let length = 1 + dice.below(20_000);
    let written = pattern(&mut dice, length);
    client.write(inode, WriteAt::End, written.clone().into()).await.expect("there is room");
    if dice.coin() {
        client.fsync(inode, false).await.expect("there is room");
    }
    client.close(inode).await;
    site.manager.delay(Duration::from_millis(50));
    let (opened, removed) = join(client.open(inode), client.unlink(InodeId::ROOT, name)).await;
    removed.expect("it exists");
    match &opened {
        Ok(_) => assert!(read_all(&client, inode, 0..30_000).await == written, "who has a file open reads it"),
        Err(error) => assert!(matches!(error, ClientError::Manager(ManagerError::Stale)), "{error}"),
    }
    client.close(inode).await;
    client.stop().await.expect("nothing is left to write");
    opened.is_ok()
}

#[test]
fn who_opens_a_file_while_its_name_goes_reads_it() {
    let opened = Cell::new(0);
    sim::explore(0..40, async |world, host| {
        opened.set(opened.get() + u32::from(open_and_remove(world, host).await));
    });
    assert!((10..30).contains(&opened.get()), "both orders are tried: opened {} times", opened.get());
}

/// What a peer says of slots that there are not must end no daemon.
#[test]
fn slots_that_there_are_not_are_nobodys() {
    sim::run(6, async |world: World, host: Host| {
        let site = Site::start(&world, &host, DiskOptions::default()).await;
        let client = site.client().await;
        client.answer_managers(Arc::new(NothingAbove));
        let to = Address { node: host.node(), port: Port(CLIENT_PORT) };
        let ask = async |request| host.call::<ClientRequest, ClientAnswer>(to, request).await.expect("it answers");
        let claim = ClientRequest::Claim { slots: vec![SlotId(u16::MAX)], from: InodeId(0) };
        let ClientAnswer::Claim(life, claims) = ask(claim).await else { panic!("a claim is answered with one") };
        assert_eq!(claims, Claims::default());
        let beyond = ClientRequest::GiveUpSlot { slot: SlotId(SLOT_COUNT), life, version: TokenVersion::default() };
        assert!(matches!(ask(beyond).await, ClientAnswer::Failed(_)));
        client.stop().await.expect("nothing is left to write");
    });
}

/// A face spawns these, so every future must be able to change threads.
#[allow(dead_code)]
fn futures_go_to_any_thread(client: &Client) {
    fn is_send<T: Send>(_: T) {}
    let (inode, name) = (InodeId::ROOT, Bytes::new());
    is_send(client.lookup(inode, name.clone()));
    is_send(client.create(inode, name.clone(), plain_file()));
    is_send(client.create_open(inode, name.clone(), plain_file()));
    is_send(client.attributes(inode));
    is_send(client.set_attributes(inode, SetAttributes::default()));
    is_send(client.open(inode));
    is_send(client.close(inode));
    is_send(client.read(inode, 0, 0));
    is_send(client.write(inode, WriteAt::End, name.clone()));
    is_send(client.flush(inode));
    is_send(client.fsync(inode, true));
    is_send(client.sync_all());
    is_send(client.statfs());
    is_send(client.list(inode, 0, 0, true));
    is_send(client.seek(inode, 0, client::SeekKind::Data));
    is_send(client.allocate(inode, Allocate { mode: AllocateMode::Punch, offset: 0, length: 0 }));
    is_send(client.stop());
}
