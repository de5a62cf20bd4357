//! Who has connected and not yet proven who they are: so many at once, and a place for whoever comes.
//!
//! 1. Never are there more than [`GUESTS_MAX`].
//! 2. Whoever comes gets a place. Where all are taken one of those who have most loses its oldest: a machine needs its place
//!    for some round trips, and who says nothing keeps it until others need it.
//! 3. Who has fewer than another one loses none.
//!
//! Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

/// How many may be proving themselves at once.
pub(super) const GUESTS_MAX: usize = 256;
/// What of an address of version 6 tells networks apart. Within one of them a machine gives itself as many as it likes.
const NETWORK_BITS: Ipv6Addr = Ipv6Addr::new(0xffff, 0xffff, 0xffff, 0xffff, 0, 0, 0, 0);

/// One who came, and from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Guest {
    origin: IpAddr,
    /// Later ones have greater numbers.
    number: u64,
}

/// Those who are there.
#[derive(Debug, Default)]
pub(super) struct Guests {
    /// By where they are from; nobody is from where none is.
    numbers: BTreeMap<IpAddr, BTreeSet<u64>>,
    count: usize,
    next: u64,
}

impl Guests {
    /// Somebody comes from `address`, and gets a place; whoever has to leave for that comes second.
    pub(super) fn enter(&mut self, address: IpAddr) -> (Guest, Option<Guest>) {
        let guest = Guest { origin: origin(address), number: self.next };
        self.next += 1;
        self.count += 1;
        self.numbers.entry(guest.origin).or_default().insert(guest.number);
        let outcast = if self.count > GUESTS_MAX { self.outcast() } else { None };
        if let Some(outcast) = outcast {
            assert_ne!(outcast, guest, "others came before");
            self.leave(outcast);
        }
        assert!(self.count <= GUESTS_MAX);
        (guest, outcast)
    }

    /// Somebody has proven who they are, has gone, or had to: that may be said twice.
    pub(super) fn leave(&mut self, guest: Guest) {
        let Some(numbers) = self.numbers.get_mut(&guest.origin) else { return };
        self.count -= usize::from(numbers.remove(&guest.number));
        if numbers.is_empty() {
            self.numbers.remove(&guest.origin);
        }
    }

    /// The oldest of those who have most; see rule 2.
    fn outcast(&self) -> Option<Guest> {
        let most = self.numbers.values().map(BTreeSet::len).max()?;
        let those = self.numbers.iter().filter(|(_, numbers)| numbers.len() == most);
        let oldest = those.filter_map(|(&origin, numbers)| Some(Guest { origin, number: *numbers.first()? }));
        oldest.min_by_key(|guest| guest.number)
    }
}

/// From where somebody is who calls from `address`, as far as machines are told apart.
fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(address & NETWORK_BITS),
        canonical => canonical,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn machine(number: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, number).into()
    }

    #[test]
    fn whoever_takes_all_places_makes_room_for_everybody_else() {
        let mut guests = Guests::default();
        let stranger: Vec<Guest> = (0..GUESTS_MAX).map(|_| guests.enter(machine(1)).0).collect();
        let (first, outcast) = guests.enter(machine(2));
        assert_eq!(outcast, Some(stranger[0]));
        let mut outcasts: Vec<_> = (0..1000).filter_map(|_| guests.enter(machine(1)).1).collect();
        assert_eq!((outcasts.len(), outcasts[0]), (1000, stranger[1]));
        outcasts.push(guests.enter(machine(3)).1.expect("all places are taken"));
        assert!(outcasts.iter().all(|outcast| outcast.origin == machine(1)));
        guests.leave(first);
        assert_eq!(guests.enter(machine(1)).1, None, "there is a place again");
    }

    #[test]
    fn where_each_has_one_the_oldest_goes_and_it_may_go_twice() {
        let mut guests = Guests::default();
        let all: Vec<Guest> = (0..=255).map(|number| guests.enter(machine(number)).0).collect();
        let (other, outcast) = guests.enter(Ipv4Addr::new(10, 0, 1, 0).into());
        assert_eq!(outcast, Some(all[0]));
        guests.leave(all[0]);
        let (again, outcast) = guests.enter(machine(0));
        assert_eq!(outcast, Some(all[1]));
        assert_eq!(guests.enter(machine(7)).1, Some(all[7]), "it has two");
        for guest in all.into_iter().chain([other, again]) {
            guests.leave(guest);
        }
        assert_eq!((guests.count, guests.numbers.len()), (1, 1), "that second one is there");
    }

    #[test]
    fn a_machine_is_one_however_it_is_written_and_whichever_address_it_takes_of_its_network() {
        let origin = |address: &str| origin(address.parse().unwrap());
        assert_eq!(origin("::ffff:10.0.0.1"), machine(1));
        assert_eq!(origin("2001:db8::1:2:3:4"), origin("2001:db8::ffff:0:0:9"));
        assert_ne!(origin("2001:db8:0:1::1"), origin("2001:db8:0:2::1"));
    }
}
