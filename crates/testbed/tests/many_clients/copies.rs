//! The danger: an operation over slots of two managers overlooks what a client has in memory at one of them; or it holds
//! what that client needs to give it up, and both wait for ever.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use client::{Client, WriteAt};
use host::sim::{self, Dice, World};
use protocol::file::{Kind, NewInode};
use protocol::id::{InodeId, SLOT_COUNT};
use protocol::manager::{CloneRange, Rename, RenameMode};

use super::machines::Machines;
use super::{CALL_MAX, plain};

/// Bytes of each file: large enough to lie in the log, and to be shared.
const BYTES: u64 = 64 << 10;
/// Directories that are made until two lie with different managers: by chance all lie with one once in a million times.
const DIRECTORIES: u32 = 20;

/// Two directories, of two managers.
#[derive(Clone, Copy)]
struct Apart {
    first: InodeId,
    second: InodeId,
}

/// What a file says, over and over.
#[derive(Default)]
struct Known {
    /// The newest value that a write began with, and that one ended with.
    begun: u64,
    ended: u64,
    /// So many programs go on.
    working: u32,
}

async fn make_apart(client: &Client) -> Apart {
    let mut made = Vec::new();
    for number in 0..DIRECTORIES {
        let new = NewInode { kind: Kind::Directory, mode: 0o755, ..plain() };
        let name = Bytes::from(format!("directory-{number}"));
        made.push(client.create(InodeId::ROOT, name, new).await.expect("the name is new").inode);
    }
    let is_low = |inode: &&InodeId| inode.slot().0 < SLOT_COUNT / 2;
    let first = *made.iter().find(is_low).expect("some lie with the first manager");
    let second = *made.iter().find(|inode| !is_low(inode)).expect("some lie with the second manager");
    Apart { first, second }
}

async fn make(client: &Client, directory: InodeId, name: &'static str) -> InodeId {
    let inode = client.create(directory, Bytes::from_static(name.as_bytes()), plain()).await;
    inode.expect("the name is new").inode
}

async fn say(client: &Client, inode: InodeId, value: u64) {
    let bytes = Bytes::from(value.to_le_bytes().repeat(BYTES as usize / 8));
    client.write(inode, WriteAt::Offset(0), bytes).await.expect("there is room");
}

async fn hear(client: &Client, inode: InodeId) -> u64 {
    let bytes = client.read(inode, 0, BYTES as u32).await.expect("it can be read").concat();
    let mut words = bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("whole words")));
    let first = words.next().expect("it was written");
    assert!(words.all(|word| word == first), "a file is written at once");
    first
}

async fn pause(world: &World, dice: &mut Dice) {
    let magnitude = dice.within(8..22);
    world.sleep(Duration::from_micros(dice.below(1 << magnitude))).await;
}

/// Writes one value after the other, without an fsync.
async fn write_on(client: Client, (world, mut dice): (World, Dice), source: InodeId, known: Arc<Mutex<Known>>) {
    for value in 2..40 {
        known.lock().unwrap().begun = value;
        let began = world.now();
        say(&client, source, value).await;
        assert!(world.now() - began < CALL_MAX, "a write took too long");
        known.lock().unwrap().ended = value;
        pause(&world, &mut dice).await;
    }
    known.lock().unwrap().working -= 1;
}

/// Copies again and again, and moves a name to and fro.
async fn copy_on(
    client: Client,
    (world, mut dice): (World, Dice),
    (source, target): (InodeId, InodeId),
    apart: Apart,
    known: Arc<Mutex<Known>>,
) {
    let name = Bytes::from_static(b"wanderer");
    let (mut here, mut there) = (apart.first, apart.second);
    while known.lock().unwrap().working > 0 {
        let ended = known.lock().unwrap().ended;
        let began = world.now();
        let range = CloneRange { source, source_offset: 0, target, target_offset: 0, length: BYTES };
        assert_eq!(client.copy_range(range).await.expect("it is copied"), BYTES);
        let begun = known.lock().unwrap().begun;
        let copied = hear(&client, target).await;
        assert!((ended..=begun).contains(&copied), "{copied} was copied while {ended} to {begun} were written");
        let rename = Rename {
            from_directory: here,
            from_name: name.clone(),
            to_directory: there,
            to_name: name.clone(),
            mode: RenameMode::Replace,
        };
        client.rename(rename).await.expect("it is there, and nobody else moves it");
        client.lookup(there, name.clone()).await.expect("it is where it was moved to");
        (here, there) = (there, here);
        assert!(world.now() - began < 4 * CALL_MAX, "a copy and a rename took too long");
        pause(&world, &mut dice).await;
    }
}

#[test]
fn a_copy_between_two_managers_has_what_was_written_before() {
    sim::explore(0..16, async |world, _| {
        let mut dice = world.dice();
        let machines = Machines::start(&world, 2, 2).await;
        let ((node, writer), (other, copier)) = (machines.client(0), machines.client(1));
        let known = Arc::new(Mutex::new(Known { begun: 1, ended: 1, working: 1 }));
        let making = writer.clone();
        // Managers learn of each other.
        world.sleep(Duration::from_secs(1)).await;
        let made = world.spawn(&world.host(node), async move {
            let apart = make_apart(&making).await;
            let files = (make(&making, apart.first, "source").await, make(&making, apart.second, "target").await);
            make(&making, apart.first, "wanderer").await;
            say(&making, files.0, 1).await;
            (apart, files)
        });
        let (apart, files) = made.await.unwrap();
        let mut own = || (world.clone(), Dice::new(dice.roll()));
        let writing = write_on(writer, own(), files.0, known.clone());
        let copying = copy_on(copier, own(), files, apart, known);
        let (writing, copying) = (world.spawn(&world.host(node), writing), world.spawn(&world.host(other), copying));
        writing.await.unwrap();
        copying.await.unwrap();
    });
}
