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
use crate::membership;

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
    /// How many targets a new file system gets inside DIR: 1, unless this or --target is given.
    #[arg(long, value_name = "N", conflicts_with = "target", value_parser = clap::value_parser!(u16).range(1..=64))]
    targets: Option<u16>,
    /// An empty directory that is there, or a block device or preallocated file of 512 MiB at least, as one target of a
    /// new file system. Repeat for more.
    #[arg(long, value_name = "PATH")]
    target: Vec<PathBuf>,
    /// How many targets may be lost at once, 0 to 4, and of a cluster as many machines from M+2 on, or one of two with
    /// 1; of fewer any one machine. Fixed for good. Unless given, 1, or 0 for a single target without --address.
    #[arg(long, value_name = "M")]
    parity: Option<u8>,
    /// How many data fragments a stripe gets at most, however many targets there are, 1 to 8; unless given 4, or 8
    /// where two or more may be lost.
    #[arg(long, value_name = "K")]
    data: Option<u8>,
    /// The most that each target of a new file system may take, if it is a directory, at least 64 MiB, for example
    /// "4 GiB".
    #[arg(long, value_name = "SIZE")]
    limit: Option<Size>,
    /// Where other machines reach this one, host and port, an address of its own: the file system is then open for
    /// them to join, from its first start or from a later one on.
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// What this machine is called in its cluster; unless given, its host name.
    #[arg(long, requires = "address")]
    name: Option<String>,
    /// The disk of this target of the cluster is gone for good, and with it what was fsynced last, perhaps: nobody waits for
    /// it any more. Its number or name, as a start says which does not get on. Repeat for more.
    #[arg(long, value_name = "TARGET")]
    give_up: Vec<String>,
    /// Stay in the foreground, as for a service manager. It ends, with an error, where a background daemon would start
    /// itself anew: have it restarted then.
    #[arg(long)]
    foreground: bool,
}

impl Up {
    pub(super) fn run(self) -> Outcome {
        storage_place::make_directory(&self.dir).map_err(|error| format!("{}: {error}", self.dir.display()))?;
        let dir = super::existing(&self.dir)?;
        if DirectoryLock::is_taken(&lock_path(&dir)) {
            let dir = dir.display();
            let advice = match self.address {
                Some(_) => format!("stop it with `dazzle down {dir}`, and give the same command again"),
                None => format!("`dazzle status {dir}` tells how it is"),
            };
            return Err(Failure::from(format!("a daemon runs for {dir} already; {advice}")));
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
                "{dir} holds a file system already, so --targets, --target, --parity, --data and --limit do not apply; its \
                 settings are in {dir}/{FILE_NAME}"
            )));
        } else if let Some(own) = self.own_part() {
            open_up(&dir, own)?;
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
            return super::daemon::Daemon::foreground(dir, self.give_up).run();
        }
        super::daemon::start(&dir, &self.give_up)
    }

    fn describes_new(&self) -> bool {
        let of_targets = self.targets.is_some() || !self.target.is_empty() || self.limit.is_some();
        of_targets || self.parity.is_some() || self.data.is_some()
    }

    /// What it is to others, if it is to be anything.
    fn own_part(&self) -> Option<ClusterConfig> {
        let address = self.address.clone()?;
        Some(ClusterConfig { name: self.name.clone().unwrap_or_else(process::host_name), address, peers: Vec::new() })
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
        config.cluster = self.own_part();
        config.verify()?;
        super::expect_new(dir, &config)?;
        if let Some(address) = &self.address {
            expect_free(address)?;
        }
        create::create(dir, &config)?;
        Ok(())
    }
}

/// Opens the file system of one machine for others.
fn open_up(dir: &std::path::Path, own: ClusterConfig) -> Outcome {
    let mut config = Config::load(dir)?;
    if let Some(known) = &config.cluster {
        let (dir, address) = (dir.display(), &known.address);
        return Err(Failure::from(format!(
            "{dir} is open to others already, at {address}: `dazzle up {dir}` starts it. To move it to another address, change \
             that in {dir}/{FILE_NAME} first"
        )));
    }
    expect_free(&own.address)?;
    let parity = config.parity;
    let runtime = process::runtime()?;
    runtime.block_on(membership::open_up(dir, &mut config, own, runtime.handle()))?;
    let redundancy = match parity {
        0 => "; its parity is 0, which is fixed: they give room, and no redundancy",
        _ => "",
    };
    say!("other machines can join it with `dazzle token create {}` and `dazzle join`{redundancy}", dir.display());
    Ok(())
}

fn expect_free(address: &str) -> Outcome {
    let runtime = process::runtime()?;
    let free = runtime.block_on(network::expect_free(address));
    // A name server that does not answer is waited for no longer.
    runtime.shutdown_background();
    Ok(free?)
}
