//! `dazzle settings`: what holds on all machines alike.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use protocol::settings::{Setting, Settings as Set};
use serde_json::Value;

use super::{Outcome, print_json};
use crate::config::Size;
use crate::edge::control::Question;

/// What holds on all machines: shows it, and changes it at once, without restarting anything.
#[derive(Debug, Args)]
#[command(after_help = "Without NAME=VALUE it shows what holds. A change takes effect at once; nothing is restarted.

rebuild          so many bytes a second each machine reads to bring lost redundancy back:
                 64 MiB unless given, at least 1 MiB
rebuild_minutes  a target that is away for so long counts as lost, and what lay on it is made again
                 on others: 10 unless given, at most 43200 (thirty days)
scrub_days       in so many days everything stored is read once, and repaired where bits have
                 rotted: 7 unless given, at most 3650; 0: never

For example:     dazzle settings /srv/dazzle rebuild=200MiB rebuild_minutes=30
What is not set, or is set back with NAME=default, each machine's own dazzle.toml says.")]
pub(super) struct Settings {
    /// The directory of the file system, on any machine of the cluster.
    dir: PathBuf,
    /// What is to hold on all machines from now on: all of it is set, or nothing. NAME=default: what each machine's own
    /// dazzle.toml says.
    #[arg(value_name = "NAME=VALUE")]
    changes: Vec<Change>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// One change, as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change(Setting);

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Change, String> {
        let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE, for example rebuild=200MiB")?;
        let (name, value) = (name.trim(), value.trim());
        let is_set = value != "default";
        let number = || match is_set {
            true => {
                value.parse::<u32>().map(Some).map_err(|_| format!("{name} is a whole number, and \"{value}\" is none"))
            }
            false => Ok(None),
        };
        let change = match name {
            "rebuild" if is_set => Setting::Rebuild(Some(value.parse::<Size>()?.0)),
            "rebuild" => Setting::Rebuild(None),
            "rebuild_minutes" => Setting::RebuildMinutes(number()?),
            "scrub_days" => Setting::ScrubDays(number()?),
            _ => return Err(format!("there is no {name}: it is rebuild, rebuild_minutes or scrub_days")),
        };
        Set::default().with(change).verify().map_err(|error| error.to_string())?;
        Ok(Change(change))
    }
}

impl Settings {
    pub(super) fn run(self) -> Outcome {
        let changes = self.changes.into_iter().map(|Change(change)| change).collect();
        let answer = super::ask(&self.dir, &Question::Settings { changes })?;
        if self.json {
            print_json(&answer);
            return Ok(());
        }
        let rate = |value: u64| format!("{} a second", Size(value));
        line(&answer, "rebuild", rate);
        line(&answer, "rebuild_minutes", |value| value.to_string());
        line(&answer, "scrub_days", |value| value.to_string());
        Ok(())
    }
}

fn line(answer: &Value, name: &str, show: impl Fn(u64) -> String) {
    let told = &answer[name];
    let value = told["value"].as_u64().map_or_else(|| "?".into(), show);
    let whence = if told["for_all"] == true { "on all machines" } else { "as dazzle.toml on this machine says" };
    say!("{name:<16} {value:<18} {whence}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_as_people_write_them() {
        let read = |text: &str| text.parse::<Change>().map(|Change(change)| change);
        assert_eq!(read("rebuild=200MiB"), Ok(Setting::Rebuild(Some(200 << 20))));
        assert_eq!(read("rebuild = 1 GiB"), Ok(Setting::Rebuild(Some(1 << 30))));
        assert_eq!(read("rebuild=default"), Ok(Setting::Rebuild(None)));
        assert_eq!(read("rebuild_minutes=0"), Ok(Setting::RebuildMinutes(Some(0))));
        assert_eq!(read("scrub_days=default"), Ok(Setting::ScrubDays(None)));
        for wrong in
            ["rebuild", "rebuild=", "rebuild=fast", "rebuild=1KiB", "rebuild_minutes=-1", "scrub_days=4000", "parity=2"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
