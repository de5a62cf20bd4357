//! Random operations on names and contents, against a file system that a child could write.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use protocol::address::{LogAddress, Position};
use protocol::delta::{Change, Delta};
use protocol::file::{Caller, Content, Kind, NewInode, SetAttributes, Time};
use protocol::id::{InodeId, LogId, StripeNumber};
use protocol::manager::{
    Answer, CloneRange, Deltas, ManagerError, ManagerRequest, Moved, Rename, RenameMode, XattrMode,
};

use super::Dice;
use super::bench::Bench;
use super::truth;

const DATA: LogId = LogId(50);
const MOVED: LogId = LogId(51);
const STRIPE_SIZE: usize = 4096;

struct Node {
    kind: Kind,
    links: u32,
    parent: InodeId,
    names: BTreeMap<Vec<u8>, InodeId>,
    /// When its names changed, or what was set; of directories.
    modified: i64,
    content: Vec<u8>,
    inline: bool,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The naive file system.
#[derive(Default)]
struct Model {
    nodes: BTreeMap<InodeId, Node>,
    open: BTreeSet<InodeId>,
    now: i64,
}

impl Model {
    fn new() -> Model {
        let mut model = Model::default();
        let mut root = Node::new(Kind::Directory, InodeId::ROOT);
        root.modified = 1_000_001;
        model.nodes.insert(InodeId::ROOT, root);
        model
    }

    fn directory(&self, inode: InodeId) -> Result<&Node, ManagerError> {
        let node = self.nodes.get(&inode).ok_or(ManagerError::Stale)?;
        if node.kind == Kind::Directory { Ok(node) } else { Err(ManagerError::NotDirectory) }
    }

    fn find(&self, directory: InodeId, name: &[u8]) -> Result<Option<InodeId>, ManagerError> {
        Ok(self.directory(directory)?.names.get(name).copied())
    }

    fn is_directory(&self, inode: InodeId) -> bool {
        self.nodes[&inode].kind == Kind::Directory
    }

    fn add(&mut self, directory: InodeId, name: &[u8], inode: InodeId) {
        let node = self.nodes.get_mut(&directory).unwrap();
        node.names.insert(name.to_vec(), inode);
        node.modified = self.now;
        let down = self.nodes.get_mut(&inode).unwrap();
        if down.kind == Kind::Directory {
            down.parent = directory;
            self.nodes.get_mut(&directory).unwrap().links += 1;
        }
    }

    fn take(&mut self, directory: InodeId, name: &[u8]) -> InodeId {
        let node = self.nodes.get_mut(&directory).unwrap();
        let inode = node.names.remove(name).unwrap();
        node.modified = self.now;
        if self.is_directory(inode) {
            self.nodes.get_mut(&directory).unwrap().links -= 1;
        }
        inode
    }

    fn drop_link(&mut self, inode: InodeId) -> u32 {
        let node = self.nodes.get_mut(&inode).unwrap();
        node.links = if node.kind == Kind::Directory { 0 } else { node.links - 1 };
        let links = node.links;
        if links == 0 && !self.open.contains(&inode) {
            self.nodes.remove(&inode);
        }
        links
    }

    fn below(&self, what: InodeId, mut at: InodeId) -> bool {
        loop {
            if at == what {
                return true;
            }
            let parent = self.nodes[&at].parent;
            if parent == at || !self.nodes.contains_key(&parent) {
                return false;
            }
            at = parent;
        }
    }

    fn remove(
        &mut self,
        directory: InodeId,
        name: &[u8],
        want_directory: bool,
    ) -> Result<(InodeId, u32), ManagerError> {
        let inode = self.find(directory, name)?.ok_or(ManagerError::NotFound)?;
        match (want_directory, self.is_directory(inode)) {
            (true, false) => return Err(ManagerError::NotDirectory),
            (false, true) => return Err(ManagerError::IsDirectory),
            (true, true) if !self.nodes[&inode].names.is_empty() => return Err(ManagerError::NotEmpty),
            _ => {}
        }
        self.take(directory, name);
        Ok((inode, self.drop_link(inode)))
    }

    fn rename(&mut self, rename: &Rename) -> Result<Option<(InodeId, u32)>, ManagerError> {
        let (from_directory, to_directory) = (rename.from_directory, rename.to_directory);
        self.directory(from_directory)?;
        if self.directory(to_directory)?.links == 0 {
            return Err(ManagerError::NotFound);
        }
        let from = self.find(from_directory, &rename.from_name)?.ok_or(ManagerError::NotFound)?;
        let to = self.find(to_directory, &rename.to_name)?;
        match (rename.mode, to) {
            (RenameMode::Keep, Some(_)) => return Err(ManagerError::Exists),
            (RenameMode::Exchange, None) => return Err(ManagerError::NotFound),
            _ if to == Some(from) => return Ok(None),
            _ => {}
        }
        let circle = |model: &Model, what, to| model.is_directory(what) && model.below(what, to);
        if circle(self, from, to_directory) {
            return Err(ManagerError::Invalid(String::new()));
        }
        if rename.mode == RenameMode::Exchange {
            if circle(self, to.unwrap(), from_directory) {
                return Err(ManagerError::Invalid(String::new()));
            }
            self.take(from_directory, &rename.from_name);
            self.take(to_directory, &rename.to_name);
            self.add(from_directory, &rename.from_name, to.unwrap());
            self.add(to_directory, &rename.to_name, from);
            return Ok(None);
        }
        let mut removed = None;
        if let Some(to) = to {
            match (self.is_directory(from), self.is_directory(to)) {
                (true, false) => return Err(ManagerError::NotDirectory),
                (false, true) => return Err(ManagerError::IsDirectory),
                (true, true) if !self.nodes[&to].names.is_empty() => return Err(ManagerError::NotEmpty),
                _ => {}
            }
            self.take(to_directory, &rename.to_name);
            removed = (self.drop_link(to) == 0).then_some((to, 0));
        }
        self.take(from_directory, &rename.from_name);
        self.add(to_directory, &rename.to_name, from);
        Ok(removed)
    }
}

impl Node {
    fn new(kind: Kind, parent: InodeId) -> Node {
        let links = if kind == Kind::Directory { 2 } else { 1 };
        let (names, xattrs) = (BTreeMap::new(), BTreeMap::new());
        Node { kind, links, parent, names, modified: 0, content: Vec::new(), inline: false, xattrs }
    }
}

/// A manager, the model beside it, and the data log that their extents point into.
struct Trial {
    bench: Bench,
    model: Model,
    dice: Dice,
    data: BTreeMap<(LogId, StripeNumber), Vec<u8>>,
    delta_position: u32,
    last_deltas: Option<Deltas>,
}

impl Trial {
    fn new(seed: u64) -> Trial {
        let (bench, model, dice) = (Bench::new(), Model::new(), Dice::new(seed));
        Trial { bench, model, dice, data: BTreeMap::new(), delta_position: 0, last_deltas: None }
    }

    fn name(&mut self) -> Bytes {
        Bytes::from(vec![b'a' + self.dice.below(7) as u8; 1 + self.dice.below(3) as usize])
    }

    fn any(&mut self, wanted: impl Fn(&Node) -> bool) -> InodeId {
        let all: Vec<InodeId> =
            self.model.nodes.iter().filter(|(_, node)| wanted(node)).map(|(inode, _)| *inode).collect();
        if all.is_empty() { InodeId(12345) } else { all[self.dice.below(all.len() as u64) as usize] }
    }

    fn any_directory(&mut self) -> InodeId {
        if self.dice.one_in(30) { self.any(|_| true) } else { self.any(|node| node.kind == Kind::Directory) }
    }

    fn any_file(&mut self) -> InodeId {
        self.any(|node| node.kind == Kind::File)
    }

    fn step(&mut self) {
        // What the bench will count as the time of the next operation.
        self.model.now = self.bench.now + 1;
        match self.dice.below(27) {
            0..=4 => self.create(),
            5 => self.link(),
            6 | 7 => self.remove(false),
            8 => self.remove(true),
            9..=12 => self.rename(),
            13..=16 => self.write(),
            17 => self.truncate(),
            18 => self.punch(),
            19 | 20 => self.clone_range(),
            21 => self.xattr(),
            22 | 23 => self.open_or_close(),
            24 => self.clean(),
            25 => self.set_time(),
            _ => self.unnamed(),
        }
    }

    fn new_inode(&mut self) -> NewInode {
        let kind = [Kind::File, Kind::File, Kind::Directory, Kind::Symlink, Kind::Pipe][self.dice.below(5) as usize];
        let target = if kind == Kind::Symlink { Bytes::from_static(b"to") } else { Bytes::new() };
        NewInode { kind, mode: 0o755, mask: 0o022, device: 0, target, caller: Caller { uid: 5, gid: 6 } }
    }

    fn create(&mut self) {
        let (directory, name, new) = (self.any_directory(), self.name(), self.new_inode());
        let open = self.dice.one_in(4);
        let kind = new.kind;
        let answer = self.bench.ask(ManagerRequest::Create { directory, name: name.clone(), new, open });
        let expected = self.model.directory(directory).and_then(|node| match node {
            node if node.links == 0 => Err(ManagerError::NotFound),
            node if node.names.contains_key(&name[..]) => Err(ManagerError::Exists),
            _ => Ok(()),
        });
        let answer = same(answer, expected);
        if let Some((Answer::Entry(attributes, _), ())) = answer {
            let inode = attributes.inode;
            let node = Node { modified: self.model.now, ..Node::new(kind, directory) };
            assert!(self.model.nodes.insert(inode, node).is_none(), "a number is given once");
            self.model.add(directory, &name, inode);
            if open {
                self.model.open.insert(inode);
            }
        }
    }

    fn unnamed(&mut self) {
        let directory = self.any(|node| node.kind == Kind::Directory);
        let new = NewInode { kind: Kind::File, target: Bytes::new(), ..self.new_inode() };
        let Ok(Answer::Entry(attributes, _)) = self.bench.ask(ManagerRequest::CreateUnnamed { directory, new }) else {
            panic!("a file without a name needs a directory only");
        };
        let mut node = Node::new(Kind::File, directory);
        node.links = 0;
        self.model.nodes.insert(attributes.inode, node);
        self.model.open.insert(attributes.inode);
    }

    fn link(&mut self) {
        let (inode, directory, name) = (self.any(|_| true), self.any_directory(), self.name());
        let answer = self.bench.ask(ManagerRequest::Link { inode, directory, name: name.clone() });
        let expected = self.model.directory(directory).and_then(|node| match node {
            _ if self.model.is_directory(inode) => Err(ManagerError::NotPermitted),
            node if node.names.contains_key(&name[..]) => Err(ManagerError::Exists),
            node if node.links == 0 => Err(ManagerError::NotFound),
            _ => Ok(()),
        });
        if same(answer, expected).is_some() {
            self.model.add(directory, &name, inode);
            self.model.nodes.get_mut(&inode).unwrap().links += 1;
        }
    }

    fn remove(&mut self, want_directory: bool) {
        let (directory, name) = (self.any_directory(), self.name());
        let request = match want_directory {
            true => ManagerRequest::RemoveDirectory { directory, name: name.clone() },
            false => ManagerRequest::Unlink { directory, name: name.clone() },
        };
        let answer = self.bench.ask(request);
        let expected = self.model.remove(directory, &name, want_directory);
        if let Some((Answer::Removed(removed), expected)) = same(answer, expected) {
            assert_eq!(removed, Some(expected));
        }
    }

    fn rename(&mut self) {
        let modes = [RenameMode::Replace, RenameMode::Replace, RenameMode::Keep, RenameMode::Exchange];
        let rename = Rename {
            from_directory: self.any_directory(),
            from_name: self.name(),
            to_directory: self.any_directory(),
            to_name: self.name(),
            mode: modes[self.dice.below(4) as usize],
        };
        let answer = self.bench.ask(ManagerRequest::Rename(rename.clone()));
        let expected = self.model.rename(&rename);
        if let Some((Answer::Renamed { removed, .. }, expected)) = same(answer, expected) {
            assert_eq!(removed, expected.map(|(inode, _)| inode), "{rename:?}");
        }
    }

    /// Bytes in the data log.
    fn append(&mut self, log: LogId, bytes: &[u8]) -> LogAddress {
        let last = self.data.range((log, StripeNumber(0))..=(log, StripeNumber(u64::MAX))).next_back();
        let mut stripe = last.map_or(StripeNumber(0), |((_, stripe), _)| *stripe);
        if last.is_some_and(|(_, filled)| filled.len() + bytes.len() > STRIPE_SIZE) {
            stripe.0 += 1;
        }
        let filled = self.data.entry((log, stripe)).or_default();
        let offset = filled.len() as u32;
        filled.extend_from_slice(bytes);
        LogAddress { log, stripe, offset, length: bytes.len() as u32 }
    }

    fn read(&self, address: LogAddress) -> &[u8] {
        let stripe = &self.data[&(address.log, address.stripe)];
        &stripe[address.offset as usize..(address.offset + address.length) as usize]
    }

    fn random_bytes(&mut self, count: u64) -> Vec<u8> {
        (0..count).map(|_| self.dice.below(255) as u8 + 1).collect()
    }

    fn write(&mut self) {
        let mut list = Vec::new();
        for _ in 0..=self.dice.below(6) {
            let inode = self.any_file();
            if !self.model.nodes.contains_key(&inode) {
                return;
            }
            self.write_one(inode, &mut list);
        }
        self.delta_position += 1;
        let position = Position::new(StripeNumber(0), self.delta_position);
        let deltas = Deltas { log: DATA, position, list };
        self.bench.ask(ManagerRequest::Deltas(deltas.clone())).unwrap();
        self.last_deltas = Some(deltas);
        if self.dice.one_in(3) {
            // The answer was lost, and the client sends them again.
            self.bench.ask(ManagerRequest::Deltas(self.last_deltas.clone().unwrap())).unwrap();
        }
    }

    fn write_one(&mut self, inode: InodeId, list: &mut Vec<Delta>) {
        let (inline, size) = (self.model.nodes[&inode].inline, self.model.nodes[&inode].content.len());
        if self.dice.one_in(4) && size <= 300 {
            let count = self.dice.below(300);
            let bytes = self.random_bytes(count);
            let node = self.model.nodes.get_mut(&inode).unwrap();
            node.content.fill(0);
            node.content.resize(size.max(bytes.len()), 0);
            node.content[..bytes.len()].copy_from_slice(&bytes);
            node.inline = !bytes.is_empty();
            list.push(Delta { inode, change: Change::Inline { bytes: bytes.into() } });
            return;
        }
        // What outgrows the inode is sent whole.
        let offset = if inline { 0 } else { self.dice.below(2000) };
        let count = if inline { size as u64 + 10 } else { 1 + self.dice.below(400) };
        let bytes = self.random_bytes(count);
        let node = self.model.nodes.get_mut(&inode).unwrap();
        node.inline = false;
        let end = offset as usize + bytes.len();
        node.content.resize(size.max(end), 0);
        node.content[offset as usize..end].copy_from_slice(&bytes);
        let address = self.append(DATA, &bytes);
        list.push(Delta { inode, change: Change::Extent { offset, address } });
        list.push(Delta { inode, change: Change::Wrote { size: end as u64, time: Time(self.bench.now) } });
    }

    fn truncate(&mut self) {
        let (inode, size) = (self.any_file(), self.dice.below(2500));
        let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
        let answer = self.bench.ask(ManagerRequest::SetAttributes(inode, set));
        if let Some(node) = self.model.nodes.get_mut(&inode) {
            node.content.resize(size as usize, 0);
            node.inline &= size > 0;
            answer.unwrap();
        }
    }

    fn set_time(&mut self) {
        let (inode, time) = (self.any_directory(), self.dice.below(4_000_000) as i64);
        let set = SetAttributes { modified: Some(Time(time)), ..SetAttributes::default() };
        self.bench.ask(ManagerRequest::SetAttributes(inode, set)).unwrap();
        self.model.nodes.get_mut(&inode).unwrap().modified = time;
    }

    fn punch(&mut self) {
        let (inode, offset, length) = (self.any_file(), self.dice.below(2500), self.dice.below(1000));
        let answer = self.bench.ask(ManagerRequest::Punch { inode, offset, length });
        if let Some(node) = self.model.nodes.get_mut(&inode) {
            let clamp = |place: u64| (place as usize).min(node.content.len());
            let range = clamp(offset)..clamp(offset + length);
            node.content[range].fill(0);
            answer.unwrap();
        }
    }

    fn clone_range(&mut self) {
        let (source, target) = (self.any_file(), self.any_file());
        let (source_offset, target_offset) = (self.dice.below(1000), self.dice.below(2000));
        let length = self.dice.below(2000);
        let request = CloneRange { source, source_offset, target, target_offset, length };
        let answer = self.bench.ask(ManagerRequest::CloneRange(request));
        match answer {
            Err(ManagerError::Unsupported | ManagerError::Invalid(_) | ManagerError::Stale) => return,
            answer => drop(answer.unwrap()),
        }
        let from = &self.model.nodes[&source];
        let inline = from.inline;
        let start = (source_offset as usize).min(from.content.len());
        let bytes = from.content[start..(start + length as usize).min(from.content.len())].to_vec();
        if !bytes.is_empty() {
            let node = self.model.nodes.get_mut(&target).unwrap();
            let end = target_offset as usize + bytes.len();
            node.content.resize(node.content.len().max(end), 0);
            node.content[target_offset as usize..end].copy_from_slice(&bytes);
            node.inline = inline;
        }
    }

    fn xattr(&mut self) {
        let inode = self.any(|_| true);
        let name = Bytes::from(format!("user.{}", self.dice.below(8)));
        let value = Bytes::from(vec![7; self.dice.below(100) as usize]);
        let node = self.model.nodes.get_mut(&inode).unwrap();
        if self.dice.one_in(3) {
            let answer = self.bench.ask(ManagerRequest::RemoveXattr { inode, name: name.clone() });
            assert_eq!(answer.is_ok(), node.xattrs.remove(&name[..]).is_some());
            return;
        }
        let mode = [XattrMode::Either, XattrMode::Create, XattrMode::Replace][self.dice.below(3) as usize];
        let exists = node.xattrs.contains_key(&name[..]);
        let (clear_set_gid, sent) = (false, value.clone());
        let request = ManagerRequest::SetXattr { inode, name: name.clone(), value: sent, mode, clear_set_gid };
        let allowed = mode == XattrMode::Either || exists == (mode == XattrMode::Replace);
        assert_eq!(self.bench.ask(request).is_ok(), allowed);
        if allowed {
            node.xattrs.insert(name.to_vec(), value.to_vec());
        }
    }

    fn open_or_close(&mut self) {
        let inode = self.any(|_| true);
        if self.model.open.remove(&inode) {
            self.bench.ask(ManagerRequest::Close(inode)).unwrap();
            if self.model.nodes[&inode].links == 0 {
                self.model.nodes.remove(&inode);
            }
        } else {
            self.bench.ask(ManagerRequest::Open { inode, keep: None }).unwrap();
            self.model.open.insert(inode);
        }
    }

    /// Does what a cleaner does to one file's newest bytes, and lies about some addresses.
    fn clean(&mut self) {
        let inode = self.any_file();
        let Ok(Answer::Content(Content::Extents { list, .. })) =
            self.bench.ask(ManagerRequest::Content { inode, offset: 0, length: u64::MAX })
        else {
            return;
        };
        for extent in list {
            let request = ManagerRequest::Pieces { inode, file_offset: extent.offset, address: extent.address };
            let Ok(Answer::Pieces(pieces)) = self.bench.ask(request) else { panic!("pieces are told") };
            let mut moves = Vec::new();
            for piece in pieces {
                // Stripes may be smaller than pieces.
                let (first, size) = (moves.len(), piece.old.length.div_ceil(1 + moves.len() as u32 % 3).max(1));
                for skip in (0..piece.old.length).step_by(size as usize) {
                    let old = piece.old.part(skip, size.min(piece.old.length - skip));
                    let bytes = self.read(old).to_vec();
                    let file_offset = piece.file_offset + u64::from(skip);
                    moves.push(Moved { file_offset, old, new: self.append(MOVED, &bytes), ..piece });
                }
                assert!(moves.len() > first, "a piece has bytes");
                let stale = LogAddress { log: LogId(77), ..piece.old };
                moves.push(Moved { old: stale, new: piece.old, ..piece });
            }
            self.bench.ask(ManagerRequest::Move(moves)).unwrap();
        }
    }

    /// Everything that can be asked agrees with the model.
    fn compare(&mut self) {
        let inodes: Vec<InodeId> = self.model.nodes.keys().copied().collect();
        for inode in inodes {
            let Ok(Answer::Attributes(attributes)) = self.bench.ask(ManagerRequest::Attributes(inode)) else {
                panic!("{inode:?} is gone");
            };
            let (kind, links) = (self.model.nodes[&inode].kind, self.model.nodes[&inode].links);
            assert_eq!((attributes.kind, attributes.links), (kind, links));
            match kind {
                Kind::Directory => {
                    let node = &self.model.nodes[&inode];
                    let size: u64 = node.names.keys().map(|name| 32 + name.len() as u64).sum();
                    assert_eq!((attributes.size, attributes.modified), (size, Time(node.modified)));
                    self.compare_directory(inode);
                }
                Kind::File => self.compare_file(inode, attributes.size),
                _ => {}
            }
            let Ok(Answer::Names(names)) = self.bench.ask(ManagerRequest::ListXattrs(inode)) else { panic!("names") };
            assert!(names.iter().map(|name| &name[..]).eq(self.model.nodes[&inode].xattrs.keys().map(Vec::as_slice)));
        }
        truth::check(&self.bench);
        assert_eq!(self.bench.records(), self.bench.recovered());
    }

    fn compare_directory(&mut self, directory: InodeId) {
        let (mut after, mut names) = (0, BTreeMap::new());
        loop {
            let request = ManagerRequest::List { directory, after, limit: 3, attributes: true };
            let Ok(Answer::Listing(list, last)) = self.bench.ask(request) else { panic!("a directory lists") };
            for entry in list {
                assert!(entry.cookie > after);
                after = entry.cookie;
                names.insert(entry.name.to_vec(), entry.inode);
            }
            if last {
                break;
            }
        }
        assert_eq!(names, self.model.nodes[&directory].names);
    }

    fn compare_file(&mut self, inode: InodeId, size: u64) {
        let mut content = vec![0; size as usize];
        let mut at = 0;
        while at < size {
            let request = ManagerRequest::Content { inode, offset: at, length: size - at };
            match self.bench.ask(request) {
                Ok(Answer::Content(Content::Inline(bytes))) => {
                    content[..bytes.len()].copy_from_slice(&bytes);
                    break;
                }
                Ok(Answer::Content(Content::Extents { list, through })) => {
                    for extent in list {
                        let bytes = self.read(extent.address);
                        let end = (extent.end() as usize).min(content.len());
                        let start = (extent.offset as usize).min(end);
                        content[start..end].copy_from_slice(&bytes[..end - start]);
                    }
                    at = through;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(content == self.model.nodes[&inode].content, "content of {inode:?}");
    }
}

/// Both failed alike, or both did not.
fn same<T: std::fmt::Debug>(
    answer: Result<Answer, ManagerError>,
    expected: Result<T, ManagerError>,
) -> Option<(Answer, T)> {
    match (answer, expected) {
        (Ok(answer), Ok(expected)) => Some((answer, expected)),
        (Err(ManagerError::Invalid(_)), Err(ManagerError::Invalid(_))) => None,
        (Err(error), Err(expected)) => {
            assert_eq!(error, expected);
            None
        }
        (answer, expected) => panic!("{answer:?}, but the model says {expected:?}"),
    }
}

#[test]
fn operations_do_what_a_naive_file_system_does() {
    let mut parts_max = 0;
    for seed in 0..12 {
        let mut trial = Trial::new(seed);
        for step in 0..1500 {
            trial.step();
            if step % 2 == 0 {
                let Trial { bench, dice, .. } = &mut trial;
                bench.split_some(dice);
            }
            if step % 50 == 0 {
                let Trial { bench, dice, .. } = &mut trial;
                bench.image_some(dice);
            }
            if step % 100 == 99 {
                trial.compare();
                parts_max = parts_max.max(truth::parts_max(&trial.bench));
            }
        }
        trial.compare();
    }
    assert!(parts_max >= 3, "some directory was split, and a part of it again");
}
