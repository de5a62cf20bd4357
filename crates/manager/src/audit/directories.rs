//! Whether names lie in the slots that their directories' parts say, and are counted right there.

use std::collections::BTreeMap;

use protocol::id::{InodeId, SlotId};

use crate::directory::{Holding, Part, Tally};
use crate::entry::{COOKIE_LAST, Entry};
use crate::inode::Inode;

/// What is known of the directories so far.
#[derive(Default)]
pub(super) struct Directories(BTreeMap<InodeId, Seen>);

#[derive(Default)]
struct Seen {
    /// Size and links that the inode's record says.
    record: Option<(u64, u32)>,
    /// In order.
    parts: Vec<Part>,
    holdings: BTreeMap<SlotId, Holding>,
    names: BTreeMap<SlotId, Names>,
}

/// The names of a directory that lie in one slot.
struct Names {
    tally: Tally,
    first: u64,
    last: u64,
}

impl Directories {
    /// A directory's record.
    pub(super) fn inode(&mut self, directory: InodeId, record: &Inode) {
        self.0.entry(directory).or_default().record = Some((record.size, record.links));
    }

    /// A part that a directory's home slot tells of.
    pub(super) fn part(&mut self, directory: InodeId, part: Part) {
        self.0.entry(directory).or_default().parts.push(part);
    }

    /// What another slot says that it holds.
    pub(super) fn holding(&mut self, slot: SlotId, directory: InodeId, holding: Holding) {
        self.0.entry(directory).or_default().holdings.insert(slot, holding);
    }

    /// A name. Those of one slot come in the order of their cookies.
    pub(super) fn name(&mut self, slot: SlotId, (directory, cookie): (InodeId, u64), entry: &Entry<'_>) {
        let names = &mut self.0.entry(directory).or_default().names;
        let names = names.entry(slot).or_insert(Names { tally: Tally::default(), first: cookie, last: cookie });
        names.tally.add(entry.name, entry.kind);
        names.last = cookie;
    }

    /// What is wrong.
    pub(super) fn problems(self) -> impl Iterator<Item = String> {
        self.0.into_iter().flat_map(|(directory, seen)| {
            let told = seen.problems(directory);
            told.into_iter().map(move |problem| format!("directory {}: {problem}", directory.0))
        })
    }
}

impl Seen {
    fn problems(&self, directory: InodeId) -> Vec<String> {
        // That there is no inode is told where names are compared.
        let Some((size, links)) = self.record else { return Vec::new() };
        let mut problems = Vec::new();
        let home = directory.slot();
        let tally = |slot: SlotId| self.names.get(&slot).map(|names| names.tally).unwrap_or_default();
        let at_home = Tally { size, directories: links.saturating_sub(2) };
        if tally(home) != at_home {
            problems.push(format!("its inode counts {at_home:?} in slot {}; there are {:?}", home.0, tally(home)));
        }
        for (&slot, holding) in &self.holdings {
            let said = Tally { size: holding.size, directories: holding.directories };
            if said != tally(slot) {
                problems.push(format!("{said:?} count in slot {}; there are {:?}", slot.0, tally(slot)));
            }
        }
        problems.extend(self.misplaced(home));
        problems
    }

    /// Names outside their parts, parts without a holding, holdings without a part.
    fn misplaced(&self, home: SlotId) -> Vec<String> {
        let whole = [Part { last: COOKIE_LAST, slot: home }];
        let parts = if self.parts.is_empty() { &whole[..] } else { &self.parts };
        let mut problems = Vec::new();
        let mut first = 0;
        for part in parts {
            if let Some(names) =
                self.names.get(&part.slot).filter(|names| names.first < first || names.last > part.last)
            {
                problems.push(format!(
                    "names {}-{} lie in slot {}, which takes {first}-{}",
                    names.first, names.last, part.slot.0, part.last
                ));
            }
            if part.slot != home && !self.holdings.contains_key(&part.slot) {
                problems.push(format!("slot {} takes names and counts none", part.slot.0));
            }
            first = part.last + 1;
        }
        if parts.last().is_none_or(|part| part.last != COOKIE_LAST) {
            problems.push("its parts do not take all names".into());
        }
        let stray = self.names.keys().chain(self.holdings.keys());
        let stray = stray.filter(|&&slot| parts.iter().filter(|part| part.slot == slot).count() != 1);
        problems.extend(stray.map(|slot| format!("slot {} has names and is not one of its parts", slot.0)));
        problems
    }
}
