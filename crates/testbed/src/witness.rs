//! A workload on one client that remembers what it was promised.
//!
//! What is promised (DESIGN §3, §13.1):
//! 1. After fsync of a file, its bytes survive any stop, under a name that it had since.
//! 2. Without fsync, each byte and the size are of some moment since the last fsync.
//! 3. When only the daemon stops, every answered operation on names survives. When the power goes, it survives fsync of
//!    the file or of the directory.
//! 4. A file that was fsynced and then renamed over another: the name holds all of the one or all of the other.
//! 5. What finds no room says so, and changes nothing that it did not name.
//!
//! The workload may be dropped at any moment: of the operation that was under way, either outcome is right.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientError, WriteAt};
use futures_util::future::{Either, select};
use host::sim::{Dice, Stop, World};
use protocol::file::{Caller, Kind, NewInode, SetAttributes};
use protocol::id::InodeId;
use protocol::manager::{ManagerError, Rename, RenameMode};

use crate::site::some_time;

const FILE_BYTES_MAX: u64 = 300_000;
const WRITE_BYTES_MAX: u64 = 50_000;
const FILES_MAX: usize = 12;

/// The workload and its memory.
pub struct Witness {
    files: Vec<Tracked>,
    next_name: u64,
    /// The name that is being made, if one is.
    making: Option<String>,
    counts: Counts,
}

/// What a witness has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that were answered.
    pub operations: u64,
    /// Among them those that found no room.
    pub times_full: u64,
    /// Files compared after a restart.
    pub files_compared: u64,
}

/// One file and what may be found of it.
struct Tracked {
    inode: InodeId,
    /// The names it may be found under; `None`: it may be gone. The last one is what was answered last.
    names: Vec<Option<String>>,
    /// The contents since the last fsync, which is the first.
    contents: Vec<Vec<u8>>,
    /// Whether there was an fsync: before it the file may be missing after a power loss.
    synced: bool,
    /// The file that was renamed over this one, and the name that it had before.
    heir: Option<(usize, String)>,
}

impl Witness {
    /// A workload on an empty root directory.
    pub fn new() -> Witness {
        Witness { files: Vec::new(), next_name: 0, making: None, counts: Counts::default() }
    }

    /// What it has seen so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// One life: does up to `most` operations until done, or until some moment in the midst of it; then sometimes lets work in
    /// the background run, so that crashes meet it too. Whether it came to its end.
    pub async fn live(&mut self, world: &World, client: &Client, dice: &mut Dice, most: u64) -> bool {
        let (mut chance, count) = (world.dice(), dice.below(most));
        {
            let work = pin!(self.work(world, client, &mut chance, count));
            let cut = if dice.coin() { some_time(dice) * 8 } else { Duration::from_secs(3600) };
            match select(work, pin!(world.sleep(cut))).await {
                Either::Left((worked, _)) => worked.expect("a healthy node does what it is asked"),
                Either::Right(_) => return false,
            }
        }
        match dice.below(4) {
            0 => {}
            1 | 2 => world.sleep(some_time(dice)).await,
            _ => world.sleep(Duration::from_millis(dice.below(20_000))).await,
        }
        true
    }

    /// Does `count` random operations, some of them after a pause.
    pub async fn work(
        &mut self,
        world: &World,
        client: &Client,
        dice: &mut Dice,
        count: u64,
    ) -> Result<(), ClientError> {
        for _ in 0..count {
            if dice.below(16) == 0 {
                world.sleep(some_time(dice)).await;
            }
            match self.step(client, dice).await {
                Err(ClientError::NoRoom) => self.counts.times_full += 1,
                other => other?,
            }
            self.counts.operations += 1;
        }
        Ok(())
    }

    async fn step(&mut self, client: &Client, dice: &mut Dice) -> Result<(), ClientError> {
        let alive: Vec<usize> = (0..self.files.len()).filter(|&n| self.files[n].name().is_some()).collect();
        if alive.is_empty() || (alive.len() < FILES_MAX && dice.below(8) == 0) {
            return self.create(client).await;
        }
        let index = alive[dice.below(alive.len() as u64) as usize];
        match dice.below(16) {
            0..8 => self.write(client, dice, index).await,
            8..11 => self.fsync(client, index).await,
            11 => self.truncate(client, dice, index).await,
            12 => self.rename(client, index).await,
            13 => self.unlink(client, index).await,
            14 => self.replace(client, dice, index).await,
            _ => self.read(client, index).await,
        }
    }

    fn fresh_name(&mut self) -> String {
        self.next_name += 1;
        format!("file-{}", self.next_name)
    }

    async fn create(&mut self, client: &Client) -> Result<(), ClientError> {
        let name = self.fresh_name();
        self.making = Some(name.clone());
        let attributes = client.create(InodeId::ROOT, Bytes::from(name.clone()), plain_file()).await?;
        self.making = None;
        self.files.push(Tracked::new(attributes.inode, name));
        Ok(())
    }

    async fn write(&mut self, client: &Client, dice: &mut Dice, index: usize) -> Result<(), ClientError> {
        let file = &mut self.files[index];
        let offset = dice.below(FILE_BYTES_MAX - WRITE_BYTES_MAX);
        let length_max = if dice.coin() { WRITE_BYTES_MAX } else { 6000 };
        let length = 1 + dice.below(length_max);
        let fill = dice.below(255) as u8 + 1;
        let bytes: Vec<u8> = (0..length).map(|n| fill.wrapping_add((n / 100) as u8)).collect();
        let mut content = file.newest().clone();
        let end = (offset + length) as usize;
        content.resize(content.len().max(end), 0);
        content[offset as usize..end].copy_from_slice(&bytes);
        file.contents.push(content);
        let written = client.write(file.inode, WriteAt::Offset(offset), bytes.into()).await;
        if written == Err(ClientError::NoRoom) {
            file.contents.pop();
        }
        written.map(drop)
    }

    async fn fsync(&mut self, client: &Client, index: usize) -> Result<(), ClientError> {
        let file = &mut self.files[index];
        client.fsync(file.inode, false).await?;
        file.settle();
        Ok(())
    }

    async fn truncate(&mut self, client: &Client, dice: &mut Dice, index: usize) -> Result<(), ClientError> {
        let file = &mut self.files[index];
        let size = dice.below(FILE_BYTES_MAX);
        let mut content = file.newest().clone();
        content.resize(size as usize, 0);
        file.contents.push(content);
        let set =
            client.set_attributes(file.inode, SetAttributes { size: Some(size), ..SetAttributes::default() }).await;
        // As of a write that found no room, nothing of it may be seen.
        if set == Err(ClientError::NoRoom) {
            file.contents.pop();
        }
        set.map(drop)
    }

    async fn rename(&mut self, client: &Client, index: usize) -> Result<(), ClientError> {
        let to = self.fresh_name();
        let file = &mut self.files[index];
        let from = file.name().expect("only living files are renamed");
        file.names.push(Some(to.clone()));
        client.rename(plain_rename(&from, &to)).await
    }

    async fn unlink(&mut self, client: &Client, index: usize) -> Result<(), ClientError> {
        let file = &mut self.files[index];
        let name = file.name().expect("only living files are removed");
        file.names.push(None);
        client.unlink(InodeId::ROOT, name.into()).await
    }

    /// What editors and databases do: write a new file, fsync it, rename it over the old one.
    async fn replace(&mut self, client: &Client, dice: &mut Dice, index: usize) -> Result<(), ClientError> {
        self.create(client).await?;
        let fresh = self.files.len() - 1;
        self.write(client, dice, fresh).await?;
        self.fsync(client, fresh).await?;
        let name = self.files[index].name().expect("only living files are replaced");
        let from = self.files[fresh].name().expect("just made");
        self.files[index].names.push(None);
        self.files[fresh].names.push(Some(name.clone()));
        self.files[index].heir = Some((fresh, from.clone()));
        client.rename(plain_rename(&from, &name)).await
    }

    async fn read(&mut self, client: &Client, index: usize) -> Result<(), ClientError> {
        let file = &self.files[index];
        let found = read_all(client, file.inode).await?;
        assert!(found == *file.newest(), "a read returns the last completed write");
        Ok(())
    }

    /// Compares everything with what was promised, after the node was stopped and started again; what is found then is
    /// what counts from now on.
    ///
    /// # Panics
    /// When a promise was broken.
    pub async fn testify(&mut self, client: &Client, stop: Stop) {
        let mut found = listing(client).await;
        for file in &mut self.files {
            let place = file.names.iter().flatten().find(|name| found.get(*name) == Some(&file.inode)).cloned();
            if stop == Stop::Kill {
                // The operation that was under way may or may not have happened.
                let recent = &file.names[file.names.len().saturating_sub(2)..];
                assert!(recent.contains(&place), "{:?}: found as {place:?}, last known as {recent:?}", file.inode);
            }
            let may_be_gone = !file.synced || file.names.contains(&None);
            match place {
                None => assert!(may_be_gone, "{:?} was fsynced as {:?}, and is gone", file.inode, file.names),
                Some(name) => {
                    found.remove(&name);
                    let content = read_all(client, file.inode).await.expect("what has a name can be read");
                    file.verify(&content, &name);
                    (file.names, file.contents, file.synced) = (vec![Some(name)], vec![content], true);
                    self.counts.files_compared += 1;
                    continue;
                }
            }
            file.names = vec![None];
        }
        self.check_heirs();
        self.files.retain(|file| file.name().is_some());
        if let Some(name) = self.making.take()
            && let Some(inode) = found.remove(&name)
        {
            assert_eq!(read_all(client, inode).await, Ok(Vec::new()), "{name} was just being made");
            self.files.push(Tracked { names: vec![Some(name.clone())], ..Tracked::new(inode, name) });
        }
        assert!(found.is_empty(), "names that nobody made: {found:?}");
    }

    /// A file that was replaced is gone only when the one that replaced it has left its old name.
    fn check_heirs(&mut self) {
        for index in 0..self.files.len() {
            let Some((heir, name)) = self.files[index].heir.take() else { continue };
            let (file, heir) = (&self.files[index], &self.files[heir]);
            let both_lost = file.name().is_none() && heir.name().as_ref() == Some(&name);
            assert!(!both_lost, "{:?} made way for {name}, which never came", file.inode);
        }
    }
}

impl Default for Witness {
    fn default() -> Self {
        Witness::new()
    }
}

impl Tracked {
    fn new(inode: InodeId, name: String) -> Tracked {
        Tracked { inode, names: vec![None, Some(name)], contents: vec![Vec::new()], synced: false, heir: None }
    }

    fn name(&self) -> Option<String> {
        self.names.last().cloned().flatten()
    }

    fn newest(&self) -> &Vec<u8> {
        self.contents.last().expect("there is always a content")
    }

    fn settle(&mut self) {
        self.contents.drain(..self.contents.len() - 1);
        self.names.drain(..self.names.len() - 1);
        self.synced = true;
    }

    fn verify(&self, found: &[u8], name: &str) {
        let (inode, count) = (self.inode, self.contents.len());
        assert!(
            self.contents.iter().any(|content| content.len() == found.len()) || count > 1,
            "{name} ({inode:?}) has {} bytes; fsync acknowledged {}",
            found.len(),
            self.contents[0].len()
        );
        for (at, &byte) in found.iter().enumerate() {
            let allowed = |content: &Vec<u8>| content.get(at).copied().unwrap_or(0) == byte;
            assert!(
                self.contents.iter().any(allowed),
                "{name} ({inode:?}) byte {at} is {byte}; it was {:?} in the {count} contents since the last fsync",
                self.contents.iter().map(|content| content.get(at)).collect::<Vec<_>>()
            );
        }
        let shortest = self.contents.iter().map(Vec::len).min().unwrap_or(0);
        assert!(found.len() >= shortest, "{name} ({inode:?}) has {} bytes, never less than {shortest}", found.len());
    }
}

async fn listing(client: &Client) -> BTreeMap<String, InodeId> {
    let mut names = BTreeMap::new();
    let mut after = 0;
    loop {
        let (entries, last) = client.list(InodeId::ROOT, after, 100, false).await.expect("the root can be listed");
        after = entries.last().map_or(after, |entry| entry.cookie);
        for entry in entries {
            names.insert(String::from_utf8_lossy(&entry.name).into_owned(), entry.inode);
        }
        if last {
            return names;
        }
    }
}

async fn read_all(client: &Client, inode: InodeId) -> Result<Vec<u8>, ClientError> {
    let size = match client.attributes(inode).await {
        Ok(attributes) => attributes.size,
        Err(ClientError::Manager(ManagerError::Stale)) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut content = Vec::new();
    while (content.len() as u64) < size {
        let length = (size - content.len() as u64).min(1 << 20) as u32;
        let pieces = client.read(inode, content.len() as u64, length).await?;
        assert!(pieces.iter().any(|piece| !piece.is_empty()), "a read before the end brings something");
        pieces.iter().for_each(|piece| content.extend_from_slice(piece));
    }
    Ok(content)
}

fn plain_file() -> NewInode {
    let (mode, mask) = (0o644, 0);
    NewInode { kind: Kind::File, mode, mask, device: 0, target: Bytes::new(), caller: Caller::default() }
}

fn plain_rename(from: &str, to: &str) -> Rename {
    Rename {
        from_directory: InodeId::ROOT,
        from_name: Bytes::copy_from_slice(from.as_bytes()),
        to_directory: InodeId::ROOT,
        to_name: Bytes::copy_from_slice(to.as_bytes()),
        mode: RenameMode::Replace,
    }
}
