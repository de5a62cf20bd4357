//! Whose lease has run out, as the leader of one term knows it (DESIGN §6, the one lease).
//!
//! 1. A node counts its lease from when it sent its renewal, and takes a drift of clocks off; the leader counts from when
//!    the renewal arrived: so the node stops first.
//! 2. A leader grants a renewal only after a quorum has confirmed, later than the renewal arrived, that it leads. Those who
//!    elected this leader told it how late they may have confirmed an earlier one ([`witness`](crate::witness)): one lease
//!    after that it knows of every lease that holds.
//!    A pause that an older one had granted it does not know: then a node that starts anew must do so within a lease.
//! 3. A session once found to have run out is granted nothing more, whether the maps say so yet or not. Nor is one that is to.
//! 4. Only who could hear may say that others were silent. A leader gives nobody up while no quorum has confirmed lately that
//!    it leads. After a gap in that, or elected so late that there was one, it waits until everybody who lives has had the time
//!    to connect again and to renew ([`RETURN`]). So what stops all links or all machines ends no session: nobody had anything
//!    to take over. Leases ran out meanwhile by the clocks of those that hold them, and they answered nothing; who was given up
//!    by nobody goes on when it is heard again. Who votes alone confirms itself whatever its links are like, and has a gap only
//!    where it stood still: where its links are cut it gives all others up.
//! 5. Where one machine alone dies rule 4 costs no time: a quorum confirms the leader all along; and if it led, the next one is
//!    elected so soon ([`GRACE`]) that it goes on where the last one stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use host::Moment;
use protocol::maps::{Maps, NodeState};
use protocol::registry::{LEASE, PAUSE_MAX};

use crate::session::RENEWAL;
use crate::stop;

/// How much is left at least of the last lease of before when a leader that was elected in time can hear: by then everybody who
/// lives has sent it a renewal, and it came. It is elected within LEASE − GRACE, with room for a second try.
pub const GRACE: Duration = RENEWAL.saturating_add(Duration::from_millis(500));
/// After a gap everybody who lives has renewed within this time. A dial into the dead link may have begun just before it healed
/// (1.5 s, `DIAL_PATIENCE` in the daemon's network), the next one waits for a second, and is begun by a renewal that fails; the
/// one after that comes. The rest is room.
pub const RETURN: Duration = RENEWAL.saturating_mul(2).saturating_add(Duration::from_millis(1500 + 1000 + 500));
/// How far apart two confirmations are at most of a leader that could hear all the time: so long an interruption takes no
/// lease from those who renew it once before and once after.
const GAP: Duration = LEASE.saturating_sub(RENEWAL.saturating_mul(2));
/// How old the last confirmation may be: some heartbeats. Longer ago it does not count for now, but for then.
const LATELY: Duration = Duration::from_millis(500);

/// A node and its session.
pub type Holder = (u32, u64);

/// The leases of one leader's term.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leases {
    /// When the last renewal may have arrived that an earlier leader granted; nothing after it has looked once.
    begun: Option<Moment>,
    /// When each holder was heard last.
    heard: BTreeMap<Holder, Moment>,
    /// Those that have run out, or are to.
    doomed: BTreeSet<Holder>,
    /// When a quorum confirmed last that this node leads.
    confirmed: Option<Moment>,
    /// Up to when the next confirmation leaves no gap behind it.
    unbroken: Moment,
    /// Before that nobody is given up: who lives may have found no way to renew.
    patience: Moment,
}

/// What to do about leases now.
#[derive(Debug, PartialEq, Eq)]
pub struct Look {
    /// Those that have run out, and are to be expired.
    pub expired: Vec<Holder>,
    /// When the next may run out, where that is to come.
    pub next: Moment,
}

impl Leases {
    /// Those of a new leader, of which no earlier one granted a renewal that arrived after `begun`.
    pub fn new(begun: Moment) -> Leases {
        let unbroken = begun + (LEASE - GRACE);
        let (heard, doomed) = (BTreeMap::new(), BTreeSet::new());
        Leases { begun: Some(begun), heard, doomed, confirmed: None, unbroken, patience: begun }
    }

    /// A renewal arrived; its sender is not to be given up for so much longer than its lease. False: it is too late.
    pub fn renewed(&mut self, holder: Holder, pause: Duration, now: Moment) -> bool {
        let in_time = !self.doomed.contains(&holder);
        if in_time {
            let heard = self.heard.entry(holder).or_insert(now);
            *heard = (*heard).max(now + pause.min(PAUSE_MAX));
        }
        in_time
    }

    /// Whether a renewal that arrived may be granted, now that it is confirmed who leads.
    pub fn may_grant(&self, holder: Holder) -> bool {
        !self.doomed.contains(&holder)
    }

    /// Grants a session nothing more: it runs out.
    pub fn doom(&mut self, holder: Holder) {
        self.doomed.insert(holder);
    }

    /// A quorum has confirmed that this node led at `then`: it could hear since the confirmation before, unless that lies too
    /// far back.
    pub fn confirmed(&mut self, then: Moment) {
        if then > self.unbroken {
            self.patience = then + RETURN;
        }
        self.unbroken = self.unbroken.max(then + GAP);
        self.confirmed = self.confirmed.max(Some(then));
    }

    /// Looks who has run out. A session that begins counts as heard when it is first seen. The leader that votes alone never
    /// expires itself, `alone`: nobody could take over, and nobody else decides. Nor does anybody expire when all have stopped.
    pub fn look(&mut self, maps: &Maps, alone: Option<u32>, now: Moment) -> Look {
        let counts = |node: u32| alone != Some(node) && !stop::is_over(maps);
        let alive = maps.nodes.iter().filter(|(node, entry)| entry.state == NodeState::Alive && counts(**node));
        let holders: BTreeSet<Holder> = alive.map(|(&node, entry)| (node, entry.session)).collect();
        // Sessions that are over need no memory: what names them the maps refuse.
        self.heard.retain(|holder, _| holders.contains(holder));
        self.doomed.retain(|holder| holders.contains(holder));
        let mut look = Look { expired: Vec::new(), next: now + LEASE };
        let first = self.begun.take().unwrap_or(now);
        for holder in holders {
            let heard = *self.heard.entry(holder).or_insert(first);
            let end = (heard + LEASE).max(self.patience);
            if end > now {
                look.next = look.next.min(end);
            } else if self.confirmed.is_some_and(|then| end <= then + LATELY) {
                self.doomed.insert(holder);
                look.expired.push(holder);
            }
        }
        look
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{apply, new_cluster};
    use protocol::id::TargetId;
    use protocol::maps::TargetEntry;
    use protocol::registry::RegistryRequest;

    fn maps(nodes: u32) -> Maps {
        let entry = |node: u32| TargetEntry::new(node, String::new());
        new_cluster(1, (1..=nodes).map(|node| (TargetId(node), entry(node))).collect(), 1, 1)
    }

    fn at(milliseconds: u64) -> Moment {
        Moment(0) + Duration::from_millis(milliseconds)
    }

    /// Looks, at a leader that could hear all the time since it looked last.
    fn look(leases: &mut Leases, maps: &Maps, alone: Option<u32>, now: Moment) -> Look {
        let mut then = leases.confirmed.unwrap_or(now);
        while then < now {
            then = now.min(then + GAP);
            leases.confirmed(then);
        }
        leases.confirmed(now);
        leases.look(maps, alone, now)
    }

    #[test]
    fn a_new_leader_waits_one_lease_from_the_last_that_may_have_been_granted() {
        let (maps, mut leases) = (maps(2), Leases::new(at(1000)));
        assert_eq!(look(&mut leases, &maps, None, at(1500)), Look { expired: vec![], next: at(4000) });
        assert!(leases.renewed((1, 1), Duration::ZERO, at(3000)));
        assert_eq!(look(&mut leases, &maps, None, at(4000)), Look { expired: vec![(2, 1)], next: at(6000) });
    }

    #[test]
    fn who_has_run_out_is_granted_nothing_more() {
        let (mut maps, mut leases) = (maps(2), Leases::new(at(0)));
        look(&mut leases, &maps, Some(1), at(0));
        assert!(leases.renewed((2, 1), Duration::ZERO, at(10)));
        assert_eq!(look(&mut leases, &maps, Some(1), at(3010)).expired, [(2, 1)]);
        assert!(!leases.renewed((2, 1), Duration::ZERO, at(3011)));
        assert!(!leases.may_grant((2, 1)));
        // It is expired again and again until the maps say so: the first attempt may have been lost.
        assert_eq!(look(&mut leases, &maps, Some(1), at(3100)).expired, [(2, 1)]);
        for request in [
            RegistryRequest::Expire { node: 2, session: 1 },
            RegistryRequest::Begin { node: 2, after: 1, address: String::new(), keeps: None },
        ] {
            maps = apply(&maps, request).0.unwrap();
        }
        assert_eq!(look(&mut leases, &maps, Some(1), at(4000)), Look { expired: vec![], next: at(7000) });
        assert!(leases.renewed((2, 2), Duration::ZERO, at(4500)));
    }

    #[test]
    fn who_is_granted_nothing_more_runs_out_a_lease_after_the_last_that_was_granted() {
        let (maps, mut leases) = (maps(2), Leases::new(at(0)));
        look(&mut leases, &maps, Some(1), at(0));
        assert!(leases.renewed((2, 1), Duration::ZERO, at(1000)));
        leases.doom((2, 1));
        assert!(!leases.renewed((2, 1), Duration::ZERO, at(1500)) && !leases.may_grant((2, 1)));
        assert_eq!(look(&mut leases, &maps, Some(1), at(3999)).expired, [], "until then it may count on it");
        assert_eq!(look(&mut leases, &maps, Some(1), at(4000)).expired, [(2, 1)]);
    }

    #[test]
    fn who_starts_anew_is_waited_for_longer_but_not_for_ever() {
        let (maps, mut leases) = (maps(2), Leases::new(at(0)));
        look(&mut leases, &maps, Some(1), at(0));
        assert!(leases.renewed((2, 1), Duration::from_secs(3600), at(10)));
        assert!(leases.renewed((2, 1), Duration::ZERO, at(20)), "a late one of before takes nothing back");
        assert_eq!(look(&mut leases, &maps, Some(1), at(23_000)).expired, []);
        assert_eq!(look(&mut leases, &maps, Some(1), at(23_010)).expired, [(2, 1)]);
    }

    #[test]
    fn nobody_is_given_up_while_it_is_not_confirmed_who_leads() {
        let (maps, mut leases) = (maps(2), Leases::new(at(0)));
        look(&mut leases, &maps, None, at(1000));
        for node in 1..=2 {
            assert!(leases.renewed((node, 1), Duration::ZERO, at(900)));
        }
        assert_eq!(leases.look(&maps, None, at(9000)).expired, [], "nobody could hear them");
        leases.confirmed(at(9000));
        assert_eq!(leases.look(&maps, None, at(9050)), Look { expired: vec![], next: at(9050) + LEASE });
        assert!(leases.renewed((1, 1), Duration::ZERO, at(12_500)));
        let end = at(9000) + RETURN;
        assert_eq!(look(&mut leases, &maps, None, end - Duration::from_millis(1)).expired, []);
        assert_eq!(look(&mut leases, &maps, None, end), Look { expired: vec![(2, 1)], next: at(15_500) });
    }

    #[test]
    fn a_new_leader_that_was_elected_late_hears_everybody_out() {
        let (maps, mut leases) = (maps(2), Leases::new(at(1000)));
        assert_eq!(leases.look(&maps, None, at(20_000)).expired, [], "nobody has confirmed it");
        leases.confirmed(at(20_050));
        assert_eq!(leases.look(&maps, None, at(20_100)), Look { expired: vec![], next: at(20_100) + LEASE });
        assert!(leases.renewed((2, 1), Duration::ZERO, at(24_000)));
        assert_eq!(look(&mut leases, &maps, None, at(25_049)).expired, []);
        assert_eq!(look(&mut leases, &maps, None, at(25_050)).expired, [(1, 1)]);
    }

    #[test]
    fn after_a_gap_everybody_has_the_time_to_connect_again() {
        let (maps, mut leases) = (maps(2), Leases::new(at(0)));
        look(&mut leases, &maps, None, at(1000));
        leases.confirmed(at(9000));
        for now in (9000..11_500).step_by(100) {
            assert_eq!(look(&mut leases, &maps, None, at(now)).expired, [], "{now}: they may be dialling");
        }
        assert!(leases.renewed((1, 1), Duration::ZERO, at(11_500)));
        let end = at(9000) + RETURN;
        assert_eq!(look(&mut leases, &maps, None, end), Look { expired: vec![(2, 1)], next: at(14_500) });
    }

    #[test]
    fn where_one_machine_dies_nobody_waits_for_the_grace() {
        // The leader: the next one hears before the last lease of before has less left than the grace.
        let (maps, begun) = (maps(2), at(1000));
        let (mut leases, elected) = (Leases::new(begun), begun + (LEASE - GRACE));
        assert_eq!(look(&mut leases, &maps, None, elected), Look { expired: vec![], next: begun + LEASE });
        assert_eq!(look(&mut leases.clone(), &maps, None, begun + LEASE).expired, [(1, 1), (2, 1)]);
        // Another one: confirmations that are late, or lost once in a while, are no gap, and the last is young enough.
        assert!(leases.renewed((2, 1), Duration::ZERO, at(3000)));
        assert!(leases.renewed((1, 1), Duration::ZERO, at(5000)));
        for then in [3400, 4400, 5400] {
            leases.confirmed(at(then));
        }
        let end = at(3000) + LEASE;
        assert_eq!(leases.look(&maps, None, end), Look { expired: vec![], next: at(8000) });
        leases.confirmed(end - LATELY);
        assert_eq!(leases.look(&maps, None, end), Look { expired: vec![(2, 1)], next: at(8000) });
    }

    #[test]
    fn who_votes_alone_never_expires_itself() {
        let (maps, mut leases) = (maps(1), Leases::new(at(0)));
        look(&mut leases, &maps, Some(1), at(0));
        assert_eq!(look(&mut leases, &maps, Some(1), at(99_000)).expired, []);
        assert_eq!(
            look(&mut leases, &maps, None, at(99_500)).expired,
            [],
            "with others that vote it counts from then on"
        );
        assert_eq!(look(&mut leases, &maps, None, at(102_500)).expired, [(1, 1)]);
    }
}
