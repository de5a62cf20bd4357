//! `dazzle join`: make this machine part of a cluster.

use std::io::{self, BufRead};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use host::Disk;
use protocol::id::TargetId;
use serde_json::Value;
use tokio::runtime::Handle;

use super::drain::{self, tell};
use super::{Failure, Outcome, existing};
use crate::config::{ClusterConfig, Config, FILE_NAME, PeerConfig, Size, TargetConfig};
use crate::edge::mount;
use crate::edge::network::{self, Joined, Newcomer};
use crate::edge::process;
use crate::edge::storage_place::{self, Made};
use crate::edge::trust::{self, Date, Token, TokenError};
use crate::targets::open_unowned;

/// More than the line of a token.
const LINE_BYTES_MAX: u64 = 4096;

/// How a token is shown.
#[derive(Clone, Debug)]
enum Shown {
    /// In the command.
    Word(Token),
    /// On standard input.
    Line,
}

impl FromStr for Shown {
    type Err = TokenError;

    fn from_str(word: &str) -> Result<Shown, TokenError> {
        if word == "-" { Ok(Shown::Line) } else { word.parse().map(Shown::Word) }
    }
}

impl Shown {
    /// The token, which is the first line of `input` unless the command has it.
    fn read(&self, input: impl BufRead) -> Result<Token, Failure> {
        if let Shown::Word(token) = self {
            return Ok(*token);
        }
        let mut line = String::new();
        let read = input.take(LINE_BYTES_MAX).read_line(&mut line);
        read.map_err(|error| format!("standard input, where the token is to come from, cannot be read: {error}"))?;
        match line.trim() {
            "" => Err(Failure::from(
                "no token came on standard input: with `-` in its place its line is read there, as in \
                 `dazzle join ADDRESS - DIR … <FILE`",
            )),
            word => Ok(word.parse::<Token>()?),
        }
    }
}

/// Makes this machine part of the file system that the machine at ADDRESS belongs to.
#[derive(Debug, Args)]
#[command(
    after_help = "Get a token with `dazzle token create DIR` on any machine of the cluster that stores. With --plan the \
                  machine at ADDRESS is asked what it would be like: nothing is changed, and the token stays good. From when \
                  it has joined this machine is started with `dazzle up DIR`."
)]
pub(super) struct Join {
    /// Where that machine, any one that stores, is reached: host and port.
    #[arg(value_name = "ADDRESS")]
    at: String,
    /// What `dazzle token create` printed: good for one machine, and for a day. With `-` it is read from standard input: what
    /// stands in a command every user of this machine can read while that runs.
    token: Shown,
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
    /// Change nothing; print for how much there is room then, how wide stripes are, what may be lost, what is laid anew and
    /// how long that takes.
    #[arg(long)]
    plan: bool,
    /// With --plan: print JSON.
    #[arg(long, requires = "plan")]
    json: bool,
}

impl Join {
    pub(super) fn run(self) -> Outcome {
        let token = self.token.read(io::stdin().lock())?;
        if self.plan {
            return self.foresee(&token);
        }
        let mut made = Made::default();
        let (dir, config) = self.prepare(&mut made)?;
        let runtime = process::runtime()?;
        let asked = runtime.block_on(self.ask(&token, (&dir, &config), runtime.handle()));
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
        super::daemon::start(&dir, &[]).map_err(|failure| {
            let dir = dir.display();
            failure.and(format!("This machine has joined: when the cause is gone, start it with `dazzle up {dir}`"))
        })
    }

    /// Asks the cluster what it would be like.
    fn foresee(self, token: &Token) -> Outcome {
        // What is made to look at it goes again.
        let mut made = Made::default();
        let (dir, config) = self.prepare(&mut made)?;
        for target in &config.targets {
            // Only what lies in DIR is made; the others are there, or are refused.
            if target.path.is_relative() {
                let path = dir.join(&target.path);
                made.make(&path).map_err(|error| format!("{}: {error}", path.display()))?;
                made.watch(&path);
            }
        }
        let runtime = process::runtime()?;
        let asked = runtime.block_on(async {
            let (newcomer, disks) = self.newcomer(&dir, &config, runtime.handle()).await?;
            let free = |(id, disk): &(TargetId, Disk)| {
                let usage = disk.usage().map_err(|error| format!("target {}: {error}", id.0))?;
                Ok::<_, Failure>(usage.bytes_free)
            };
            let bytes_free = disks.iter().map(free).collect::<Result<_, _>>()?;
            Ok(network::plan(&self.at, token, (newcomer, bytes_free), Date::now()).await?)
        });
        runtime.shutdown_background();
        let planned = asked.map_err(|failure: Failure| failure.and("Nothing was changed"))?;
        let plan = serde_json::from_str(&planned.0)
            .map_err(|error| format!("the plan is not understood ({error}): the Dazzle there is another version"))?;
        tell(self.json, &plan, |plan| {
            print_arrival(&config.cluster.expect("who joins has a part in a cluster").name, plan)
        });
        Ok(())
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
        config.targets.iter().for_each(|target| made.watch(&dir.join(&target.path)));
        super::expect_new(&dir, &config)?;
        Ok((dir, config))
    }

    /// Asks the cluster, once this machine has all that a node needs.
    async fn ask(&self, token: &Token, (dir, config): (&Path, &Config), runtime: &Handle) -> Result<Joined, Failure> {
        let (newcomer, _) = self.newcomer(dir, config, runtime).await?;
        Ok(network::join(&self.at, token, newcomer, Date::now()).await?)
    }

    /// What this machine is to the cluster, and the disks that it has for it.
    async fn newcomer(
        &self,
        dir: &Path,
        config: &Config,
        runtime: &Handle,
    ) -> Result<(Newcomer, Vec<(TargetId, Disk)>), Failure> {
        network::expect_free(&self.address).await?;
        let mut there = config.clone();
        there.targets.retain(|target| target.path.is_absolute() || dir.join(&target.path).exists());
        let disks = open_unowned(dir, &there, runtime).await?;
        let own = config.cluster.as_ref().expect("who joins has a part in a cluster");
        Ok((Newcomer { name: own.name.clone(), address: own.address.clone(), stores: !self.client }, disks))
    }
}

fn print_arrival(name: &str, plan: &Value) {
    let size = |field: &str| Size(plan[field].as_u64().unwrap_or(0)).to_string();
    let (before, after) = (&plan["machines_now"], &plan["machines_then"]);
    if before == after {
        say!("{name}: one more machine that only mounts");
    } else {
        say!("{name}: one more machine that stores, {after} then; it manages its share of files, too");
    }
    match plan["bytes_to_move"].as_u64() {
        Some(0) | None => {
            say!(
                "to move    nothing; open logs go on over all, and it takes its share of what is written from then on"
            );
            say!("time       some seconds");
        }
        Some(bytes) => {
            let bytes = Size(bytes);
            say!(
                "to move    {bytes} at most, of {} stripes that lie over fewer machines than they could",
                plan["stripes"]
            );
            say!("time       {}", drain::time(plan));
        }
    }
    say!("room       for {} now, for {} with it", size("room_now"), size("room"));
    let wide = |field: &str| format!("{}+{}", plan[field]["data"], plan[field]["parity"]);
    say!("stripes    of {} fragments of data and parity now, {} with it", wide("stripes_now"), wide("stripes_then"));
    drain::print_safety(plan, "with it");
    let votes = plan["votes_then"].as_u64().unwrap_or(0);
    say!("votes then: {votes} machine(s); calls go on while {} of them run", votes / 2 + 1);
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

#[cfg(test)]
mod tests {
    use clap::Parser;
    use protocol::registry::Invitation;

    use super::*;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        join: Join,
    }

    #[test]
    fn a_token_can_be_told_where_no_other_user_sees_it() {
        let words = ["join", "rack-1:4747", "-", "/srv/dazzle", "--address", "rack-2:4747"];
        let Words { join } = Words::try_parse_from(words).expect("a token that is yet to come");
        let line = Token { fingerprint: [7; 32], invitation: Invitation { number: 1, expires: 2 }, proof: [3; 16] };
        for told in [format!("{line}\n"), format!("  {line}  \nmore"), line.to_string()] {
            assert_eq!(join.token.read(told.as_bytes()).expect("it is there"), line);
        }
        for (told, why) in [("", "no token came"), ("\n", "no token came"), ("secret\n", "this is no token")] {
            let failure = join.token.read(told.as_bytes()).expect_err("it is not there");
            assert!(failure.message.contains(why), "{failure:?}");
        }
        let endless = join.token.read(io::BufReader::new(io::repeat(b'7'))).expect_err("no token is as long");
        assert!(endless.message.contains("this is no token"), "{endless:?}");
    }
}
