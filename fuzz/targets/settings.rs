//! What people and programs type: settings, sizes, arguments, questions to a daemon; and the kernel's table of mounts.
//!
//! Bytes: which of these, then its text. Held true:
//! 1. Everything is read or refused with words.
//! 2. Settings that were accepted are written as text that is accepted and means the same.
//! 3. A size that was accepted is a size of less than 10¹⁸ bytes, a plain number of bytes exactly that number.
//! 4. Arguments of any bytes are taken or refused; a question that was understood is written as one that means the same.
#![no_main]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use clap::Parser;
use dazzle::config::{Config, Size, TargetConfig};
use dazzle::{Arguments, Line, Mounted, Question};
use dazzle_fuzz::memory::bounded;
use libfuzzer_sys::fuzz_target;

/// A parsed TOML document is larger than its text, most of all where little of it makes sense; it grows with the text.
const FACTOR: usize = 1024;

/// Holds one text to what is said above.
fn run(input: &[u8]) {
    let Some((&kind, bytes)) = input.split_first() else { return };
    let text = String::from_utf8_lossy(bytes);
    match kind {
        0 => settings(&text),
        1 => size(&text),
        2 => arguments(bytes),
        3 => question(&text),
        4 => mounts(bytes),
        5 => made(bytes),
        _ => {}
    }
}

fn settings(text: &str) {
    let path = Path::new("dazzle.toml");
    match bounded(text.len(), FACTOR, || Config::from_text(path, text)) {
        Ok(config) => written(&config),
        Err(error) => assert!(error.to_string().starts_with("dazzle.toml")),
    }
}

/// Settings that make sense, as their file has them.
fn written(config: &Config) {
    let text = config.to_text();
    let again = Config::from_text(Path::new("dazzle.toml"), &text);
    assert_eq!(again.as_ref().ok(), Some(config), "{text}");
}

fn size(text: &str) {
    let Ok(size) = text.parse::<Size>() else { return };
    assert!(size.0 < 1_000_000_000_000_000_000);
    if let Ok(exact) = text.trim().parse::<u64>() {
        assert_eq!(size.0, exact, "a plain number means itself");
    }
    let shown: Size = size.to_string().parse().expect("what is shown is a size");
    assert!(shown.0.abs_diff(size.0) <= size.0 / 16, "{size} is shown for {} bytes", size.0);
}

fn arguments(bytes: &[u8]) {
    let words = bytes.split(|&byte| byte == b'\n').map(|word| OsString::from_vec(word.to_vec()));
    let words: Vec<OsString> = std::iter::once("dazzle".into()).chain(words).collect();
    if let Err(error) = Arguments::try_parse_from(words) {
        let _ = error.to_string();
    }
}

fn question(text: &str) {
    if let Ok(question) = serde_json::from_str::<Question>(text) {
        let once = serde_json::to_string(&question).expect("a question is text");
        let again: Question = serde_json::from_str(&once).expect("what was written is understood");
        assert_eq!(serde_json::to_string(&again).expect("a question is text"), once);
    }
    if let Ok(line) = serde_json::from_str::<Line>(text) {
        let once = serde_json::to_string(&line).expect("an answer is text");
        let again: Line = serde_json::from_str(&once).expect("what was written is understood");
        assert_eq!(serde_json::to_string(&again).expect("an answer is text"), once);
    }
}

/// The kernel writes one line for every mount; a path in it may be any bytes but zero, with spaces and the like escaped.
fn mounts(bytes: &[u8]) {
    let lines = bytes.split(|&byte| byte == b'\n').count();
    assert!(bounded(bytes.len(), FACTOR, || Mounted::table(bytes)).len() <= lines);
}

/// What `up` makes of its arguments, paths of any bytes among them.
fn made(bytes: &[u8]) {
    let mut words = bytes.split(|&byte| byte == b'\n').map(|word| OsString::from_vec(word.to_vec()));
    let limit = words.next().and_then(|word| word.to_str()?.parse::<Size>().ok());
    let mount = words.next().filter(|word| !word.is_empty()).map(Into::into);
    let targets: Vec<_> = words.take(5).map(|path| TargetConfig { path: path.into(), limit, id: None }).collect();
    let config = Config::new(u8::from(targets.len() > 1), mount, targets);
    if config.verify().is_ok() {
        written(&config);
    }
}

/// A text of each kind.
fn seeds() -> Vec<Vec<u8>> {
    let config = "parity = 1\nmount = \"/mnt/dazzle\"\ncache = \"256 MiB\"\ndirty = \"128 MiB\"\nmetadata = 536870912\n\
                  [[target]]\npath = \"target-0\"\nlimit = \"4 GiB\"\n[[target]]\npath = \"/srv/disk\"\n";
    let table = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n\
                 52 24 0:51 / /mnt/a\\040b rw,nosuid - fuse.dazzle /srv/d\\134x rw,user_id=0\n";
    let up = "up\n/srv/dazzle\n--mount\n/mnt/dazzle\n--targets\n5\n--parity\n1\n--limit\n1.5 GiB";
    let texts: [(u8, &str); 14] = [
        (0, config),
        (1, "64 MiB"),
        (1, "1.5G"),
        (1, "4096"),
        (2, up),
        (2, "status\n/srv/dazzle\n--json"),
        (2, "check\n/srv/dazzle\n--thorough"),
        (3, "{\"ask\":\"status\"}"),
        (3, "{\"ask\":\"why\",\"path\":\"a/b\"}"),
        (3, "{\"ask\":\"stop\",\"force\":true}"),
        (3, "{\"progress\":{\"what\":\"fragments\",\"done\":1,\"total\":2}}"),
        (3, "{\"failed\":\"no\"}"),
        (4, table),
        (5, "64 MiB\n/mnt/dazzle\ntarget-0\ntarget-1"),
    ];
    texts.into_iter().map(|(kind, text)| [&[kind], text.as_bytes()].concat()).collect()
}

fuzz_target!(init: dazzle_fuzz::seeds(seeds), |input: &[u8]| run(input));
