//! Hosts as network namespaces: made, shaped, cut and taken away with `ip`, `tc` and `nsenter`. Needs root.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal};

use super::process;
use crate::lab::{HostNumber, Lab};

/// Bytes that may pass at once beyond a link's rate.
const BURST: &str = "64kb";
/// How long a packet may wait for its turn at a host, beside the time that a burst takes, where most Linux machines hold back
/// what has waited for 5 ms (fq_codel).
const WAIT_AT_HOST: &str = "5ms";
/// And at the switch, which drops what finds no room.
const WAIT_AT_SWITCH: &str = "50ms";

/// The kernel's default for TCP.
const CONGESTION: &str = "cubic";

/// Packets that TCP hands to a link at once, at least. A network card makes packets of what it is handed; here one machine's
/// cores do it for all hosts, and a connection that shares a link with many others would hand over two at a time.
const PACKETS_AT_ONCE: &str = "16";

/// Where all hosts' addresses are.
const NETWORK: &str = "198.18.0.0/24";

/// A host's own end of its link.
const LINK: &str = "eth0";

/// The namespaces of a laboratory.
pub(crate) struct Namespaces<'a>(pub(crate) &'a Lab);

impl Namespaces<'_> {
    /// Whether they are there.
    pub(crate) fn exist(&self) -> bool {
        Path::new("/run/netns").join(self.0.switch()).exists()
    }

    /// Makes the switch, and a host with a link to it for each.
    pub(crate) fn make(&self) -> Result<(), String> {
        let switch = self.0.switch();
        run("ip", &["netns", "add", &switch])?;
        self.at_switch(&["link", "add", "switch", "type", "bridge"])?;
        self.at_switch(&["link", "set", "switch", "up"])?;
        self.0.all().try_for_each(|host| self.plug_in(host))
    }

    fn plug_in(&self, host: HostNumber) -> Result<(), String> {
        let (space, plug, address) = (self.0.namespace(host), host.plug(), format!("{}/24", host.address()));
        run("ip", &["netns", "add", &space])?;
        self.at_switch(&["link", "add", &plug, "type", "veth", "peer", "name", LINK, "netns", &space])?;
        self.at_switch(&["link", "set", &plug, "master", "switch", "up"])?;
        run("ip", &["-n", &space, "address", "add", &address, "dev", LINK])?;
        run("ip", &["-n", &space, "link", "set", "lo", "up"])?;
        run("ip", &["-n", &space, "link", "set", LINK, "up"])?;
        self.control_congestion(host)?;
        self.hand_over_much(host);
        self.shape(host, self.0.rate.as_deref(), self.0.delay.as_deref())
    }

    /// Has TCP behave as it does on most machines, whatever the one below prefers: how fairly links are shared depends on it.
    /// By the route: what a namespace may choose for itself is up to the machine.
    fn control_congestion(&self, host: HostNumber) -> Result<(), String> {
        let (space, own) = (self.0.namespace(host), host.address().to_string());
        let route = ["route", "replace", NETWORK, "dev", LINK, "proto", "kernel", "scope", "link", "src", &own];
        run("ip", &[&["-n", &space], &route[..], &["congctl", CONGESTION]].concat()).map(drop)
    }

    /// Where a machine does not let a namespace choose this, its hosts cost more.
    fn hand_over_much(&self, host: HostNumber) {
        let set = format!("echo {PACKETS_AT_ONCE} > /proc/sys/net/ipv4/tcp_min_tso_segs");
        let _ = output(self.command(host, "sh").args(["-c", &set]));
    }

    /// Takes them all away. What is gone already is no error.
    pub(crate) fn remove(&self) {
        for space in self.0.all().map(|host| self.0.namespace(host)).chain([self.0.switch()]) {
            let _ = run("ip", &["netns", "delete", &space]);
        }
    }

    /// Lets a host's link carry so much a second in each direction, or as much as it can, and packets be under way on it for
    /// so long, or no longer than it takes.
    pub(crate) fn shape(&self, host: HostNumber, rate: Option<&str>, delay: Option<&str>) -> Result<(), String> {
        let ends =
            [(self.0.namespace(host), LINK.to_owned(), WAIT_AT_HOST), (self.0.switch(), host.plug(), WAIT_AT_SWITCH)];
        for (space, device, wait) in ends {
            // There may be none to take away.
            let _ = run("tc", &["-n", &space, "qdisc", "delete", "dev", &device, "root"]);
            let add = ["-n", &space, "qdisc", "add", "dev", &device];
            if let Some(rate) = rate {
                let shape = ["root", "handle", "1:", "tbf", "rate", rate, "burst", BURST, "latency", wait];
                run("tc", &[&add, &shape[..]].concat())?;
            }
            if let Some(delay) = delay {
                let place: &[&str] = if rate.is_some() { &["parent", "1:1"] } else { &["root"] };
                run("tc", &[&add, place, &["netem", "delay", delay]].concat()).map_err(|error| {
                    format!(
                        "{error}\nA delay needs netem, which the kernel of this machine may lack (CONFIG_NET_SCH_NETEM)"
                    )
                })?;
            }
        }
        Ok(())
    }

    /// Pulls a host's plug, or puts it in again.
    pub(crate) fn connect(&self, host: HostNumber, connected: Link) -> Result<(), String> {
        let state = if connected == Link::Up { "up" } else { "down" };
        self.at_switch(&["link", "set", &host.plug(), state])
    }

    /// Loses everything that `from` sends to `to`, or lets it pass again.
    pub(crate) fn connect_way(&self, from: HostNumber, to: HostNumber, connected: Link) -> Result<(), String> {
        let verb = if connected == Link::Up { "delete" } else { "replace" };
        let (space, to) = (self.0.namespace(from), format!("{}/32", to.address()));
        let done = run("ip", &["-n", &space, "route", verb, "blackhole", &to]);
        // What passes already needs no help.
        if connected == Link::Up { Ok(()) } else { done.map(drop) }
    }

    /// A program that will run on a host.
    pub(crate) fn command(&self, host: HostNumber, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.0.namespace(host))).arg("--").arg(program);
        command
    }

    fn at_switch(&self, words: &[&str]) -> Result<(), String> {
        run("ip", &[&["-n", &self.0.switch()], words].concat()).map(drop)
    }
}

/// Whether something passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// It does.
    Up,
    /// It does not.
    Down,
}

/// Runs a program to its end; what it says on standard output.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    output_told("", command)
}

/// The same of a command that is told something on its standard input.
pub(crate) fn output_told(said: &str, command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let input = process::leave_bytes(said.as_bytes()).map_err(|error| format!("{name}: {error}"))?;
    let done = command.stdin(Stdio::from(input)).output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("{name} is needed and not installed (Debian: iproute2, util-linux)"),
        _ => format!("{name}: {error}"),
    })?;
    match done {
        Output { status, stdout, .. } if status.success() => Ok(String::from_utf8_lossy(&stdout).into_owned()),
        Output { stderr, .. } => Err(String::from_utf8_lossy(&stderr).trim().to_owned()),
    }
}

fn run(program: &str, words: &[&str]) -> Result<String, String> {
    output(Command::new(program).args(words)).map_err(|error| format!("{program} {}: {error}", words.join(" ")))
}

/// Whether this process may make namespaces.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// What befalls a daemon from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    /// It ends at once.
    Kill,
    /// It stands still wherever it is.
    Freeze,
    /// It goes on.
    Thaw,
}

/// Strikes the daemon that holds the lock file at `lock`. False when none does.
pub(crate) fn strike(lock: &Path, blow: Blow) -> Result<bool, String> {
    if !super::process::DirectoryLock::is_taken(lock) {
        return Ok(false);
    }
    let text = std::fs::read_to_string(lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    let daemon = text.trim().parse().ok().and_then(Pid::from_raw);
    let daemon = daemon.ok_or_else(|| format!("{} names no process", lock.display()))?;
    let signal = match blow {
        Blow::Kill => Signal::KILL,
        Blow::Freeze => Signal::STOP,
        Blow::Thaw => Signal::CONT,
    };
    rustix::process::kill_process(daemon, signal).map_err(|error| error.to_string())?;
    if blow == Blow::Kill {
        super::process::DirectoryLock::wait(lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    }
    Ok(true)
}
