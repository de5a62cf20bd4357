//! `dazzle lab`: a cluster on one machine, to try what befalls one.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::thread;

use clap::{Args, Subcommand};
use serde_json::json;

use super::{Failure, Outcome, existing, lock_path, print_json};
use crate::config::Size;
use crate::edge::filling;
use crate::edge::mount::{self, Users};
use crate::edge::namespaces::{self, Blow, Link, Namespaces};
use crate::edge::process::{self, DirectoryLock};
use crate::edge::storage_place;
use crate::lab::{FILE_NAME, HOSTS_MAX, HostNumber, Lab};

/// How long a host whose daemon ends with all others is waited for.
const ENDING_SECONDS: i64 = 5;

/// Runs a whole cluster on this machine.
#[derive(Debug, Args)]
#[command(
    after_help = "Each host is a network namespace with an address, a link, a directory and a daemon of its own, and \
                  all mount the file system. It needs root, and touches neither the machine's network nor anything \
                  outside DIR."
)]
pub(super) struct LabCommand {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Make a laboratory in DIR, or start the one that is there: a cluster, mounted on all its hosts.
    Up {
        /// An empty directory, or a laboratory's.
        dir: PathBuf,
        #[command(flatten)]
        new: New,
    },
    /// Stop all daemons and take the hosts away. What they stored stays in DIR.
    Down {
        /// The laboratory's directory.
        dir: PathBuf,
    },
    /// Which hosts run, and where each is mounted.
    Status {
        /// The laboratory's directory.
        dir: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Run a program on a host: dazzle lab exec DIR 2 -- ping 198.18.0.1
    Exec {
        /// The laboratory's directory.
        dir: PathBuf,
        /// The host's number.
        host: u8,
        /// The program and its arguments.
        #[arg(last = true, required = true)]
        program: Vec<OsString>,
    },
    /// Start a host's daemon.
    Start(At),
    /// Stop a host's daemon as `dazzle down` does.
    Stop(At),
    /// Kill a host's daemon, as a crash would.
    Kill(At),
    /// Freeze a host's daemon in the midst of what it does.
    Freeze(At),
    /// Let a frozen daemon go on.
    Thaw(At),
    /// Cut a host off, or with --from only what another host sends to it.
    Cut(Between),
    /// Undo a cut.
    Heal(Between),
    /// Set what a host's link carries, and how long packets are under way on it.
    Rate {
        #[command(flatten)]
        at: At,
        /// As tc says it, such as "100mbit"; none: as fast as memory.
        rate: Option<String>,
        /// As tc says it, such as "5ms"; none: no longer than it takes. The kernel needs netem for that.
        #[arg(long, value_name = "TIME")]
        delay: Option<String>,
    },
    /// Write to the file system from a host until it is full; refused where the laboratory was made without --limit.
    /// Remove the file that this names, and there is room again.
    Fill(At),
}

/// What a new laboratory is like.
#[derive(Debug, Default, Args, PartialEq, Eq)]
struct New {
    /// How many hosts a new one has: 3, unless given.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=i64::from(HOSTS_MAX)))]
    hosts: Option<u8>,
    /// How many hosts more it has that store nothing and only mount: none, unless given.
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=i64::from(HOSTS_MAX)))]
    clients: Option<u8>,
    /// How many targets each host has: 1, unless given.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=16))]
    disks: Option<u16>,
    /// How many targets may be lost at once, 0 to 4: 1, unless given.
    #[arg(long)]
    parity: Option<u8>,
    /// How many data fragments a stripe gets at most, however many hosts there are, 1 to 8.
    #[arg(long, value_name = "K")]
    data: Option<u8>,
    /// The most that each target may take, at least 64 MiB, for example "1 GiB". `fill` needs it.
    #[arg(long, value_name = "SIZE")]
    limit: Option<Size>,
    #[command(flatten)]
    wire: Wire,
}

/// What a link is like.
#[derive(Debug, Default, Args, PartialEq, Eq)]
struct Wire {
    /// What each link carries, as tc says it: "100mbit"; unless given, as much as memory can.
    #[arg(long)]
    rate: Option<String>,
    /// How long each packet is under way on it, each way, as tc says it: "5ms". The kernel needs netem for that.
    #[arg(long, value_name = "TIME")]
    delay: Option<String>,
}

impl New {
    fn lab(self) -> Lab {
        let New { hosts, clients, disks, parity, data, limit, wire: Wire { rate, delay } } = self;
        let tag = format!("{:04x}", std::process::id() & 0xffff);
        let (hosts, clients) = (hosts.unwrap_or(3), clients.unwrap_or(0));
        let (disks, parity) = (disks.unwrap_or(1), parity.unwrap_or(1));
        Lab { tag, hosts, clients, disks, parity, data, limit, rate, delay }
    }
}

/// A host of a laboratory.
#[derive(Debug, Args)]
struct At {
    /// The laboratory's directory.
    dir: PathBuf,
    /// The host's number.
    host: u8,
}

/// A host, or one way to it.
#[derive(Debug, Args)]
struct Between {
    #[command(flatten)]
    at: At,
    /// Only what this host sends.
    #[arg(long, value_name = "HOST")]
    from: Option<u8>,
}

impl LabCommand {
    pub(super) fn run(self) -> Outcome {
        if !namespaces::is_root() {
            return Err(Failure::from("a laboratory needs root: it makes network namespaces"));
        }
        match self.act {
            Act::Up { dir, new } => Laboratory::open_or_make(&dir, new)?.up(),
            Act::Down { dir } => Laboratory::open(&dir)?.down(),
            Act::Status { dir, json } => Laboratory::open(&dir)?.status(json),
            Act::Exec { dir, host, program } => Laboratory::open(&dir)?.exec(host, &program),
            Act::Start(At { dir, host }) => {
                let lab = Laboratory::open(&dir)?;
                let host = lab.lab.host(host)?;
                lab.start(host).map(|line| say!("{line}")).map_err(Failure::from)
            }
            Act::Stop(At { dir, host }) => {
                let lab = Laboratory::open(&dir)?;
                let host = lab.lab.host(host)?;
                lab.dazzle(host, &["down".as_ref(), host.directory(&lab.dir).as_ref()]).map(drop).map_err(Failure::from)
            }
            Act::Kill(at) => strike(&at, Blow::Kill),
            Act::Freeze(at) => strike(&at, Blow::Freeze),
            Act::Thaw(at) => strike(&at, Blow::Thaw),
            Act::Cut(between) => connect(&between, Link::Down),
            Act::Heal(between) => connect(&between, Link::Up),
            Act::Rate { at: At { dir, host }, rate, delay } => {
                let Laboratory { lab, .. } = Laboratory::open(&dir)?;
                Ok(Namespaces(&lab).shape(lab.host(host)?, rate.as_deref(), delay.as_deref())?)
            }
            Act::Fill(At { dir, host }) => Laboratory::open(&dir)?.fill(host),
        }
    }
}

fn strike(At { dir, host }: &At, blow: Blow) -> Outcome {
    let Laboratory { dir, lab } = Laboratory::open(dir)?;
    let lock = lock_path(&lab.host(*host)?.directory(&dir));
    match namespaces::strike(&lock, blow)? {
        true => Ok(()),
        false => Err(Failure::from(format!("host {host} runs no daemon"))),
    }
}

fn connect(Between { at: At { dir, host }, from }: &Between, link: Link) -> Outcome {
    let Laboratory { lab, .. } = Laboratory::open(dir)?;
    let host = lab.host(*host)?;
    match from {
        Some(from) => Ok(Namespaces(&lab).connect_way(lab.host(*from)?, host, link)?),
        None => Ok(Namespaces(&lab).connect(host, link)?),
    }
}

/// A laboratory and its directory.
struct Laboratory {
    dir: PathBuf,
    lab: Lab,
}

impl Laboratory {
    fn open(dir: &Path) -> Result<Laboratory, Failure> {
        let dir = existing(dir)?;
        let path = dir.join(FILE_NAME);
        let text = storage_place::read_text(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                format!("{0} holds no laboratory; `dazzle lab up {0}` makes one", dir.display())
            }
            _ => format!("{}: {error}", path.display()),
        })?;
        let lab = toml::from_str(&text).map_err(|error| format!("{} is not understood: {error}", path.display()))?;
        Ok(Laboratory { dir, lab })
    }

    fn open_or_make(dir: &Path, new: New) -> Result<Laboratory, Failure> {
        storage_place::make_directory(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let dir = existing(dir)?;
        let describes_new = new != New::default();
        let lab = new.lab();
        if dir.join(FILE_NAME).exists() {
            let there = Laboratory::open(&dir)?;
            let is_alike = Lab { tag: there.lab.tag.clone(), ..lab } == there.lab;
            return match describes_new && !is_alike {
                false => Ok(there),
                true => Err(Failure::from(format!(
                    "{0} holds another laboratory already, as {0}/{FILE_NAME} tells; `dazzle lab up {0}` starts it. One \
                     that is made with these options needs another, empty directory",
                    dir.display()
                ))),
            };
        }
        if let Some(other) = storage_place::unexpected(&dir, &[])? {
            let (dir, other) = (dir.display(), other.display());
            return Err(Failure::from(format!(
                "{dir} holds {other} and no laboratory; a new one needs an empty directory"
            )));
        }
        let text = toml::to_string(&lab).expect("a laboratory has no part that cannot be written");
        storage_place::write_text(&dir.join(FILE_NAME), &text)?;
        Ok(Laboratory { dir, lab })
    }

    fn up(&self) -> Outcome {
        let spaces = Namespaces(&self.lab);
        if !spaces.exist() {
            spaces.make().inspect_err(|_| spaces.remove())?;
        }
        let (made, new): (Vec<_>, Vec<_>) =
            self.lab.all().partition(|host| host.directory(&self.dir).join(crate::config::FILE_NAME).exists());
        // Those that were there know each other; they may need each other to begin.
        let starting: Vec<HostNumber> = made.into_iter().filter(|&host| !self.runs(host)).collect();
        for told in self.on_each(&starting, |host| self.start(host)) {
            say!("{}", told?);
        }
        for host in new {
            say!("{}", if host.0 == 1 { self.create(host)? } else { self.join(host)? });
        }
        Ok(())
    }

    fn create(&self, host: HostNumber) -> Result<String, String> {
        let (disks, parity) = (self.lab.disks.to_string(), self.lab.parity.to_string());
        let dir = host.directory(&self.dir);
        let words = ["up".as_ref(), dir.as_os_str(), "--targets".as_ref(), disks.as_ref(), "--parity".as_ref()];
        let mut words = [&words[..], &[parity.as_ref()]].concat();
        let data = self.lab.data.map(|data| data.to_string());
        if let Some(data) = &data {
            words.extend(["--data".as_ref(), OsStr::new(data)]);
        }
        let limit = self.limit();
        words.extend(limit.iter().flatten().map(OsStr::new));
        let (listens, name, mount) = (host.listens(), host.name(), host.mount(&self.dir));
        words.extend(own(&listens, &name));
        words.extend(["--mount".as_ref(), mount.as_os_str()]);
        self.dazzle(host, &words)
    }

    fn join(&self, host: HostNumber) -> Result<String, String> {
        // Whoever stores can let others in.
        let storing = self.lab.all().filter(|&other| other != host && self.lab.stores(other) && self.runs(other));
        let inviting = storing.last().ok_or("no host runs that could let another in")?;
        let directory = inviting.directory(&self.dir);
        let token = self.dazzle(inviting, &["token".as_ref(), "create".as_ref(), directory.as_ref()])?;
        let (at, disks, dir) = (inviting.listens(), self.lab.disks.to_string(), host.directory(&self.dir));
        // Every user of this machine sees what stands in a command.
        let mut words = vec!["join".as_ref(), at.as_ref(), "-".as_ref(), dir.as_os_str()];
        match self.lab.stores(host) {
            true => words.extend(["--targets".as_ref(), OsStr::new(&disks)]),
            false => words.push("--client".as_ref()),
        }
        let limit = self.limit().filter(|_| self.lab.stores(host));
        words.extend(limit.iter().flatten().map(OsStr::new));
        let (listens, name, mount) = (host.listens(), host.name(), host.mount(&self.dir));
        words.extend(own(&listens, &name));
        words.extend(["--mount".as_ref(), mount.as_os_str()]);
        self.dazzle_told(&token, host, &words)
    }

    /// What bounds the targets of a host.
    fn limit(&self) -> Option<[String; 2]> {
        self.lab.limit.map(|limit| ["--limit".to_owned(), limit.to_string()])
    }

    /// Fills the file system, and with it the targets of all hosts, from one of them.
    fn fill(&self, host: u8) -> Outcome {
        let (host, dir) = (self.lab.host(host)?, self.dir.display());
        if self.lab.limit.is_none() {
            return Err(Failure::from(format!(
                "the targets of this laboratory have no limit, so the disk that {dir} lies on would be filled with them; \
                 make one in another directory with `dazzle lab up OTHER --limit \"1 GiB\"`"
            )));
        }
        if !self.runs(host) {
            return Err(Failure::from(format!("host {} runs no daemon", host.0)));
        }
        let file = host.mount(&self.dir).join(format!("filled-by-{}", host.name()));
        let written = filling::fill(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        say!("{} has room for {} and not for more", file.display(), Size(written));
        Ok(())
    }

    fn start(&self, host: HostNumber) -> Result<String, String> {
        let (dir, mount) = (host.directory(&self.dir), host.mount(&self.dir));
        self.dazzle(host, &["up".as_ref(), dir.as_ref(), "--mount".as_ref(), mount.as_ref()])
    }

    /// Works on hosts at once.
    fn on_each<T: Send>(&self, hosts: &[HostNumber], work: impl Fn(HostNumber) -> T + Sync) -> Vec<T> {
        let work = &work;
        thread::scope(|scope| {
            let threads: Vec<_> = hosts.iter().map(|&host| scope.spawn(move || work(host))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no work panics")).collect()
        })
    }

    /// Stops all hosts that are of one cluster with this one.
    fn stop_all(&self, host: HostNumber) -> Result<(), String> {
        let dir = host.directory(&self.dir);
        self.dazzle(host, &["down".as_ref(), "--all".as_ref(), dir.as_ref()]).map(drop)
    }

    fn stop(&self, host: HostNumber) -> Result<(), String> {
        let dir = host.directory(&self.dir);
        let stopped = self.dazzle(host, &["down".as_ref(), dir.as_ref()]);
        stopped.map(drop).map_err(|error| format!("host {}: {error}", host.0))
    }

    fn down(&self) -> Outcome {
        let running: Vec<HostNumber> = self.lab.all().filter(|&host| self.runs(host)).collect();
        // Frozen ones do not hear.
        running.iter().for_each(|host| drop(namespaces::strike(&lock_path(&host.directory(&self.dir)), Blow::Thaw)));
        if let Some(&first) = running.first() {
            self.stop_all(first)?;
        }
        // The others end at the same time; who was cut off from them stops alone.
        for &host in &running {
            if !DirectoryLock::is_left_within(&lock_path(&host.directory(&self.dir)), ENDING_SECONDS)? {
                self.stop(host)?;
            }
        }
        for host in self.lab.all() {
            // Of a daemon that was killed the mount is still there, and answers nobody.
            let _ = mount::unmount(&host.mount(&self.dir), Users::Dismiss);
        }
        Namespaces(&self.lab).remove();
        say!("{} is down; what was stored is still there", self.dir.display());
        Ok(())
    }

    fn status(&self, json: bool) -> Outcome {
        let hosts: Vec<_> = self.lab.all().map(|host| (host, self.runs(host))).collect();
        if json {
            let told = hosts.iter().map(|&(host, runs)| {
                let (address, mount) = (host.address().to_string(), host.mount(&self.dir));
                let directory = host.directory(&self.dir);
                let stores = self.lab.stores(host);
                json!({"host": host.0, "runs": runs, "stores": stores, "address": address, "mount": mount,
                       "directory": directory})
            });
            print_json(&json!({"hosts": told.collect::<Vec<_>>(), "rate": self.lab.rate}));
            return Ok(());
        }
        for (host, runs) in hosts {
            let (state, mount) = (if runs { "runs" } else { "is down" }, host.mount(&self.dir));
            say!("host {:<3} {:<12} {:<8} {}", host.0, host.address(), state, mount.display());
        }
        Ok(())
    }

    fn exec(&self, host: u8, program: &[OsString]) -> Outcome {
        let host = self.lab.host(host)?;
        let mut command = Namespaces(&self.lab).command(host, &program[0]);
        let status = command.args(&program[1..]).status()?;
        match status.code() {
            Some(0) => Ok(()),
            Some(code) => Err(Failure::from(format!("{} ended with {code}", program[0].display()))),
            None => Err(Failure::from(format!("{} was ended by a signal", program[0].display()))),
        }
    }

    fn runs(&self, host: HostNumber) -> bool {
        DirectoryLock::is_taken(&lock_path(&host.directory(&self.dir)))
    }

    /// Runs this very program on a host.
    fn dazzle(&self, host: HostNumber, words: &[&OsStr]) -> Result<String, String> {
        self.dazzle_told("", host, words)
    }

    /// The same of a command that is told something on its standard input.
    fn dazzle_told(&self, said: &str, host: HostNumber, words: &[&OsStr]) -> Result<String, String> {
        let program = process::own_program().map_err(|error| error.to_string())?;
        let mut command = Namespaces(&self.lab).command(host, program);
        let told = namespaces::output_told(said, command.args(words));
        // Who says it is the same.
        let said = |why: String| why.strip_prefix("dazzle: ").unwrap_or(&why).to_owned();
        told.map(|told| told.trim_end().to_owned()).map_err(said)
    }
}

/// What a host says of itself when it makes or joins a cluster.
fn own<'a>(listens: &'a str, name: &'a str) -> [&'a OsStr; 4] {
    ["--address".as_ref(), listens.as_ref(), "--name".as_ref(), name.as_ref()]
}
