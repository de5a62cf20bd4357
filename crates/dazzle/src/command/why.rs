//! `dazzle why`: where a file's bytes are.

use std::path::PathBuf;

use clap::Args;

use super::{Failure, Outcome, print_json};
use crate::edge::control::Question;
use crate::edge::mount;

/// Tells everything about one file: inode, slot, extents, log addresses, targets.
#[derive(Debug, Args)]
pub(super) struct Why {
    /// The file, by its path in the mounted file system.
    path: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Why {
    pub(super) fn run(self) -> Outcome {
        let path = std::path::absolute(&self.path)?;
        let (dir, inside) = mount::owner(&path)
            .ok_or_else(|| Failure::from(format!("{} lies in no mounted Dazzle file system", path.display())))?;
        let question = Question::Why { path: inside.to_string_lossy().into_owned() };
        let answer = super::ask(&dir, &question)?;
        if self.json {
            print_json(&answer);
            return Ok(());
        }
        let text = |field: &str| match &answer[field] {
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        say!("{}", path.display());
        say!("  inode     {} in slot {}, managed by node {}", text("inode"), text("slot"), text("node"));
        say!("  kind      {}, mode {}, {} names", text("kind"), text("mode"), text("links"));
        say!("  size      {} bytes, {} stored", text("size"), text("stored"));
        say!("  opened    by {} nodes; {} locks", text("open_nodes"), text("locks"));
        let slots: Vec<_> = answer["name_slots"].as_array().into_iter().flatten().map(ToString::to_string).collect();
        if !slots.is_empty() {
            say!("  names     split over slots {}", slots.join(", "));
        }
        if answer["inline"] == true {
            say!("  content   in the inode itself");
        }
        for extent in answer["extents"].as_array().into_iter().flatten() {
            let part = |field: &str| extent[field].to_string();
            say!(
                "  bytes {:>12} +{:<9} log {} stripe {} offset {}, on {}",
                part("file_offset"),
                part("length"),
                part("log"),
                part("stripe"),
                part("offset"),
                extent["targets"].as_str().unwrap_or("unknown targets"),
            );
        }
        Ok(())
    }
}
