//! `dazzle join`: make this machine part of a cluster.

use std::path::{Path, PathBuf};

use clap::Args;
use tokio::runtime::Handle;

use super::{Failure, Outcome, existing};
use crate::config::{ClusterConfig, Config, FILE_NAME, PeerConfig, Size, TargetConfig};
use crate::edge::mount;
use crate::edge::network::{self, Joined, Newcomer};
use crate::edge::process;
use crate::edge::storage_place::{self, Made};
use crate::edge::trust::{self, Date, Token};
use crate::targets::open_unowned;

/// Makes this machine part of the file system that the machine at ADDRESS belongs to.
#[derive(Debug, Args)]
#[command(
    after_help = "Get a token with `dazzle token create DIR` on any machine of the cluster that stores. From then on this machine \
                  is started with `dazzle up DIR`."
)]
pub(super) struct Join {
    /// Where that machine, any one that stores, is reached: host and port.
    #[arg(value_name = "ADDRESS")]
    at: String,
    /// What `dazzle token create` printed: good for one machine, and for a day.
    token: Token,
    /// The directory that this machine keeps its part in.
    dir: PathBuf,
    /// Where other machines reach this one, host and port.
    #[arg(long, value_name = "HOST:PORT")]
    address: String,
    /// What this machine is called; unless given, its host name.
    #[arg(long)]
    name: Option<String>,
    /// Where to mount it.
    #[arg(long, value_name = "DIRECTORY")]
    mount: Option<PathBuf>,
    /// It stores nothing for others: it only mounts, and may go at any time with `dazzle down`. Its name and its address
    /// stay taken until `dazzle node remove` forgets it.
    #[arg(long, conflicts_with_all = ["targets", "target", "limit"])]
    client: bool,
    /// How many targets it gets inside DIR.
    #[arg(long, value_name = "N", conflicts_with = "target", value_parser = clap::value_parser!(u16).range(1..=64))]
    targets: Option<u16>,
    /// A directory, block device or file as one of its targets. Repeat for more.
    #[arg(long, value_name = "PATH")]
    target: Vec<PathBuf>,
    /// The most that each target may take, for example "4 GiB".
    #[arg(long, value_name = "SIZE")]
    limit: Option<Size>,
}

impl Join {
    pub(super) fn run(self) -> Outcome {
        let mut made = Made::default();
        let (dir, config) = self.prepare(&mut made)?;
        let runtime = process::runtime()?;
        let asked = runtime.block_on(self.ask(&dir, &config, runtime.handle()));
        // A name server that does not answer is waited for no longer.
        runtime.shutdown_background();
        let joined = asked.map_err(|failure| {
            failure.and(format!("{} is no part of the cluster, and nothing was changed there", dir.display()))
        })?;
        keep(&dir, config, joined).map_err(|failure| {
            failure.and(
                "The cluster has let this machine in, which could not keep what it was given: when the cause is gone, give the \
                 same command again, with the same token",
            )
        })?;
        made.keep();
        super::daemon::start(&dir).map_err(|failure| {
            let dir = dir.display();
            failure.and(format!("This machine has joined: when the cause is gone, start it with `dazzle up {dir}`"))
        })
    }

    /// The directory of the new node and its settings. All that can be wrong with these is looked at here.
    fn prepare(&self, made: &mut Made) -> Result<(PathBuf, Config), Failure> {
        made.make(&self.dir).map_err(|error| format!("{}: {error}", self.dir.display()))?;
        let dir = existing(&self.dir)?;
        if dir.join(FILE_NAME).exists() {
            let dir = dir.display();
            return Err(Failure::from(format!(
                "{dir} is part of a file system already; `dazzle up {dir}` starts it. To join another one, name another, \
                 empty directory"
            )));
        }
        let mount = self.mount.as_ref().map(std::path::absolute).transpose()?;
        if let Some(mount) = &mount {
            // A mount whose daemon died cannot even be looked at; what is wrong with it is told by the next line.
            let _ = made.make(mount);
            mount::prepare(mount)?;
        }
        let paths: Vec<PathBuf> = if self.client {
            Vec::new()
        } else if self.target.is_empty() {
            (0..self.targets.unwrap_or(1)).map(|number| PathBuf::from(format!("target-{number}"))).collect()
        } else {
            self.target.iter().map(std::path::absolute).collect::<Result<_, _>>()?
        };
        let targets = paths.into_iter().map(|path| TargetConfig { path, id: None, limit: self.limit }).collect();
        let mut config = Config::new(0, mount, targets);
        config.metadata = Config::metadata_of(process::machine_memory());
        let name = self.name.clone().unwrap_or_else(process::host_name);
        config.cluster = Some(ClusterConfig { name, address: self.address.clone(), peers: Vec::new() });
        config.verify()?;
        super::expect_new(&dir, &config)?;
        Ok((dir, config))
    }

    /// Asks the cluster, once this machine has all that a node needs.
    async fn ask(&self, dir: &Path, config: &Config, runtime: &Handle) -> Result<Joined, Failure> {
        network::expect_free(&self.address).await?;
        let mut there = config.clone();
        there.targets.retain(|target| target.path.is_absolute() || dir.join(&target.path).exists());
        open_unowned(dir, &there, runtime).await?;
        let own = config.cluster.as_ref().expect("who joins has a part in a cluster");
        let newcomer = Newcomer { name: own.name.clone(), address: own.address.clone(), stores: !self.client };
        Ok(network::join(&self.at, &self.token, newcomer, Date::now()).await?)
    }
}

/// Stores what the cluster gave. The settings come last: where they are, everything is.
fn keep(dir: &Path, mut config: Config, joined: Joined) -> Outcome {
    let own = config.cluster.as_mut().expect("who joins has a part in a cluster");
    let peer = |(node, address): (host::NodeId, String)| PeerConfig { node: node.0, address };
    own.peers = joined.peers.into_iter().map(peer).collect();
    (config.parity, config.data) = (joined.class.parity, joined.class.data_max);
    for target in config.targets.iter().filter(|target| target.path.is_relative()) {
        let path = dir.join(&target.path);
        storage_place::make_directory(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if let Some(authority) = &joined.authority {
        trust::store_authority(dir, authority)?;
    }
    trust::store(dir, &joined.identity)?;
    Ok(storage_place::write_text(&dir.join(FILE_NAME), &config.to_text())?)
}
