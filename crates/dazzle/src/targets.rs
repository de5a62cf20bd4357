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

/// Opens the disks that are to become targets, and refuses those that are some already. Nothing is changed.
pub(crate) async fn open_unowned(
    dir: &Path,
    config: &Config,
    runtime: &Handle,
) -> Result<Vec<(TargetId, Disk)>, String> {
    let mut disks = Vec::with_capacity(config.targets.len());
    if let Some(missing) = config.targets.iter().map(|target| dir.join(&target.path)).find(|path| !path.exists()) {
        return Err(format!(
            "{} does not exist, and is not made for a target: its disk may not be mounted. Make an empty directory there, or \
             name another one, a block device or a preallocated file",
            missing.display()
        ));
    }
    for ((id, opened), target) in open_disks(dir, config, runtime).into_iter().zip(&config.targets) {
        let name = target.path.display();
        let disk = opened.map_err(|error| error.to_string())?;
        if storage::owner(&disk).await.map_err(|error| format!("{name} cannot become a target: {error}"))?.is_some() {
            return Err(format!(
                "{name} is a target of a file system already; if that is not needed, empty it, or name another"
            ));
        }
        disks.push((id, disk));
    }
    Ok(disks)
}
