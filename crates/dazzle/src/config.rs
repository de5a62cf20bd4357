//! The settings of a file system: few, in one file, `dazzle.toml` in its directory.

use std::fmt;
use std::path::{Path, PathBuf};

use protocol::maps::Class;
use protocol::settings::Settings;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::edge::storage_place;

/// The name of the file.
pub const FILE_NAME: &str = "dazzle.toml";

/// The least part of the cache that is for reading, in bytes.
const READ_MIN: u64 = 16 << 20;

/// The part of a machine's memory that metadata gets.
const METADATA_SHARE: u64 = 16;
/// In steps of so many bytes, so many at least and so many at most.
const METADATA_STEP: u64 = 512 << 20;
const METADATA_MIN: u64 = 512 << 20;
const METADATA_MAX: u64 = 8 << 30;

/// The widest stripe is 4 MiB of data, as much as the largest fragment takes: one that lost targets is laid anew over as few
/// as are left.
const DATA_MAX: u8 = 8;

/// What stands above the settings in the file.
const EXPLANATION: &str = "\
# The settings of a Dazzle file system; they are read when its daemon starts. Dazzle writes this file anew when targets
# are added or replaced, or `dazzle up` is told another mount: comments of your own are lost then.
#
# parity     how many targets may be lost at once without losing a byte, 0 to 4; fixed
# data       the most data fragments that a stripe gets beside those of parity, also where more machines are there, so
#            that what a machine held can be made again on those that are in none of its stripes, 1 to 8; unless given,
#            4, or 8 with parity of 2 and more; fixed
# mount      where it is mounted; `dazzle up --mount` changes it
# cache      memory for file data: read ahead, recently read, written but not yet stored; 256 MiB unless given, at least
#            32 MiB
# dirty      the part of cache for what is written but not yet stored; 128 MiB unless given, at least 16 MiB, and at
#            least 16 MiB less than cache
# metadata   memory for inodes, names and maps of files: some 140 bytes a file, else they are read from the targets again;
#            a new file system gets about a sixteenth of the machine's memory, from 512 MiB to 8 GiB; at least 16 MiB
#            beside cache and metadata the daemon takes up to 128 MiB, 8 MiB more for each processor where requests come
#            by io_uring, and a quarter of metadata: docs/limits.md
# scrub_days in so many days everything stored is read once, and repaired where bits have rotted; 7 unless given;
#            0: never; what `dazzle settings` sets for all machines, this, rebuild or rebuild_minutes, counts instead of
#            what is here
# rebuild    so many bytes a second each machine reads to bring lost redundancy back: to make targets whole that come
#            back, and to lay anew what lies on too few machines; 64 MiB unless given, at least 1 MiB
# io_uring   programs' requests come by io_uring where the kernel has that for FUSE (Linux 6.14) and the daemon runs as
#            root, which has the kernel allow it (fuse.enable_uring); false: by the FUSE device alone
# rebuild_minutes  a target that is away for so long counts as lost, and what lay on it is made again on others in its
#            place, or, where they are too few, laid anew over those that are left; 10 unless given
# [cluster]  name and address (host:port) of this machine in its cluster, and the peers it asks first; to move it to
#            another address: `dazzle down`, change it here, `dazzle up`; the rest is kept by Dazzle
# [[target]] path: a directory, block device or preallocated file, relative to this directory or absolute
#            id: its number, which Dazzle writes; without one that is its place in the list, from 0: leave entries where
#            they are
#            limit: the most that it may take of the file system it lies in, at least 64 MiB; sizes read \"64 MiB\" or
#            \"1.5 GiB\"

";

/// All settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// How many targets of a stripe may be lost without losing a byte: m. Fixed when the file system is made.
    pub parity: u8,
    /// The most data fragments of a stripe: k. Fixed as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<u8>,
    /// Where it is mounted, if anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<PathBuf>,
    /// Memory for file data: read ahead, recently read, and written but not yet stored.
    #[serde(default = "Config::default_cache")]
    pub cache: Size,
    /// The part of it that may hold what is written but not yet stored.
    #[serde(default = "Config::default_dirty")]
    pub dirty: Size,
    /// Memory for inodes, names and maps of files.
    #[serde(default = "Config::default_metadata")]
    pub metadata: Size,
    /// In so many days everything stored is read once, and repaired where bits have rotted; 0: never.
    #[serde(default = "Config::default_scrub_days")]
    pub scrub_days: u32,
    /// So many bytes a second are read to bring lost redundancy back.
    #[serde(default = "Config::default_rebuild")]
    pub rebuild: Size,
    /// A target that is away for so many minutes counts as lost, and what lay on it is made again on others.
    #[serde(default = "Config::default_rebuild_minutes")]
    pub rebuild_minutes: u32,
    /// Requests come by io_uring where that is to be had.
    #[serde(default = "Config::default_io_uring")]
    pub io_uring: bool,
    /// Its part in a cluster of machines; absent: it is alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterConfig>,
    /// The targets, in the order of their numbers. New ones go to the end. A machine that joined a cluster may have none.
    #[serde(rename = "target", default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetConfig>,
}

/// A machine's part in a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterConfig {
    /// What people call the machine.
    pub name: String,
    /// Where its daemon listens and is called: host and port.
    pub address: String,
    /// The nodes that it asks until it knows better: those that were there when it joined.
    #[serde(default, rename = "peer", skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<PeerConfig>,
}

/// Another machine of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerConfig {
    /// Its number.
    pub node: u32,
    /// Where its daemon is called.
    pub address: String,
}

/// One target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetConfig {
    /// A directory, a block device or a preallocated file; relative to the file system's directory.
    pub path: PathBuf,
    /// Its number, where that is not its place in the list: on machines that joined a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// The most that it may take of the file system it lies in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Size>,
}

/// A number of bytes, written "64 MiB" or "1.5 GiB" or as a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{0} cannot be read: {1}")]
    Unread(PathBuf, std::io::Error),
    /// The file does not parse.
    #[error("{0} is not understood: {1}")]
    Unparsed(PathBuf, String),
    /// The settings contradict themselves.
    #[error("{0}: {1}")]
    Wrong(PathBuf, String),
}

impl Config {
    fn default_cache() -> Size {
        Size(256 << 20)
    }

    fn default_dirty() -> Size {
        Size(128 << 20)
    }

    fn default_metadata() -> Size {
        Size(METADATA_MIN)
    }

    /// What a machine with so much memory, in bytes, is given for metadata when its file system is made.
    pub fn metadata_of(memory: u64) -> Size {
        Size((memory / METADATA_SHARE / METADATA_STEP * METADATA_STEP).clamp(METADATA_MIN, METADATA_MAX))
    }

    fn default_scrub_days() -> u32 {
        7
    }

    /// The half of what a slow network or a single disk carries: programs come first.
    fn default_rebuild() -> Size {
        Size(64 << 20)
    }

    /// A machine that reboots, for new software or after a failure of the power, is back by then; and a second loss within
    /// that time is less likely than the load of moving all that it holds would be a nuisance.
    fn default_rebuild_minutes() -> u32 {
        10
    }

    fn default_io_uring() -> bool {
        true
    }

    /// Settings with all defaults.
    pub fn new(parity: u8, mount: Option<PathBuf>, targets: Vec<TargetConfig>) -> Config {
        Config {
            parity,
            data: None,
            mount,
            cache: Config::default_cache(),
            dirty: Config::default_dirty(),
            metadata: Config::default_metadata(),
            scrub_days: Config::default_scrub_days(),
            rebuild: Config::default_rebuild(),
            rebuild_minutes: Config::default_rebuild_minutes(),
            io_uring: Config::default_io_uring(),
            cluster: None,
            targets,
        }
    }

    /// Reads the settings of the file system in `directory`.
    pub fn load(directory: &Path) -> Result<Config, ConfigError> {
        let path = directory.join(FILE_NAME);
        let text = storage_place::read_text(&path).map_err(|error| ConfigError::Unread(path.clone(), error))?;
        Config::from_text(&path, &text)
    }

    /// The settings in `text`, the content of the file at `path`.
    pub fn from_text(path: &Path, text: &str) -> Result<Config, ConfigError> {
        let config: Config =
            toml::from_str(text).map_err(|error| ConfigError::Unparsed(path.to_owned(), error.to_string()))?;
        config.verify().map_err(|reason| ConfigError::Wrong(path.to_owned(), reason))?;
        Ok(config)
    }

    /// The settings as the file holds them.
    pub fn to_text(&self) -> String {
        let body = toml::to_string(self).expect("settings have no unserializable part");
        format!("{EXPLANATION}{body}")
    }

    /// The redundancy class that they ask for.
    pub fn class(&self) -> Class {
        Class { parity: self.parity, data_max: self.data }
    }

    /// What holds on this machine where nothing is set for all.
    pub fn own_settings(&self) -> Settings {
        let (rebuild, minutes, days) = (self.rebuild.0, self.rebuild_minutes, self.scrub_days);
        Settings { rebuild: Some(rebuild), rebuild_minutes: Some(minutes), scrub_days: Some(days) }
    }

    /// Whether the settings make sense together.
    pub fn verify(&self) -> Result<(), String> {
        if self.targets.is_empty() && self.cluster.is_none() {
            return Err("no [[target]] is given: a file system needs at least one".into());
        }
        if self.targets.len() > 1000 {
            return Err(format!("{} targets are given; a machine has at most 1000", self.targets.len()));
        }
        // With other machines come other targets.
        if self.cluster.is_none() && usize::from(self.parity) >= self.targets.len() {
            let (parity, targets) = (self.parity, self.targets.len());
            return Err(format!("parity = {parity} needs more than {parity} targets, and {targets} are given"));
        }
        if self.parity > 4 {
            return Err(format!("parity = {} is more than the 4 that are supported", self.parity));
        }
        if let Some(data) = self.data.filter(|data| !(1..=DATA_MAX).contains(data)) {
            return Err(format!("data = {data} is not from 1 to the {DATA_MAX} that are supported"));
        }
        let at_least = |what: &str, size: Size, least: u64| {
            if size.0 < least { Err(format!("{what} = \"{size}\" is less than {}", Size(least))) } else { Ok(()) }
        };
        at_least("cache", self.cache, 32 << 20)?;
        at_least("dirty", self.dirty, 16 << 20)?;
        at_least("metadata", self.metadata, 16 << 20)?;
        self.own_settings().verify().map_err(|error| error.to_string())?;
        if self.dirty.0.saturating_add(READ_MIN) > self.cache.0 {
            let (dirty, cache, least) = (self.dirty, self.cache, Size(READ_MIN));
            return Err(format!(
                "dirty = \"{dirty}\" is a part of cache = \"{cache}\" and must leave {least} of it for reading"
            ));
        }
        if let Some(cluster) = &self.cluster {
            let is_place = |address: &str| {
                address
                    .rsplit_once(':')
                    .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
            };
            let peers = cluster.peers.iter().map(|peer| &peer.address);
            if let Some(wrong) = [&cluster.address].into_iter().chain(peers).find(|address| !is_place(address)) {
                return Err(format!("address = \"{wrong}\" is no host and port, such as \"192.0.2.7:4747\""));
            }
        }
        for path in self.mount.iter().chain(self.targets.iter().map(|target| &target.path)) {
            if path.to_str().is_none() {
                return Err(format!("{} is not UTF-8, and settings are text; name another path", path.display()));
            }
        }
        for target in &self.targets {
            if let Some(limit) = target.limit {
                at_least(&format!("limit of {}", target.path.display()), limit, 64 << 20)?;
            }
        }
        Ok(())
    }
}

/// No disk holds more. Of the largest unit it is a whole number: what is a size is one when it is shown, too, and rounded.
const SIZE_MAX: u128 = 900_000 << 40;

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = (&text[..digits], text[digits..].trim());
        let shift = match unit.to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
            "" => 0,
            "k" => 10,
            "m" => 20,
            "g" => 30,
            "t" => 40,
            _ => return Err(format!("\"{text}\" has an unknown unit; write for example \"512 MiB\" or \"4 GiB\"")),
        };
        // A whole number is taken exactly; beyond 2⁵³ a fraction of it would not be.
        let bytes = match number.parse::<u128>() {
            Ok(whole) => whole.saturating_mul(1 << shift),
            Err(_) => {
                let refused = |_| format!("\"{text}\" is no size; write for example \"512 MiB\" or \"4 GiB\"");
                (number.parse::<f64>().map_err(refused)? * (1u64 << shift) as f64) as u128
            }
        };
        if bytes > SIZE_MAX {
            return Err(format!("\"{text}\" is more than any disk holds"));
        }
        Ok(Size(bytes as u64))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["TiB", "GiB", "MiB", "KiB"];
        for (unit, shift) in units.into_iter().zip([40, 30, 20, 10]) {
            if self.0 >= 1 << shift {
                let whole = self.0 as f64 / (1u64 << shift) as f64;
                let digits = usize::from(whole.fract() != 0.0 && whole < 100.0);
                return write!(f, "{whole:.digits$} {unit}");
            }
        }
        write!(f, "{} B", self.0)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let exact = self.to_string().parse::<Size>() == Ok(*self);
        if exact { serializer.collect_str(self) } else { serializer.serialize_u64(self.0) }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Bytes(bytes) => Ok(Size(bytes)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn metadata_gets_a_share_of_the_machines_memory() {
        let given = |memory: u64| Config::metadata_of(memory).to_string();
        assert_eq!([given(1 << 30), given(8 << 30), given(24 << 30)], ["512 MiB", "512 MiB", "1.5 GiB"]);
        assert_eq!([given((24 << 30) - 5), given(1 << 40)], ["1 GiB", "8 GiB"]);
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let read = |text: &str| text.parse::<Size>();
        assert_eq!(read("64 MiB"), Ok(Size(64 << 20)));
        assert_eq!(read("1.5G"), Ok(Size(3 << 29)));
        assert_eq!(read("4096"), Ok(Size(4096)));
        assert_eq!(read("2 TiB"), Ok(Size(2 << 40)));
        assert_eq!(read("44099960909996044"), Ok(Size(44_099_960_909_996_044)), "more digits than a double has");
        assert!(read(&"9".repeat(60)).is_err());
        let largest = Size((900_000 << 40) - 1);
        assert_eq!((read(&largest.0.to_string()), largest.to_string()), (Ok(largest), "900000 TiB".into()));
        assert!(read("900000 TiB").is_ok() && read("900001 TiB").is_err());
        assert!(read("many").is_err() && read("5 parsecs").is_err() && read("").is_err() && read("1e99").is_err());
        assert_eq!((Size(64 << 20).to_string(), Size(3 << 29).to_string()), ("64 MiB".into(), "1.5 GiB".into()));
    }

    #[test]
    fn settings_survive_their_file() {
        let target = TargetConfig { path: "target-0".into(), id: None, limit: Some(Size(4 << 30)) };
        let config = Config::new(0, Some("/mnt/dazzle".into()), vec![target]);
        assert_eq!(toml::from_str::<Config>(&config.to_text()).unwrap(), config);
        assert_eq!(config.verify(), Ok(()));
    }

    #[test]
    fn a_path_that_is_no_text_is_refused_before_it_is_written() {
        let odd: PathBuf = std::ffi::OsStr::from_bytes(b"/mnt/\xff").into();
        let target = TargetConfig { path: "target-0".into(), id: None, limit: None };
        let mounted = Config::new(0, Some(odd.clone()), vec![target]);
        assert!(mounted.verify().unwrap_err().contains("not UTF-8"));
        let stored = Config::new(0, None, vec![TargetConfig { path: odd, id: None, limit: None }]);
        assert!(stored.verify().unwrap_err().contains("not UTF-8"));
    }

    #[test]
    fn contradictions_are_named() {
        let target = TargetConfig { path: "target-0".into(), id: None, limit: None };
        let wrong = Config::new(1, None, vec![target.clone()]);
        assert!(wrong.verify().unwrap_err().contains("needs more than 1 targets"));
        let wrong = Config { data: Some(0), ..Config::new(0, None, vec![target.clone()]) };
        assert!(wrong.verify().unwrap_err().contains("data = 0 is not from 1 to the 8"));
        let wrong = Config { dirty: Size(1 << 40), ..Config::new(0, None, vec![target.clone()]) };
        assert!(wrong.verify().unwrap_err().contains("must leave 16 MiB"));
        let wrong = Config { scrub_days: 3651, ..Config::new(0, None, vec![target]) };
        assert!(wrong.verify().unwrap_err().contains("0 turns it off"));
        assert!(toml::from_str::<Config>("parity = 1\nspeed = \"ludicrous\"\ntarget = []").is_err());
    }
}
