//! Making a new file system: targets, registry, settings, in this order; the settings file last, so that a half-made one
//! is never taken for a file system.

use std::path::Path;

use protocol::maps::TargetEntry;
use registry::{Registry, change};
use storage::TargetOptions;

use crate::config::{Config, FILE_NAME};
use crate::edge::{process, storage_place};
use crate::membership;
use crate::node::NODE;
use crate::targets::open_unowned;

/// Makes the file system that `config` describes in the empty directory `dir`.
pub(crate) fn create(dir: &Path, config: &Config) -> Result<(), String> {
    let runtime = process::runtime().map_err(|error| error.to_string())?;
    runtime.block_on(create_on(dir, config, runtime.handle()))
}

async fn create_on(dir: &Path, config: &Config, runtime: &tokio::runtime::Handle) -> Result<(), String> {
    let cluster = u128::from(random()?) << 64 | u128::from(random()?);
    for target in config.targets.iter().filter(|target| target.path.is_relative()) {
        let path = dir.join(&target.path);
        storage_place::make_directory(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    // All are looked at before the first is changed.
    let disks = open_unowned(dir, config, runtime).await?;
    let names = config.targets.iter().map(|target| target.path.display().to_string());
    let entries = disks.iter().zip(names).map(|((id, _), name)| (*id, TargetEntry::new(NODE.0, name))).collect();
    for (id, disk) in &disks {
        storage::format(disk, cluster, *id, TargetOptions::default())
            .await
            .map_err(|error| format!("target {} cannot be formatted: {error}", id.0))?;
    }
    let mut maps = change::new_cluster(cluster, entries, NODE.0, config.class());
    if let Some(own) = &config.cluster {
        let node = maps.nodes.get_mut(&NODE.0).expect("a new cluster has its first node");
        (node.name, node.address) = (own.name.clone(), own.address.clone());
        membership::found(dir, cluster).map_err(|error| error.to_string())?;
    }
    Registry::create(maps, disks).await.map_err(|error| error.to_string())?;
    storage_place::write_text(&dir.join(FILE_NAME), &config.to_text())
        .map_err(|error| format!("{}: {error}", dir.join(FILE_NAME).display()))
}

fn random() -> Result<u64, String> {
    getrandom::u64().map_err(|error| format!("the kernel gives no random numbers: {error}"))
}
