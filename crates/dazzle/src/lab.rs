//! A laboratory: several hosts on one machine, to try a cluster and what befalls it. Each host is a network namespace with
//! an address and a link of its own, a directory with its targets, and one daemon. This file only says what is called how
//! and lies where; `edge/namespaces` makes it.
//!
//! All hosts hang on one switch, a bridge in a namespace of its own, so that the machine's own network is never touched.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::Size;

/// The name of the file that describes a laboratory, in its directory.
pub(crate) const FILE_NAME: &str = "lab.toml";
/// Hosts of one laboratory, at most: their addresses share one network.
pub(crate) const HOSTS_MAX: u8 = 60;
/// The port on which each host's daemon listens.
const PORT: u16 = 4747;

/// What a laboratory is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lab {
    /// Tells its namespaces from those of other laboratories on this machine.
    pub(crate) tag: String,
    /// How many hosts store.
    pub(crate) hosts: u8,
    /// How many more only mount.
    #[serde(default)]
    pub(crate) clients: u8,
    /// Targets of each.
    pub(crate) disks: u16,
    /// How many targets of a stripe may be lost.
    pub(crate) parity: u8,
    /// How many data fragments a stripe gets at most, if that is chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<u8>,
    /// The most that each target may take; none: as much as there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<Size>,
    /// Each link's rate, in `tc`'s words; none: as fast as memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<String>,
    /// How long each packet is under way on a link, in `tc`'s words; none: no longer than it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) delay: Option<String>,
}

/// One host of a laboratory, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostNumber(pub(crate) u8);

impl Lab {
    /// All hosts, those that store first.
    pub(crate) fn all(&self) -> impl Iterator<Item = HostNumber> + use<> {
        (1..=self.hosts + self.clients).map(HostNumber)
    }

    /// Whether a host stores.
    pub(crate) fn stores(&self, host: HostNumber) -> bool {
        host.0 <= self.hosts
    }

    /// The namespace of a host.
    pub(crate) fn namespace(&self, host: HostNumber) -> String {
        format!("dazzle-{}-{}", self.tag, host.0)
    }

    /// The namespace of the switch.
    pub(crate) fn switch(&self) -> String {
        format!("dazzle-{}-switch", self.tag)
    }

    /// A host by its number, if the laboratory has it.
    pub(crate) fn host(&self, number: u8) -> Result<HostNumber, String> {
        match number {
            1.. if number <= self.hosts + self.clients => Ok(HostNumber(number)),
            _ => Err(format!("there is no host {number}; the hosts are 1 to {}", self.hosts + self.clients)),
        }
    }
}

impl HostNumber {
    /// Its address, in a network that exists nowhere else (RFC 2544 sets it apart for tests like these).
    pub(crate) fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, 0, self.0)
    }

    /// Where its daemon listens.
    pub(crate) fn listens(self) -> String {
        format!("{}:{PORT}", self.address())
    }

    /// Its link's end at the switch.
    pub(crate) fn plug(self) -> String {
        format!("host{}", self.0)
    }

    /// Its directory in a laboratory's.
    pub(crate) fn directory(self, lab: &Path) -> PathBuf {
        lab.join(format!("host-{}", self.0))
    }

    /// Where it mounts the file system.
    pub(crate) fn mount(self, lab: &Path) -> PathBuf {
        lab.join(format!("mnt-{}", self.0))
    }

    /// What it is called.
    pub(crate) fn name(self) -> String {
        format!("host-{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lab_has_the_hosts_it_says() {
        let (parity, tag) = (1, "a1".to_owned());
        let lab = Lab { tag, hosts: 2, clients: 1, disks: 1, parity, data: None, limit: None, rate: None, delay: None };
        assert_eq!(
            lab.all().map(|host| lab.namespace(host)).collect::<Vec<_>>(),
            ["dazzle-a1-1", "dazzle-a1-2", "dazzle-a1-3"]
        );
        assert!(lab.stores(HostNumber(2)) && !lab.stores(HostNumber(3)));
        assert!(lab.host(0).is_err() && lab.host(4).is_err());
        assert_eq!(lab.host(3).map(HostNumber::listens).as_deref(), Ok("198.18.0.3:4747"));
    }
}
