//! Whether the names of a directory lie in the slots that its parts say.

use std::collections::BTreeMap;

use protocol::id::SlotId;

use crate::directory::Part;
use crate::entry::COOKIE_LAST;

/// What is known of one directory so far.
#[derive(Default)]
pub(super) struct Parts {
    /// In order; none of a directory that was never split.
    parts: Vec<Part>,
    slots: BTreeMap<SlotId, Names>,
}

/// What a slot has of it.
struct Names {
    /// The first and the last.
    cookies: Option<(u64, u64)>,
    is_counted: bool,
}

impl Parts {
    /// A part that the directory's own slot tells of.
    pub(super) fn part(&mut self, last: u64, slot: SlotId) {
        self.parts.push(Part { last, slot });
    }

    /// What a slot has.
    pub(super) fn names(&mut self, slot: SlotId, cookies: Option<(u64, u64)>, is_counted: bool) {
        self.slots.insert(slot, Names { cookies, is_counted });
    }

    /// Names outside their parts, parts that nobody counts, counts without a part.
    pub(super) fn problems(&self, home: SlotId) -> Vec<String> {
        let whole = [Part { last: COOKIE_LAST, slot: home }];
        let parts = if self.parts.is_empty() { &whole[..] } else { &self.parts };
        let mut problems = Vec::new();
        let mut first = 0;
        for part in parts {
            let names = self.slots.get(&part.slot);
            if let Some((from, to)) =
                names.and_then(|names| names.cookies).filter(|&(from, to)| from < first || to > part.last)
            {
                problems
                    .push(format!("names {from}-{to} lie in slot {}, which takes {first}-{}", part.slot.0, part.last));
            }
            if part.slot != home && !names.is_some_and(|names| names.is_counted) {
                problems.push(format!("slot {} takes names and counts none", part.slot.0));
            }
            first = part.last.saturating_add(1);
        }
        if parts.last().is_none_or(|part| part.last != COOKIE_LAST) {
            problems.push("its parts do not take all names".into());
        }
        let takes = |slot: SlotId| parts.iter().filter(|part| part.slot == slot).count() == 1;
        let stray = self.slots.iter().filter(|(slot, names)| {
            let has_any = names.cookies.is_some() || names.is_counted;
            has_any && !takes(**slot)
        });
        problems.extend(stray.map(|(slot, _)| format!("slot {} has names and is not one of its parts", slot.0)));
        problems
    }
}
