//! `dazzle status`: how it is.

use std::path::PathBuf;

use clap::Args;
use comfy_table::{Table, presets};

use super::{Outcome, print_json};
use crate::config::Size;
use crate::edge::control::Question;

/// Tells how the file system of DIR is: targets, slots, logs, memory, space, rates.
#[derive(Debug, Args)]
pub(super) struct Status {
    /// The directory of the file system.
    dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(super) fn run(self) -> Outcome {
        let answer = super::ask(&self.dir, &Question::Status)?;
        if self.json {
            print_json(&answer);
            return Ok(());
        }
        let size = |value: &serde_json::Value| Size(value.as_u64().unwrap_or(0)).to_string();
        say!(
            "{} — {}",
            answer["mount"].as_str().unwrap_or("not mounted"),
            answer["health"].as_str().unwrap_or("unknown")
        );
        say!(
            "space      {} of {} used, {} free after redundancy; {} inodes",
            size(&answer["space"]["used"]),
            size(&answer["space"]["total"]),
            size(&answer["space"]["free"]),
            answer["inodes"]
        );
        if let Some(why) = answer["registry_ails"].as_str() {
            say!("registry   {why}. Meanwhile this machine asks the others' registries");
        }
        redundancy(&answer["redundancy"]);
        let memory = |field: &str| size(&answer["memory"][field]);
        say!(
            "memory     {}: {} of {} metadata, {} of {} read cache, {} of {} not yet stored",
            memory("process"),
            memory("metadata"),
            memory("metadata_max"),
            memory("cached"),
            memory("cached_max"),
            memory("dirty"),
            memory("dirty_max"),
        );
        say!("targets    read {}/s, write {}/s", size(&answer["rates"]["read"]), size(&answer["rates"]["written"]));
        let scrub = &answer["scrub"];
        if scrub.is_object() {
            say!(
                "scrub      {} of {} stripes read in this pass of {} days; {} fragments mended since the start, {} lost",
                scrub["stripes_done"],
                scrub["stripes"],
                scrub["days"],
                scrub["mended"],
                scrub["lost"]
            );
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header([
            "target",
            "state",
            "stored",
            "free",
            "fragments",
            "read",
            "written",
        ]);
        for target in answer["targets"].as_array().into_iter().flatten() {
            table.add_row([
                target["name"].as_str().unwrap_or("?").to_owned(),
                state_of(target),
                size(&target["stored"]),
                size(&target["free"]),
                target["fragments"].to_string(),
                size(&target["read"]),
                size(&target["written"]),
            ]);
        }
        say!("{table}");
        for target in answer["targets"].as_array().into_iter().flatten() {
            if let Some(why) = target["why"].as_str() {
                say!("{}: {why}", target["name"].as_str().unwrap_or("?"));
            }
        }
        for node in answer["nodes"].as_array().into_iter().flatten().filter(|_| answer["nodes"][1].is_object()) {
            let does = match (node["runs"] == true, node["draining"] == true) {
                (true, false) => "runs",
                (true, true) => "runs, and is being drained",
                (false, false) => "is gone",
                (false, true) => "is gone, and is being drained",
            };
            let votes = if node["votes"] == true { ", votes" } else { "" };
            let copies = node["copies"].as_array().map_or(0, Vec::len) as u64;
            let keeps = match node["targets"].as_u64() {
                Some(targets) if 0 < copies && copies < targets => {
                    format!(", keeps the registry on {copies} of {targets} targets")
                }
                _ => String::new(),
            };
            say!("node {:<5} {} {does}{votes}{keeps}", node["id"].to_string(), node["name"].as_str().unwrap_or("?"));
        }
        for slots in answer["slots"].as_array().into_iter().flatten() {
            say!("slots {}–{} on node {}", slots["first"], slots["last"], slots["node"]);
        }
        for slots in answer["slots_moving"].as_array().into_iter().flatten() {
            say!(
                "slots {}–{} are on their way from node {} to node {}",
                slots["first"],
                slots["last"],
                slots["from"],
                slots["to"]
            );
        }
        for group in answer["groups"].as_array().into_iter().flatten() {
            say!(
                "group {:<4} {}+{} {}",
                group["id"].to_string(),
                group["data"],
                group["parity"],
                if group["current"] == true { "current" } else { "obsolete" }
            );
        }
        for log in answer["logs"].as_array().into_iter().flatten() {
            let text = |field: &str| log[field].as_str().unwrap_or("?").to_lowercase();
            say!("log {:<6} {:<8} {}", log["id"].to_string(), text("writer"), text("state"));
        }
        Ok(())
    }
}

fn state_of(target: &serde_json::Value) -> String {
    let state = target["state"].as_str().unwrap_or("?");
    match target["left"].as_u64() {
        None => state.to_owned(),
        Some(0) if target["empty"] == true => format!("{state}, drained"),
        Some(left) => format!("{state}, drains: {}", Size(left)),
    }
}

/// What may be lost of what is stored, and what is done about it.
fn redundancy(answer: &serde_json::Value) {
    let size = |value: &serde_json::Value| Size(value.as_u64().unwrap_or(0)).to_string();
    let exposed = answer["exposed"].as_array().map_or(&[][..], Vec::as_slice);
    let bytes = exposed.iter().filter_map(|some| some["bytes"].as_u64()).sum();
    say!(
        "redundancy {} stored as safely as can be, {} less; {} laid anew by this machine since it started",
        size(&answer["full"]),
        Size(bytes),
        size(&answer["laid_anew"])
    );
    let rebuild = &answer["rebuild"];
    if rebuild["stripes"].as_u64().unwrap_or(0) > 0 {
        say!(
            "rebuild    {} of {} stripes looked at; {} fragments made again, {} targets whole again since the start",
            rebuild["stripes_done"],
            rebuild["stripes"],
            rebuild["mended"],
            rebuild["targets_whole"]
        );
    }
}
