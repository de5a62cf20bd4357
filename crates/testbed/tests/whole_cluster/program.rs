//! A program on one machine, in one life of its daemon: it writes and reads cells of files that all share, keeps files of its
//! own, and makes, moves and removes names that all use.

use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientError, WriteAt};
use host::Host;
use host::sim::Dice;
use protocol::file::{Caller, Kind, NewInode};
use protocol::id::InodeId;
use protocol::manager::{ManagerError, Rename, RenameMode};

use super::names::Names;
use super::rack::Life;
use super::story::{CELL_BYTES, CELLS, Kept, Pending, Told};

/// The largest file that is kept: of several stripes.
const KEPT_BYTES_MAX: u64 = 400_000;
/// How often a program that is held looks whether it is still.
const HELD_LOOK: Duration = Duration::from_millis(10);
/// How many are kept at a time.
const KEPT_MAX: usize = 12;

pub struct Program {
    pub host: Host,
    pub client: Client,
    pub life: Life,
    pub told: Told,
    pub dice: Dice,
    /// Its own writes of each shared file that no fsync has covered.
    loose: Vec<Vec<u64>>,
}

pub fn new_inode(kind: Kind, uid: u32) -> NewInode {
    let caller = Caller { uid, gid: 0 };
    NewInode { kind, mode: 0o755, mask: 0, device: 0, target: Bytes::new(), caller }
}

pub fn rename_of(from: (InodeId, Bytes), to: (InodeId, Bytes), mode: RenameMode) -> Rename {
    Rename { from_directory: from.0, from_name: from.1, to_directory: to.0, to_name: to.1, mode }
}

impl Program {
    pub fn new(host: Host, client: Client, life: Life, told: Told, dice: Dice) -> Program {
        let loose = vec![Vec::new(); told.lock().files.len()];
        Program { host, client, life, told, dice, loose }
    }

    /// Works until the story is over, or the daemon is.
    pub async fn run(mut self) {
        while !self.told.lock().over {
            if self.told.lock().held == Some(self.life) {
                self.host.sleep(HELD_LOOK).await;
                continue;
            }
            *self.told.lock().busy.entry(self.life).or_default() += 1;
            let outcome = match self.dice.below(20) {
                0..=4 => self.write().await,
                5..=9 => self.read().await,
                10 | 11 => self.fsync().await,
                12 => self.keep().await,
                13 => self.move_kept().await,
                14 => self.verify_one().await,
                15..=17 => {
                    let mut names =
                        Names { client: &self.client, told: &self.told, dice: &mut self.dice, life: self.life };
                    names.step().await
                }
                _ => {
                    let most = 1 << self.dice.within(16..30);
                    self.host.sleep(Duration::from_nanos(self.dice.below(most))).await;
                    Ok(())
                }
            };
            let mut told = self.told.lock();
            *told.busy.get_mut(&self.life).expect("it was just counted") -= 1;
            match outcome {
                Ok(()) => told.counts.calls += 1,
                Err(ClientError::Expelled | ClientError::Stopped) => return,
                Err(_) => told.counts.failed += 1,
            }
        }
    }

    fn any_file(&mut self) -> usize {
        self.dice.below(self.loose.len() as u64) as usize
    }

    async fn write(&mut self) -> Result<(), ClientError> {
        let file = self.any_file();
        let first = self.dice.below(CELLS);
        let cells = first..first + 1 + self.dice.below(CELLS - first);
        let begin = self.told.now();
        let (value, inode) = {
            let mut told = self.told.lock();
            let value = told.value();
            let shared = &mut told.files[file];
            cells.clone().for_each(|cell| shared.cells[cell as usize].begin(value, self.life.number(), begin));
            (value, shared.inode)
        };
        let bytes = value.to_le_bytes().repeat(((cells.end - cells.start) * CELL_BYTES / 8) as usize);
        self.client.write(inode, WriteAt::Offset(first * CELL_BYTES), bytes.into()).await?;
        let end = self.told.now();
        self.loose[file].push(value);
        let mut told = self.told.lock();
        cells.for_each(|cell| told.files[file].cells[cell as usize].end(value, end));
        Ok(())
    }

    async fn read(&mut self) -> Result<(), ClientError> {
        let file = self.any_file();
        let first = self.dice.below(CELLS);
        let count = 1 + self.dice.below(CELLS - first);
        self.read_cells(file, first, count).await
    }

    async fn read_cells(&mut self, file: usize, first: u64, count: u64) -> Result<(), ClientError> {
        let inode = self.told.lock().files[file].inode;
        let begin = self.told.now();
        let bytes = self.client.read(inode, first * CELL_BYTES, (count * CELL_BYTES) as u32).await?.concat();
        let time = begin..self.told.now();
        assert_eq!(bytes.len() as u64, count * CELL_BYTES, "no file is shorter than its cells");
        let mut told = self.told.lock();
        for (number, cell) in bytes.chunks(CELL_BYTES as usize).enumerate() {
            let words: Vec<u64> = cell.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
            assert!(words.iter().all(|word| *word == words[0]), "a cell is written at once: {words:?}");
            told.files[file].cells[first as usize + number].read(words[0], self.life.number(), time.clone());
        }
        Ok(())
    }

    async fn fsync(&mut self) -> Result<(), ClientError> {
        let file = self.any_file();
        let inode = self.told.lock().files[file].inode;
        // What an fsync covers that failed is lasting when a later one succeeds.
        let covered = self.loose[file].clone();
        self.client.fsync(inode, false).await?;
        self.loose[file].drain(..covered.len());
        self.told.lock().outlasts(covered);
        Ok(())
    }

    /// Makes a file and stores it.
    async fn keep(&mut self) -> Result<(), ClientError> {
        if self.told.lock().kept.len() >= KEPT_MAX {
            return Ok(());
        }
        let number = self.told.lock().value();
        let most = if self.dice.below(4) == 0 { KEPT_BYTES_MAX } else { 20_000 };
        let length = self.dice.below(most) as usize;
        let mut bytes = self.dice.roll().to_le_bytes().repeat(length.div_ceil(8));
        bytes.truncate(length);
        let name = format!("kept-{number}");
        let new = new_inode(Kind::File, 0);
        let inode = self.client.create_open(InodeId::ROOT, Bytes::from(name.clone()), new).await?.inode;
        let stored = async {
            for (index, piece) in bytes.chunks(64 << 10).enumerate() {
                let at = WriteAt::Offset((index as u64) << 16);
                self.client.write(inode, at, Bytes::copy_from_slice(piece)).await?;
            }
            self.client.fsync(inode, false).await
        };
        let stored = stored.await;
        self.client.close(inode).await;
        stored?;
        let mut told = self.told.lock();
        told.counts.kept += 1;
        let story = format!("{inode:?}, stored by {:?} at {:?}", self.life, told.time());
        told.kept.insert(number, Kept { inode, bytes, names: [name].into(), pending: None, story });
        Ok(())
    }

    /// Gives a kept file another name, or takes one away, durably.
    async fn move_kept(&mut self) -> Result<(), ClientError> {
        let (number, inode, pending) = {
            let mut told = self.told.lock();
            let fresh = told.value();
            let calm: Vec<u64> =
                told.kept.iter().filter(|(_, kept)| kept.pending.is_none()).map(|(number, _)| *number).collect();
            let Some(&number) = self.dice.pick(&calm) else { return Ok(()) };
            let kept = told.kept.get_mut(&number).expect("it was just there");
            let name = kept.names.first().expect("who has no name is forgotten").clone();
            let pending = match self.dice.below(3) {
                0 => Pending::Rename { from: name, to: format!("moved-{fresh}") },
                1 => Pending::Link { to: format!("link-{fresh}") },
                _ => Pending::Unlink { name },
            };
            kept.pending = Some(pending.clone());
            (number, kept.inode, pending)
        };
        let root = |name: &String| (InodeId::ROOT, Bytes::from(name.clone()));
        match &pending {
            Pending::Rename { from, to } => {
                self.client.rename(rename_of(root(from), root(to), RenameMode::Replace)).await?;
            }
            Pending::Link { to } => drop(self.client.link(inode, InodeId::ROOT, Bytes::from(to.clone())).await?),
            Pending::Unlink { name } => self.client.unlink(InodeId::ROOT, Bytes::from(name.clone())).await?,
        }
        if self.dice.coin() && !matches!(pending, Pending::Unlink { .. }) {
            self.client.fsync(inode, false).await?;
        } else {
            self.client.fsync_directory(InodeId::ROOT).await?;
        }
        let mut told = self.told.lock();
        let kept = told.kept.get_mut(&number).expect("who has it pending has it alone");
        kept.pending = None;
        match pending {
            Pending::Rename { from, to } => {
                kept.names.remove(&from);
                kept.names.insert(to);
            }
            Pending::Link { to } => drop(kept.names.insert(to)),
            Pending::Unlink { name } => drop(kept.names.remove(&name)),
        }
        if kept.names.is_empty() {
            told.kept.remove(&number);
        }
        Ok(())
    }

    async fn verify_one(&mut self) -> Result<(), ClientError> {
        let numbers: Vec<u64> = self.told.lock().kept.keys().copied().collect();
        match self.dice.pick(&numbers) {
            Some(&number) => self.verify(number).await,
            None => Ok(()),
        }
    }

    /// Compares a kept file with what was promised of it. Others may change its names meanwhile: then only its bytes.
    async fn verify(&mut self, number: u64) -> Result<(), ClientError> {
        let Some(before) = self.told.lock().kept.get(&number).cloned() else { return Ok(()) };
        let mut names: Vec<String> = before.names.iter().cloned().collect();
        match &before.pending {
            Some(Pending::Rename { to, .. } | Pending::Link { to }) => names.push(to.clone()),
            Some(Pending::Unlink { .. }) | None => {}
        }
        let mut found = Vec::new();
        let mut content = None;
        for name in names {
            match self.client.lookup(InodeId::ROOT, Bytes::from(name.clone())).await {
                Ok(attributes) => {
                    assert_eq!(attributes.inode, before.inode, "{name} is what it was");
                    found.push(name.clone());
                }
                Err(ClientError::Manager(ManagerError::NotFound)) => continue,
                Err(error) => return Err(error),
            }
            if content.is_none() {
                let length = before.bytes.len() as u32 + 1;
                match self.read_whole(before.inode, length).await {
                    Err(ClientError::Manager(ManagerError::Stale)) => {}
                    other => content = Some((name, other?)),
                }
            }
        }
        let told = self.told.lock();
        let unchanged = told.kept.get(&number).is_some_and(|now| {
            now.names == before.names && format!("{:?}", now.pending) == format!("{:?}", before.pending)
        });
        if unchanged {
            before.compare(&found);
            let is_leaving = matches!(before.pending, Some(Pending::Unlink { .. }));
            let is_read = content.is_some() || found.is_empty() || is_leaving;
            assert!(is_read, "what has the name {:?} can be read", found.first());
        }
        if let Some((name, content)) = content {
            before.compare_bytes(&name, &content);
        }
        Ok(())
    }

    async fn read_whole(&self, inode: InodeId, length: u32) -> Result<Vec<u8>, ClientError> {
        let mut content = Vec::new();
        loop {
            let piece = self.client.read(inode, content.len() as u64, length - content.len() as u32).await?.concat();
            content.extend_from_slice(&piece);
            if piece.is_empty() || content.len() as u32 >= length {
                return Ok(content);
            }
        }
    }

    /// Looks at everything, when nothing disturbs it any more.
    pub async fn look_at_all(mut self) -> Result<(), String> {
        let said = |what: &str, error: ClientError| format!("{what}: {error}");
        for file in 0..self.loose.len() {
            self.read_cells(file, 0, CELLS).await.map_err(|error| said("a shared file", error))?;
        }
        let numbers: Vec<u64> = self.told.lock().kept.keys().copied().collect();
        for number in numbers {
            let checked = self.verify(number).await;
            checked.map_err(|error| {
                said(&format!("kept file {number}: {:?}", self.told.lock().kept[&number].story), error)
            })?;
        }
        let mut names = Names { client: &self.client, told: &self.told, dice: &mut self.dice, life: self.life };
        names.look_at_all().await.map_err(|error| said("names", error))?;
        self.write().await.map_err(|error| said("a write", error))?;
        for file in 0..self.loose.len() {
            let inode = self.told.lock().files[file].inode;
            self.client.fsync(inode, false).await.map_err(|error| said("an fsync", error))?;
        }
        self.told.lock().outlasts(self.loose.into_iter().flatten());
        Ok(())
    }
}

impl Kept {
    /// # Panics
    /// When it does not have the bytes that it must have.
    fn compare_bytes(&self, name: &str, found: &[u8]) {
        let wrong = (0..self.bytes.len()).find(|&at| found.get(at) != Some(&self.bytes[at]));
        let Some(at) = wrong else { return };
        let (story, length, wanted) = (&self.story, found.len(), self.bytes.len());
        let until = (at..wanted).find(|&at| found.get(at) == Some(&self.bytes[at])).unwrap_or(wanted);
        panic!("{name}, {story}, has {length} bytes of {wanted}; {at}..{until} are wrong: {:?}", found.get(at));
    }

    /// # Panics
    /// When these are not the names that it must have.
    fn compare(&self, found: &[String]) {
        let has = |name: &String| found.contains(name);
        let missing = |but: Option<&String>| self.names.iter().find(|name| Some(*name) != but && !has(name)).cloned();
        let (lacks, whole) = match &self.pending {
            None | Some(Pending::Link { .. }) => (missing(None), true),
            Some(Pending::Rename { from, to }) => (missing(Some(from)), has(from) || has(to)),
            Some(Pending::Unlink { name }) => (missing(Some(name)), true),
        };
        assert!(
            lacks.is_none() && whole,
            "{:?} has {found:?}, of {:?}, pending {:?}",
            self.inode,
            self.names,
            self.pending
        );
    }
}
