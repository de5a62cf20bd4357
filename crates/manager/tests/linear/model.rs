//! A file system of names that a child could write. Inodes are called by the number of the operation that made them.

use std::collections::BTreeMap;

use protocol::manager::{ManagerError, RenameMode};

/// The operation that made an inode; 0 made the root.
pub type Maker = u32;
/// A name, of few.
pub type Name = u8;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    Create { directory: Maker, name: Name, maker: Maker, is_directory: bool },
    Link { inode: Maker, directory: Maker, name: Name },
    Unlink { directory: Maker, name: Name },
    RemoveDirectory { directory: Maker, name: Name },
    Rename { from: (Maker, Name), to: (Maker, Name), mode: RenameMode },
    Lookup { directory: Maker, name: Name },
    List { directory: Maker },
    Stat { inode: Maker },
}

/// What comes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    Done,
    /// An inode, and how many links it has.
    Inode(Maker, u32),
    Names(Vec<(Name, Maker)>),
    Refused(ManagerError),
}

/// In an answer: how many links there are, it does not say.
pub const UNTOLD: u32 = u32::MAX;

impl Answered {
    /// Whether this answer is `right`, as far as it goes.
    pub fn says(&self, right: &Answered) -> bool {
        match (self, right) {
            (Answered::Inode(maker, UNTOLD), Answered::Inode(other, _)) => maker == other,
            _ => self == right,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Node {
    is_directory: bool,
    links: u32,
    parent: Maker,
    names: BTreeMap<Name, Maker>,
}

/// All names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Names(BTreeMap<Maker, Node>);

impl Names {
    pub fn new() -> Names {
        Names([(0, Node { is_directory: true, links: 2, parent: 0, names: BTreeMap::new() })].into())
    }

    pub fn ask(&mut self, asked: &Asked) -> Answered {
        self.answer(asked).unwrap_or_else(Answered::Refused)
    }

    fn answer(&mut self, asked: &Asked) -> Result<Answered, ManagerError> {
        match asked {
            Asked::Create { directory, name, maker, is_directory } => {
                if self.find(*directory, *name)?.is_some() {
                    return Err(ManagerError::Exists);
                }
                let (is_directory, links) = (*is_directory, if *is_directory { 2 } else { 1 });
                let node = Node { is_directory, links, parent: *directory, names: BTreeMap::new() };
                self.0.insert(*maker, node);
                self.add(*directory, *name, *maker);
                Ok(Answered::Inode(*maker, links))
            }
            Asked::Link { inode, directory, name } => {
                self.directory(*directory)?;
                let node = self.0.get(inode).ok_or(ManagerError::Stale)?;
                if node.is_directory {
                    return Err(ManagerError::NotPermitted);
                }
                let links = node.links + 1;
                if self.find(*directory, *name)?.is_some() {
                    return Err(ManagerError::Exists);
                }
                self.node(*inode).links = links;
                self.add(*directory, *name, *inode);
                Ok(Answered::Inode(*inode, links))
            }
            Asked::Unlink { directory, name } => self.remove(*directory, *name, false),
            Asked::RemoveDirectory { directory, name } => self.remove(*directory, *name, true),
            Asked::Rename { from, to, mode } => self.rename(*from, *to, *mode),
            Asked::Lookup { directory, name } => {
                let inode = self.find(*directory, *name)?.ok_or(ManagerError::NotFound)?;
                Ok(Answered::Inode(inode, self.0[&inode].links))
            }
            Asked::List { directory } => {
                let node = self.directory(*directory)?;
                Ok(Answered::Names(node.names.iter().map(|(name, inode)| (*name, *inode)).collect()))
            }
            Asked::Stat { inode } => {
                let node = self.0.get(inode).ok_or(ManagerError::Stale)?;
                Ok(Answered::Inode(*inode, node.links))
            }
        }
    }

    fn node(&mut self, inode: Maker) -> &mut Node {
        self.0.get_mut(&inode).expect("it was just there")
    }

    fn directory(&self, inode: Maker) -> Result<&Node, ManagerError> {
        let node = self.0.get(&inode).ok_or(ManagerError::Stale)?;
        if node.is_directory { Ok(node) } else { Err(ManagerError::NotDirectory) }
    }

    fn find(&self, directory: Maker, name: Name) -> Result<Option<Maker>, ManagerError> {
        Ok(self.directory(directory)?.names.get(&name).copied())
    }

    fn add(&mut self, directory: Maker, name: Name, inode: Maker) {
        self.node(directory).names.insert(name, inode);
        if self.0[&inode].is_directory {
            self.node(inode).parent = directory;
            self.node(directory).links += 1;
        }
    }

    fn take(&mut self, directory: Maker, name: Name) {
        let inode = self.node(directory).names.remove(&name).expect("it was just found");
        if self.0[&inode].is_directory {
            self.node(directory).links -= 1;
        }
    }

    fn drop_link(&mut self, inode: Maker) {
        let node = self.node(inode);
        node.links = if node.is_directory { 0 } else { node.links - 1 };
        if node.links == 0 {
            self.0.remove(&inode);
        }
    }

    fn remove(&mut self, directory: Maker, name: Name, want_directory: bool) -> Result<Answered, ManagerError> {
        let inode = self.find(directory, name)?.ok_or(ManagerError::NotFound)?;
        match (want_directory, self.0[&inode].is_directory) {
            (true, false) => return Err(ManagerError::NotDirectory),
            (false, true) => return Err(ManagerError::IsDirectory),
            (true, true) if !self.0[&inode].names.is_empty() => return Err(ManagerError::NotEmpty),
            _ => {}
        }
        self.take(directory, name);
        self.drop_link(inode);
        Ok(Answered::Done)
    }

    fn is_below(&self, what: Maker, mut at: Maker) -> bool {
        loop {
            if at == what {
                return true;
            }
            let parent = self.0[&at].parent;
            if parent == at {
                return false;
            }
            at = parent;
        }
    }

    fn rename(&mut self, from: (Maker, Name), to: (Maker, Name), mode: RenameMode) -> Result<Answered, ManagerError> {
        self.directory(from.0)?;
        self.directory(to.0)?;
        let source = self.find(from.0, from.1)?.ok_or(ManagerError::NotFound)?;
        let target = self.find(to.0, to.1)?;
        match (mode, target) {
            (RenameMode::Keep, Some(_)) => return Err(ManagerError::Exists),
            (RenameMode::Exchange, None) => return Err(ManagerError::NotFound),
            _ if target == Some(source) => return Ok(Answered::Done),
            _ => {}
        }
        let closes = |names: &Names, what: Maker, into| names.0[&what].is_directory && names.is_below(what, into);
        let circle = || ManagerError::Invalid("a directory cannot move below itself".into());
        if closes(self, source, to.0) {
            return Err(circle());
        }
        let is_directory = self.0[&source].is_directory;
        if let (RenameMode::Exchange, Some(target)) = (mode, target) {
            if closes(self, target, from.0) {
                return Err(circle());
            }
            self.take(from.0, from.1);
            self.take(to.0, to.1);
            self.add(from.0, from.1, target);
            self.add(to.0, to.1, source);
            return Ok(Answered::Done);
        }
        if let Some(target) = target {
            match (is_directory, self.0[&target].is_directory) {
                (true, false) => return Err(ManagerError::NotDirectory),
                (false, true) => return Err(ManagerError::IsDirectory),
                (true, true) if !self.0[&target].names.is_empty() => return Err(ManagerError::NotEmpty),
                _ => {}
            }
            self.take(to.0, to.1);
            self.drop_link(target);
        }
        self.take(from.0, from.1);
        self.add(to.0, to.1, source);
        Ok(Answered::Done)
    }
}
