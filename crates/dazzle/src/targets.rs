//! The disks of this machine's targets.

use std::path::{Path, PathBuf};

use host::{Disk, DiskError};
use protocol::id::TargetId;
use tokio::runtime::Handle;

use crate::config::{Config, TargetConfig};
use crate::edge::directory::Room;
use crate::edge::storage_place;

/// Opens the disk of every target that is there; with each, its number.
pub(crate) fn open_disks(dir: &Path, config: &Config, runtime: &Handle) -> Vec<(TargetId, Result<Disk, DiskError>)> {
    let paths: Vec<PathBuf> = config.targets.iter().map(|target| dir.join(&target.path)).collect();
    let sharers = storage_place::sharers(&paths);
    let targets = paths.iter().zip(&config.targets).zip(sharers);
    let open = |(number, ((path, target), sharers)): (u32, ((&PathBuf, &TargetConfig), u64))| {
        let room = Room { bytes_limit: target.limit.map_or(0, |limit| limit.0), sharers };
        (TargetId(target.id.unwrap_or(number)), storage_place::open_disk(path, room, runtime.clone()))
    };
    (0u32..).zip(targets).map(open).collect()
}
