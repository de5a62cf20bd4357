//! Operations on few names in few directories, by programs on all machines; each is noted, for the checker.

use bytes::Bytes;
use client::{Client, ClientError};
use host::sim::Dice;
use protocol::file::{Attributes, Kind};
use protocol::id::InodeId;
use protocol::manager::{ManagerError, RenameMode};

use super::linear::Event;
use super::linear::model::{Answered, Asked, Maker, Name, UNTOLD};
use super::program::{new_inode, rename_of};
use super::rack::Life;
use super::story::Told;

/// Few, so that programs get in each other's way.
const NAMES: u64 = 3;
/// As many as the checker can put in order.
const OPERATIONS_MAX: u64 = 60;

/// What one program does with names.
pub struct Names<'a> {
    pub client: &'a Client,
    pub told: &'a Told,
    pub dice: &'a mut Dice,
    pub life: Life,
}

impl Names<'_> {
    /// One operation, unless there were enough of them.
    pub async fn step(&mut self) -> Result<(), ClientError> {
        if self.told.lock().era.asked >= OPERATIONS_MAX || !self.has_root().await? {
            return Ok(());
        }
        let asked = self.choose();
        self.ask(asked).await
    }

    /// What is there in the end.
    pub async fn look_at_all(&mut self) -> Result<(), ClientError> {
        let all: Vec<(Maker, Kind)> =
            self.told.lock().era.inodes.iter().map(|(maker, (_, kind))| (*maker, *kind)).collect();
        for (maker, kind) in all {
            self.ask(Asked::Stat { inode: maker }).await?;
            if kind == Kind::Directory {
                for name in 0..NAMES as Name {
                    self.ask(Asked::Lookup { directory: maker, name }).await?;
                }
                self.ask(Asked::List { directory: maker }).await?;
            }
        }
        Ok(())
    }

    /// Whether there is a directory for these names. Whoever comes first makes it.
    async fn has_root(&mut self) -> Result<bool, ClientError> {
        let name = {
            let mut told = self.told.lock();
            match (told.era.root, told.era.making) {
                (Some(_), _) => return Ok(true),
                (None, Some(_)) => return Ok(false),
                (None, None) => {}
            }
            told.era.making = Some(self.life);
            format!("era-{}", told.value())
        };
        let made = self.client.create(InodeId::ROOT, Bytes::from(name), new_inode(Kind::Directory, 0)).await;
        let mut told = self.told.lock();
        // Another life may make one by now.
        if told.era.making == Some(self.life) {
            told.era.making = None;
            let root = made?.inode;
            told.era.root = Some(root);
            told.era.inodes = [(0, (root, Kind::Directory))].into();
        }
        Ok(told.era.root.is_some())
    }

    fn any(&mut self, kind: Option<Kind>) -> Maker {
        let told = self.told.lock();
        let fits = |(_, (_, of)): &(&Maker, &(InodeId, Kind))| kind.is_none_or(|kind| kind == *of);
        let all: Vec<Maker> = told.era.inodes.iter().filter(fits).map(|(maker, _)| *maker).collect();
        // The newest are more fun.
        let newest = &all[all.len().saturating_sub(5)..];
        let from = if self.dice.below(3) == 0 { &all } else { newest };
        *self.dice.pick(from).unwrap_or(&0)
    }

    fn choose(&mut self) -> Asked {
        let directory = self.any(Some(Kind::Directory));
        let name = self.dice.below(NAMES) as Name;
        match self.dice.below(20) {
            0..=5 => {
                let mut told = self.told.lock();
                told.makers += 1;
                Asked::Create { directory, name, maker: told.makers, is_directory: self.dice.coin() }
            }
            6 | 7 => Asked::Link { inode: self.any(None), directory, name },
            8 | 9 => Asked::Unlink { directory, name },
            10 => Asked::RemoveDirectory { directory, name },
            11..=15 => {
                let modes = [RenameMode::Replace, RenameMode::Replace, RenameMode::Keep, RenameMode::Exchange];
                let mode = *self.dice.pick(&modes).expect("there are some");
                let to = (self.any(Some(Kind::Directory)), self.dice.below(NAMES) as Name);
                Asked::Rename { from: (directory, name), to, mode }
            }
            16 => Asked::List { directory },
            17 => Asked::Stat { inode: self.any(None) },
            _ => Asked::Lookup { directory, name },
        }
    }

    fn inode(&self, maker: Maker) -> InodeId {
        self.told.lock().era.inodes[&maker].0
    }

    async fn ask(&mut self, asked: Asked) -> Result<(), ClientError> {
        let changes = !matches!(asked, Asked::List { .. } | Asked::Lookup { .. } | Asked::Stat { .. });
        // Noted before it begins, since its life may end in it.
        let (era, event) = {
            let mut told = self.told.lock();
            let began = told.tick();
            told.era.asked += 1;
            if changes {
                told.era.history.push(Event { began, ended: None, asked: asked.clone(), answered: None });
            }
            (told.era.number, Event { began, ended: None, asked: asked.clone(), answered: None })
        };
        let outcome = self.answer(&asked).await;
        let mut told = self.told.lock();
        let ended = Some(told.tick());
        if told.era.number != era {
            return Ok(());
        }
        let place = told.era.history.iter().position(|noted| changes && noted.began == event.began);
        match (outcome, place) {
            (Ok(Some(answered)), place) => {
                let event = Event { ended, answered: Some(answered), ..event };
                match place {
                    Some(place) => told.era.history[place] = event,
                    None => told.era.history.push(event),
                }
                Ok(())
            }
            // It took effect for all that is known, with an answer that says nothing.
            (Ok(None), _) => Ok(()),
            // It may have taken effect, and may yet.
            (Err(error), _) => Err(error),
        }
    }

    /// What comes of it; nothing where the answer names what nobody knows.
    async fn answer(&self, asked: &Asked) -> Result<Option<Answered>, ClientError> {
        let name = |name: &Name| Bytes::from(format!("name {name}"));
        let done = |outcome: Result<(), ClientError>| outcome.map(|()| Some(Answered::Done));
        let era = self.told.lock().era.number;
        let outcome = match asked {
            Asked::Create { directory, name: of, maker, is_directory } => {
                let new = new_inode(if *is_directory { Kind::Directory } else { Kind::File }, *maker);
                self.entry(era, self.client.create(self.inode(*directory), name(of), new).await)
            }
            Asked::Link { inode, directory, name: of } => {
                let linked = self.client.link(self.inode(*inode), self.inode(*directory), name(of)).await;
                self.named(era, linked)
            }
            Asked::Unlink { directory, name: of } => done(self.client.unlink(self.inode(*directory), name(of)).await),
            Asked::RemoveDirectory { directory, name: of } => {
                done(self.client.remove_directory(self.inode(*directory), name(of)).await)
            }
            Asked::Rename { from, to, mode } => {
                let (from, to) = ((self.inode(from.0), name(&from.1)), (self.inode(to.0), name(&to.1)));
                done(self.client.rename(rename_of(from, to, *mode)).await)
            }
            Asked::Lookup { directory, name: of } => {
                self.named(era, self.client.lookup(self.inode(*directory), name(of)).await)
            }
            Asked::Stat { inode } => self.entry(era, self.client.attributes(self.inode(*inode)).await),
            Asked::List { directory } => self.list(self.inode(*directory)).await,
        };
        match outcome {
            Err(ClientError::Manager(
                error @ (ManagerError::Failed(_) | ManagerError::NotMine | ManagerError::Held),
            )) => Err(ClientError::Manager(error)),
            Err(ClientError::Manager(error)) => Ok(Some(Answered::Refused(error))),
            other => other,
        }
    }

    fn entry(&self, era: u32, outcome: Result<Attributes, ClientError>) -> Result<Option<Answered>, ClientError> {
        let attributes = outcome?;
        let known = (attributes.inode, attributes.kind);
        let mut told = self.told.lock();
        if told.era.number == era {
            let before = told.era.inodes.insert(attributes.uid, known);
            assert!(before.is_none_or(|before| before == known), "a number is given once");
        }
        Ok(Some(Answered::Inode(attributes.uid, attributes.links)))
    }

    /// The same, where a name was made or found: the attributes that come along may be newer than that, for they may be
    /// another manager's.
    fn named(&self, era: u32, outcome: Result<Attributes, ClientError>) -> Result<Option<Answered>, ClientError> {
        self.entry(era, outcome).map(|told| match told {
            Some(Answered::Inode(maker, _)) => Some(Answered::Inode(maker, UNTOLD)),
            told => told,
        })
    }

    async fn list(&self, directory: InodeId) -> Result<Option<Answered>, ClientError> {
        let (entries, last) = self.client.list(directory, 0, 100, false).await?;
        assert!(last, "few names are told at once");
        let told = self.told.lock();
        let maker = |inode| told.era.inodes.iter().find(|(_, (known, _))| *known == inode).map(|(maker, _)| *maker);
        let named = entries.iter().map(|entry| Some((entry.name[5] - b'0', maker(entry.inode)?)));
        let mut names: Option<Vec<(Name, Maker)>> = named.collect();
        names.iter_mut().for_each(|names| names.sort_unstable());
        Ok(names.map(Answered::Names))
    }
}
