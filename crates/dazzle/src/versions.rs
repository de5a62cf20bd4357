//! The versions of all that two programs must have in common for one to take the other's place: `dazzle restart` asks the
//! program on disk for its own before it gives anything up.

use serde::{Deserialize, Serialize};

use crate::edge::network::{JOIN_VERSION, NETWORK_VERSION};
use crate::edge::process;
use crate::succession;

/// What asks a program for its versions.
pub(crate) const WORD: &str = "versions";

/// Of one program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Versions {
    network: u16,
    joining: u16,
    registry: u8,
    targets: u32,
    records: u8,
    /// Of what one process leaves to the next.
    left: u32,
}

impl Versions {
    /// This program's.
    pub(crate) fn own() -> Versions {
        Versions {
            network: NETWORK_VERSION,
            joining: JOIN_VERSION,
            registry: registry::FORMAT_VERSION,
            targets: storage::FORMAT_VERSION,
            records: protocol::record::VERSION,
            left: succession::VERSION,
        }
    }

    /// In one line.
    pub(crate) fn to_line(&self) -> String {
        serde_json::to_string(self).expect("numbers are always printable")
    }

    /// Whether a program that tells `line` of itself can go on in the place of this one; if not, why.
    pub(crate) fn compare(&self, line: &str) -> Result<(), String> {
        let other: Versions = serde_json::from_str(line).map_err(|_| {
            "the program on disk does not tell its versions: it is much older, or much newer, than this one".to_owned()
        })?;
        let own = [self.network.into(), self.joining.into(), self.registry.into(), self.targets];
        let others = [other.network.into(), other.joining.into(), other.registry.into(), other.targets];
        let names = [
            "the network",
            "joining",
            "the registry",
            "targets",
            "records of logs",
            "what a process leaves to the next",
        ];
        let own = own.into_iter().chain([self.records.into(), self.left]);
        let others = others.into_iter().chain([other.records.into(), other.left]);
        let differing: Vec<String> = (names.into_iter().zip(own.zip(others)))
            .filter(|(_, (own, other))| own != other)
            .map(|(name, (own, other))| format!("of {name} {other}, and not {own}"))
            .collect();
        if differing.is_empty() {
            return Ok(());
        }
        Err(format!(
            "the program on disk has another version {}, so it cannot go on with what this one has",
            differing.join(", ")
        ))
    }
}

/// Whether the program on disk runs on this machine, and can go on in the place of this process.
pub(crate) fn try_successor() -> Result<(), String> {
    let line = process::ask_own_program(&[WORD]).map_err(|error| error.to_string())?;
    Versions::own().compare(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_takes_the_place_of_another_of_the_same_versions_only() {
        let own = Versions::own();
        assert_eq!(own.compare(&own.to_line()), Ok(()));
        let other = Versions { registry: own.registry + 1, left: own.left + 1, ..own.clone() };
        let why = own.compare(&other.to_line()).expect_err("it differs");
        let expected = format!("of the registry {}, and not {}, of what a process", other.registry, own.registry);
        assert!(why.contains(&expected), "{why}");
        for rubbish in ["", "dazzle 0.1.0\n", "{}", "{\"network\":-1}"] {
            assert!(own.compare(rubbish).is_err(), "{rubbish}");
        }
    }
}
