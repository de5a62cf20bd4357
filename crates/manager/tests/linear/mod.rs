//! Whether a history of operations on names could have come from one machine: some order of them, in which none comes before
//! one that had ended when it began, gives each the answer that it got. After Wing and Gong, with the states that were
//! already tried remembered. An operation that nobody heard the end of may come at any time after it began, or never.

pub mod model;

use std::collections::BTreeSet;

use model::{Answered, Asked, Names};

/// One operation.
#[derive(Clone, Debug)]
pub struct Event {
    pub began: u64,
    /// Absent when its end is unknown.
    pub ended: Option<u64>,
    pub asked: Asked,
    pub answered: Option<Answered>,
}

/// States that one search may try.
const STEPS_MAX: u64 = 1_000_000;

/// Whether there is an order that explains the history; if not, the longest that explains a part of it. A history that is too
/// wide to be searched, of many operations that nobody heard the end of, is told of and proves nothing.
pub fn check(history: &[Event]) -> Result<(), String> {
    let mut search = Search { history, tried: BTreeSet::new(), best: Vec::new(), steps: 0 };
    let mut order = Vec::new();
    let explained = search.explain(&mut vec![false; history.len()], &Names::new(), &mut order);
    if search.steps >= STEPS_MAX {
        println!("a history was too wide to be searched");
        return Ok(());
    }
    if explained {
        return Ok(());
    }
    let mut story = String::from("no order explains the history; one that goes far:\n");
    for &index in &search.best {
        story += &format!("  {index}: {:?}\n", history[index]);
    }
    story += "what is left:\n";
    for (index, event) in history.iter().enumerate().filter(|(index, _)| !search.best.contains(index)) {
        story += &format!("  {index}: {event:?}\n");
    }
    Err(story)
}

struct Search<'a> {
    history: &'a [Event],
    tried: BTreeSet<(Vec<bool>, Names)>,
    best: Vec<usize>,
    steps: u64,
}

impl Search<'_> {
    fn explain(&mut self, done: &mut Vec<bool>, names: &Names, order: &mut Vec<usize>) -> bool {
        self.steps += 1;
        if self.steps >= STEPS_MAX {
            return true;
        }
        let left = || self.history.iter().enumerate().filter(|(index, _)| !done[*index]);
        let Some(first_end) = left().filter_map(|(_, event)| event.ended).min() else { return true };
        if order.len() > self.best.len() {
            self.best.clone_from(order);
        }
        if !self.tried.insert((done.clone(), names.clone())) {
            return false;
        }
        let may = |(_, event): &(usize, &Event)| event.began < first_end;
        let (heard, unheard): (Vec<usize>, Vec<usize>) =
            left().filter(may).map(|(index, _)| index).partition(|index| self.history[*index].ended.is_some());
        let mut next = Vec::new();
        // What nobody heard the end of is tried last: mostly it never was.
        for index in heard.into_iter().chain(unheard) {
            let event = &self.history[index];
            let mut after = names.clone();
            let answered = after.ask(&event.asked);
            if event.answered.as_ref().is_some_and(|got| !got.says(&answered)) {
                continue;
            }
            // A rename between two names of one inode changes nothing, and had it come elsewhere it might have.
            let may_matter = event.answered == Some(Answered::Done);
            if after != *names || may_matter {
                next.push((index, after));
            } else if event.ended.is_some() {
                // What fits and changes nothing can come at once: no other order is better for it, or for the rest.
                next = vec![(index, after)];
                break;
            }
        }
        for (index, after) in next {
            done[index] = true;
            order.push(index);
            if self.explain(done, &after, order) {
                return true;
            }
            order.pop();
            done[index] = false;
        }
        false
    }
}
