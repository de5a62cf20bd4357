//! `check` and `repair`, as commands ask for them.

use roles::Roles;
use roles::audit::{self, Checked, Repaired};
use serde_json::{Value, json};

use crate::edge::control::{Line, Progress};

/// Checks everything. With `thorough`, every byte of every fragment is read.
pub(crate) async fn check(roles: &Roles, thorough: bool, progress: &Progress) -> Result<Value, String> {
    let Checked { inodes, extents, stripes, problems } = audit::check(roles, thorough, &telling(progress)).await?;
    Ok(json!({"inodes": inodes, "extents": extents, "stripes": stripes, "problems": problems}))
}

/// Makes every missing or damaged fragment again.
pub(crate) async fn repair(roles: &Roles, progress: &Progress) -> Result<Value, String> {
    let Repaired { stripes, repaired, failed, lacking, missing, behind } =
        audit::repair(roles, &telling(progress)).await?;
    Ok(json!({
        "stripes": stripes, "repaired": repaired, "failed": failed, "lacking": lacking, "missing": missing, "behind": behind,
    }))
}

fn telling(progress: &Progress) -> impl Fn(&str, u64, u64) + Send + Sync {
    |what, done, total| {
        // Whoever asked may have hung up; the work goes on.
        let _ = progress.send(Line::Progress { what: what.to_owned(), done, total });
    }
}
