//! The house in order: lengths, edges between crates, forbidden names, deciding files that do not await.
//!
//! After tigerbeetle's `src/tidy.zig`. Every rule stands in STYLE's words at its test. A rule that hurts is changed here,
//! in the open, not worked around.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const PRODUCT_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;
const MAP_LINES_MAX: usize = 100;
const LINE_WIDTH_MAX: usize = 128;

/// What each crate may see. A part sees what lies below it and no neighbour.
const EDGES: &[(&str, &[&str])] = &[
    ("protocol", &[]),
    ("host", &[]),
    ("storage", &["protocol", "host"]),
    ("log", &["protocol", "host"]),
    ("registry", &["protocol", "host"]),
    ("manager", &["protocol", "host", "log"]),
    ("client", &["protocol", "host", "log"]),
    ("cleaner", &["protocol", "host", "log"]),
    ("roles", &["protocol", "host", "storage", "log", "registry", "manager", "client", "cleaner"]),
    ("fuse", &["protocol", "host", "client"]),
    ("dazzle", &["protocol", "host", "storage", "log", "registry", "manager", "client", "cleaner", "roles", "fuse"]),
    ("testbed", &["protocol", "host", "storage", "log", "registry", "manager", "client", "cleaner", "roles", "fuse"]),
];

/// Names that say nothing. A thing has a noun or no home yet.
const NAMELESS: &[&str] = &["util", "utils", "common", "helper", "helpers", "misc", "types", "base"];

/// Folders and files that decide: they take time and chance as arguments and never await.
const DECIDING: &[&str] = &[
    "protocol/src",
    "fuse/src",
    "registry/src/balance.rs",
    "registry/src/change.rs",
    "registry/src/evidence.rs",
    "registry/src/formation.rs",
    "registry/src/leases.rs",
    "registry/src/nodes.rs",
    "registry/src/rebuilding.rs",
    "registry/src/record.rs",
    "registry/src/slots.rs",
    "registry/src/voters.rs",
    "manager/src/audit.rs",
    "manager/src/audit/",
    "manager/src/moments.rs",
    "manager/src/ops",
    "manager/src/intention.rs",
    "manager/src/flight.rs",
    "manager/src/snapshot.rs",
    "manager/src/sight.rs",
    "manager/src/slot.rs",
    "manager/src/page.rs",
    "manager/src/tokens.rs",
    "manager/src/needs.rs",
    "client/src/tokens.rs",
    "client/src/file.rs",
    "log/src/stripe.rs",
    "log/src/absences.rs",
    "log/src/exposure.rs",
    "log/src/listing.rs",
    "log/src/listing/",
    "log/src/rebuilding.rs",
    "log/src/regroup.rs",
    "cleaner/src/exposed.rs",
    "manager/src/exposed.rs",
    "dazzle/src/arrival.rs",
    "dazzle/src/pace.rs",
    "dazzle/src/plan.rs",
    "dazzle/src/redundancy.rs",
    "dazzle/src/supply.rs",
    "dazzle/src/edge/network/backoff.rs",
    "dazzle/src/edge/network/frame.rs",
    "dazzle/src/edge/network/hello.rs",
    "dazzle/src/edge/network/pulse.rs",
    "dazzle/src/edge/network/wire.rs",
    "dazzle/src/edge/trust/name.rs",
    "dazzle/src/edge/trust/token.rs",
];

/// In `fuse`, the one folder or file that carries calls to the client.
const DECIDING_EXCEPT: &[&str] = &["fuse/src/dispatch", "fuse/src/face"];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in crates/").to_owned()
}

fn source_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> = EDGES.iter().map(|(name, _)| crates().join(name).join("src")).collect();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    assert!(files.len() > 50, "the sources are where this test looks for them");
    files.sort();
    files
}

fn product_lines(text: &str) -> Vec<&str> {
    text.lines().take_while(|line| *line != "#[cfg(test)]").collect()
}

fn name(path: &Path) -> String {
    path.strip_prefix(crates()).unwrap_or(path).display().to_string()
}

fn complain(rule: &str, broken: &[String]) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

#[test]
fn files_stay_readable() {
    let mut broken = Vec::new();
    for path in source_files() {
        let text = fs::read_to_string(&path).unwrap();
        let count = product_lines(&text).len();
        if count > PRODUCT_LINES_MAX {
            broken.push(format!("{}: {count} product lines", name(&path)));
        }
        if path.ends_with("src/lib.rs") && count >= MAP_LINES_MAX {
            broken.push(format!("{}: {count} lines for a map", name(&path)));
        }
        for (number, line) in text.lines().enumerate() {
            if line.chars().count() > LINE_WIDTH_MAX {
                broken.push(format!("{}:{}: wider than {LINE_WIDTH_MAX}", name(&path), number + 1));
            }
        }
    }
    complain(
        "a file has at most 800 product lines, a lib.rs is a map of under 100, a line has at most 128 columns",
        &broken,
    );
}

#[test]
fn functions_fit_a_screen() {
    let mut broken = Vec::new();
    for path in source_files() {
        let text = fs::read_to_string(&path).unwrap();
        let mut open: Option<(usize, usize, String)> = None;
        for (number, line) in product_lines(&text).into_iter().enumerate() {
            let indent = line.len() - line.trim_start().len();
            if open.is_none() && is_function(line) && !line.trim_end().ends_with(['}', ';']) {
                open = Some((number, indent, line.trim().to_owned()));
            } else if let Some((start, depth, what)) = &open {
                if indent == *depth && line.trim_start().starts_with(['}']) {
                    if number - start > FUNCTION_LINES_MAX {
                        broken.push(format!("{}:{}: {} lines: {what}", name(&path), start + 1, number - start));
                    }
                    open = None;
                } else if indent == *depth && line.trim_end().ends_with(';') {
                    open = None;
                }
            }
        }
    }
    complain("a function has at most 70 lines", &broken);
}

fn is_function(line: &str) -> bool {
    let words = line.trim_start().split(['(', '<']).next().unwrap_or("");
    words.split(' ').any(|word| word == "fn") && !line.trim_start().starts_with("//")
}

#[test]
fn crates_see_what_lies_below_them() {
    let mut broken = Vec::new();
    for (name, allowed) in EDGES {
        let Ok(manifest) = fs::read_to_string(crates().join(name).join("Cargo.toml")) else { continue };
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or("").split("\n[").next().unwrap_or("");
        for line in dependencies.lines() {
            let dependency = line.split(['.', ' ', '=']).next().unwrap_or("");
            let ours = EDGES.iter().any(|(other, _)| *other == dependency);
            if ours && !allowed.contains(&dependency) {
                broken.push(format!("{name} sees {dependency}"));
            }
        }
    }
    complain("a part sees what lies below it and no neighbour", &broken);
}

#[test]
fn things_have_names() {
    let broken: Vec<_> = source_files()
        .iter()
        .filter(|path| path.file_stem().and_then(|stem| stem.to_str()).is_some_and(|stem| NAMELESS.contains(&stem)))
        .map(|path| name(path))
        .collect();
    complain("no file is called util, common, helpers, misc, types or base", &broken);
}

#[test]
fn deciding_files_do_not_await() {
    let mut broken = Vec::new();
    for path in source_files() {
        let relative = name(&path);
        let decides = DECIDING.iter().any(|place| relative.starts_with(place));
        if !decides || DECIDING_EXCEPT.iter().any(|place| relative.starts_with(place)) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in product_lines(&text).into_iter().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            if code.contains(".await") || code.contains("async fn") || code.contains("Host,") {
                broken.push(format!("{relative}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    complain("a file awaits or decides, never both", &broken);
}

#[test]
fn nothing_is_left_unfinished() {
    // Written apart, so that this file does not find itself.
    let marks = ["todo", "unimplemented"].map(|mark| format!("{mark}!("));
    let words = ["FIX", "XX", "HA"].iter().zip(["ME", "X", "CK"]).map(|(a, b)| format!("{a}{b}"));
    let marks: Vec<String> = marks.into_iter().chain(words).chain(["#[ign".to_owned() + "ore"]).collect();
    let mut broken = Vec::new();
    for path in source_files() {
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            if marks.iter().any(|mark| line.contains(mark.as_str())) {
                broken.push(format!("{}:{}: {}", name(&path), number + 1, line.trim()));
            }
        }
    }
    complain("nothing is half done or switched off", &broken);
}

#[test]
fn every_decision_has_its_own_number() {
    let decisions = crates().parent().unwrap().join("docs/decisions");
    let mut numbers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in fs::read_dir(decisions).unwrap().filter_map(Result::ok) {
        let file = entry.file_name().to_string_lossy().into_owned();
        numbers.entry(file.chars().take(4).collect()).or_default().push(file);
    }
    let broken: Vec<_> = numbers.values().filter(|files| files.len() > 1).map(|files| files.join(", ")).collect();
    complain("decision records are numbered once", &broken);
}
