//! `dazzle up`: make or start, and mount.

use std::path::PathBuf;

use clap::Args;

use super::{Failure, Outcome, lock_path};
use crate::config::{ClusterConfig, Config, FILE_NAME, Size, TargetConfig};
use crate::create;
use crate::edge::mount;
use crate::edge::network;
use crate::edge::process::{self, DirectoryLock};
use crate::edge::storage_place;

/// Makes a file system in DIR, or starts the one that is there, and mounts it.
#[derive(Debug, Args)]
#[command(after_help = "A new file system gets its targets from --targets (directories in DIR) or from --target (any \
                        directories, block devices or preallocated files, best on different disks). Targets, parity, \
                        data and limits are written to DIR/dazzle.toml and hold from then on; --mount is remembered too.")]
pub(super) struct Up {
    /// The directory of the file system.
    dir: PathBuf,
    /// Where to mount it.
    #[arg(long, value_name = "DIRECTORY")]
    mount: Option<PathBuf>,
    /// How many targets a new file system gets inside DIR.
    #[arg(long, value_name = "N", conflicts_with = "target", value_parser = clap::value_parser!(u16).range(1..=64))]
    targets: Option<u16>,
    /// A directory, block device or file as one target of a new file system. Repeat for more.
    #[arg(long, value_name = "PATH")]
    target: Vec<PathBuf>,
    /// How many targets may be lost at once: 1 unless there is only one target.
    #[arg(long, value_name = "M")]
    parity: Option<u8>,
    /// How many data fragments a stripe gets at most, however many targets there are; unless given 4, or 8 where
    /// two or more may be lost.
    #[arg(long, value_name = "K")]
    data: Option<u8>,
    /// The most that each target of a new file system may take, for example "4 GiB".
    #[arg(long, value_name = "SIZE")]
    limit: Option<Size>,
    /// Where other machines reach this one, host and port: a new file system is then open for them to join.
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// What this machine is called in its cluster; unless given, its host name.
    #[arg(long, requires = "address")]
    name: Option<String>,
    /// Stay in the foreground.
    #[arg(long)]
    foreground: bool,
}

impl Up {
    pub(super) fn run(self) -> Outcome {
        storage_place::make_directory(&self.dir).map_err(|error| format!("{}: {error}", self.dir.display()))?;
        let dir = super::existing(&self.dir)?;
        if DirectoryLock::is_taken(&lock_path(&dir)) {
            let dir = dir.display();
            return Err(Failure::from(format!(
                "a daemon runs for {dir} already; `dazzle status {dir}` tells how it is"
            )));
        }
        let mount = self.mount.as_ref().map(std::path::absolute).transpose()?;
        if let Some(mount) = &mount {
            mount::prepare(mount)?;
        }
        if !dir.join(FILE_NAME).exists() {
            self.make(&dir, mount.clone())?;
        } else if self.describes_new() {
            let dir = dir.display();
            return Err(Failure::from(format!(
                "{dir} holds a file system already, so --targets, --target, --parity, --data, --limit and --address do not \
                 apply; its settings are in {dir}/{FILE_NAME}"
            )));
        }
        let mut config = Config::load(&dir)?;
        if mount.is_some() && mount != config.mount {
            config.mount = mount;
            config.verify()?;
            storage_place::write_text(&dir.join(FILE_NAME), &config.to_text())?;
        }
        if let Some(mount) = &config.mount {
            mount::prepare(mount)?;
        }
        if self.foreground {
            return super::daemon::Daemon::foreground(dir).run();
        }
        super::daemon::start(&dir)
    }

    fn describes_new(&self) -> bool {
        let of_targets = self.targets.is_some() || !self.target.is_empty() || self.limit.is_some();
        of_targets || self.parity.is_some() || self.data.is_some() || self.address.is_some()
    }

    fn make(&self, dir: &std::path::Path, mount: Option<PathBuf>) -> Outcome {
        let paths: Vec<PathBuf> = if self.target.is_empty() {
            (0..self.targets.unwrap_or(1)).map(|number| PathBuf::from(format!("target-{number}"))).collect()
        } else {
            self.target.iter().map(std::path::absolute).collect::<Result<_, _>>()?
        };
        let parity = self.parity.unwrap_or(u8::from(paths.len() > 1 || self.address.is_some()));
        let targets = paths.into_iter().map(|path| TargetConfig { path, id: None, limit: self.limit }).collect();
        let mut config = Config::new(parity, mount, targets);
        config.data = self.data;
        config.metadata = Config::metadata_of(process::machine_memory());
        config.cluster = self.address.clone().map(|address| {
            let name = self.name.clone().unwrap_or_else(process::host_name);
            ClusterConfig { name, address, peers: Vec::new() }
        });
        config.verify()?;
        super::expect_new(dir, &config)?;
        if let Some(address) = &self.address {
            let runtime = process::runtime()?;
            let free = runtime.block_on(network::expect_free(address));
            // A name server that does not answer is waited for no longer.
            runtime.shutdown_background();
            free?;
        }
        create::create(dir, &config)?;
        Ok(())
    }
}
