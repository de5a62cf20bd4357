//! Answers to what commands ask the running daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use host::BoxFuture;
use log::exposure::{self, Tally, is_unreadable};
use log::leaving::Left;
use log::stripes::StripeState;
use log::{ScrubStatus, Walk};
use protocol::address::LogAddress;
use protocol::fragment::Part;
use protocol::id::{InodeId, TargetId};
use protocol::maps::{LogState, Maps, NodeState, TargetEntry, TargetState};
use protocol::storage::{StorageReply, StorageRequest, TargetStat};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::adding;
use crate::drain;
use crate::edge::control::{Oracle, Progress, Question};
use crate::edge::fuse_device::Mount;
use crate::edge::mount::Users;
use crate::edge::process;
use crate::node::Parts;
use crate::promotion;
use crate::redundancy;
use crate::settings;

/// What there is to say where the lease does not hold: maps and all that follows from them may be old.
const CUT_OFF: &str = "waits: half of the machines that vote, or more, do not answer this one. Until they do, calls fail after \
                       half a minute each; what was fsynced is safe. If they are lost for good, `dazzle registry promote` goes \
                       on without them. What follows is as it was known last";

/// Before a stripe is said to be lost it is looked at again so often, with that pause before.
const LOOKS_AGAIN: usize = 3;
const LOOK_PAUSE: Duration = Duration::from_millis(300);

/// Answers for one node.
pub(crate) struct NodeOracle {
    pub(crate) parts: Arc<Parts>,
    pub(crate) mount: Option<Arc<Mount>>,
    pub(crate) stop: Arc<Notify>,
}

impl Oracle for NodeOracle {
    fn answer(&self, question: Question, progress: Progress) -> BoxFuture<'static, Result<Value, String>> {
        let (parts, mount) = (self.parts.clone(), self.mount.clone());
        if stops(&question) {
            parts.count_askers(true);
        }
        Box::pin(async move {
            match question {
                Question::Status => status(&parts).await,
                Question::Why { path } => why(&parts, Path::new(&path)).await,
                Question::Check { thorough } => crate::audit::check(&parts.roles, thorough, &progress).await,
                Question::Repair => crate::audit::repair(&parts.roles, &progress).await,
                Question::TargetAdd { path, limit, plan: true } => adding::plan_to_add(&parts, &path, limit).await,
                Question::TargetAdd { path, limit, plan: false } => adding::add(&parts, &path, limit, &progress).await,
                Question::TargetReplace { target, path, plan: true, .. } => {
                    adding::plan_to_replace(&parts, &target, path.as_deref()).await
                }
                Question::TargetReplace { target, path, force, plan: false } => {
                    adding::replace(&parts, &target, (path.as_deref(), force), &progress).await
                }
                Question::DrainPlan { whom } => drain::plan(&parts, &whom).await,
                Question::Drain { whom, force, wait } => drain::drain(&parts, &whom, (force, wait), &progress).await,
                Question::Keep { whom } => drain::keep(&parts, &whom).await,
                Question::Remove { whom, force, plan: true } => drain::plan_to_remove(&parts, &whom, force).await,
                Question::Remove { whom, force, plan: false } => drain::remove(&parts, &whom, force, &progress).await,
                Question::Promote { off, plan } => {
                    let planned = promotion::plan(&parts, &off).await?;
                    if !plan {
                        parts.yield_place();
                    }
                    Ok(planned)
                }
                Question::Settings { changes } => settings::settings(&parts, changes).await,
                Question::Token => parts.invite(),
                Question::Stop { force } => {
                    let users = if force { Users::Dismiss } else { Users::Respect };
                    parts.stop(mount, users).await.map(|()| Value::Null)
                }
                Question::Restart => parts.restart(mount).await,
                Question::Life => Ok(json!({"session": parts.roles.session(), "inherited": parts.inherited})),
                Question::StopAll { force } => parts.stop_all(mount, force).await,
            }
        })
    }

    fn answered(&self, question: &Question) {
        if matches!(question, Question::Promote { .. }) {
            self.parts.has_answered();
        }
        if !stops(question) {
            return;
        }
        self.parts.count_askers(false);
        // A mount in use was left as it is.
        if self.parts.is_stopped() {
            self.stop.notify_one();
        }
    }
}

/// Whether the daemon ends when it has answered.
fn stops(question: &Question) -> bool {
    matches!(question, Question::Stop { .. } | Question::StopAll { .. } | Question::Restart)
}

/// What `add` makes of all stripes, but for those that are just being deleted and of which too little is left to read them.
pub(crate) async fn of_all_stripes<S: Default>(
    parts: &Parts,
    maps: &Maps,
    mut add: impl FnMut(&mut S, &StripeState),
) -> S {
    let cluster = &parts.roles.cluster;
    let (mut lost_before, mut looks_again): (Option<BTreeSet<_>>, _) = (None, 0);
    loop {
        let (newest, mut sums, mut lost) = (cluster.maps(), S::default(), BTreeSet::new());
        let note = |state: StripeState| {
            let stripe = (state.log, state.number);
            if is_unreadable(maps, &state) {
                // What could be read before, or was not there, is going.
                if lost_before.as_ref().is_some_and(|before| !before.contains(&stripe)) {
                    return;
                }
                lost.insert(stripe);
            }
            add(&mut sums, &state);
        };
        Walk::over_all(cluster, &newest).to_end(note).await;
        if lost.is_empty() || looks_again == LOOKS_AGAIN {
            return sums;
        }
        (lost_before, looks_again) = (Some(lost), looks_again + 1);
        cluster.host().sleep(LOOK_PAUSE).await;
    }
}

/// What is told of all stripes.
#[derive(Default)]
struct Sums {
    by_safety: exposure::Sums,
    /// What lies on each target that is to be emptied.
    left: BTreeMap<TargetId, Left>,
}

impl Sums {
    fn add(&mut self, maps: &Maps, state: &StripeState) {
        self.by_safety.add(maps, state);
        for (target, _) in maps.present().filter(|(_, entry)| entry.drains()) {
            *self.left.entry(target).or_default() += Left::on(maps, state, &[target].into());
        }
    }
}

async fn status(parts: &Parts) -> Result<Value, String> {
    let maps = parts.roles.cluster.refresh().await.map_err(|error| error.to_string())?;
    let space = parts.roles.client.statfs().await.map_err(|error| error.to_string())?;
    // As long as it takes to list all that is stored: nothing else tells the truth about it.
    let sums = of_all_stripes(parts, &maps, |sums: &mut Sums, state| sums.add(&maps, state)).await;
    let tally = Tally::of(&maps, sums.by_safety);
    let mut targets = Vec::with_capacity(maps.targets.len());
    for (id, entry) in maps.present() {
        let stat = match parts.roles.cluster.ask(id, StorageRequest::Stat).await {
            Ok(StorageReply::Stat(stat)) => stat,
            _ => TargetStat::default(),
        };
        targets.push(json!({
            "id": id.0, "name": maps.called(id), "state": target_state(entry.state),
            "stored": stat.bytes_total.saturating_sub(stat.bytes_free), "free": stat.bytes_free,
            "draining": entry.drains(), "empty": entry.empty,
            "left": entry.drains().then(|| sums.left.get(&id).map_or(0, |left| left.bytes)),
            "fragments": stat.fragments, "read": stat.bytes_read, "written": stat.bytes_written,
            "why": why_absent(parts, id, entry),
        }));
    }
    let groups: Vec<_> = maps
        .groups
        .iter()
        .map(|(id, group)| {
            let members: Vec<_> = group.targets.iter().map(|target| target.0).collect();
            json!({"id": id.0, "data": group.geometry.data, "parity": group.geometry.parity, "current": group.current,
                   "targets": members})
        })
        .collect();
    let logs: Vec<_> = maps
        .logs
        .iter()
        .map(|(id, log)| json!({"id": id.0, "writer": format!("{:?}", log.writer), "state": log_state(log.state)}))
        .collect();
    let rates = parts.meter.rates();
    let voters = parts.roles.registry.as_ref().map(|registry| registry.voters().into_iter().collect());
    let (cleaner, rebuild) = (parts.roles.cleaner.status(), parts.roles.rebuilder.status());
    let redundancy = redundancy::in_json((&maps, &tally), voters.as_ref(), &cleaner, &rebuild);
    let scrubbed = parts.roles.scrubber.status();
    let is_trusted = parts.roles.cluster.is_trusted();
    let health = match is_trusted {
        true => redundancy::health(&maps, &tally, scrubbed.fragments_lost, voters.as_ref()),
        false => CUT_OFF.to_owned(),
    };
    Ok(json!({
        "mount": parts.config.mount, "health": health, "lease": is_trusted, "parity": maps.parity,
        "registry_ails": parts.roles.registry.as_ref().and_then(|registry| registry.ails()),
        "inodes": space.inodes_total - space.inodes_free,
        "space": {"total": space.bytes_total, "free": space.bytes_free, "used": space.bytes_total - space.bytes_free},
        "redundancy": redundancy, "memory": memory(parts), "slots": slots(&maps), "slots_moving": slots_moving(&maps),
        "rates": {"read": rates.bytes_read, "written": rates.bytes_written},
        "nodes": nodes(parts, &maps), "targets": targets, "groups": groups, "logs": logs, "scrub": scrub(parts, &scrubbed),
    }))
}

/// What the daemon holds in memory, and how much it may.
fn memory(parts: &Parts) -> Value {
    let (client, config) = (parts.roles.client.memory(), &parts.config);
    json!({
        "process": process::memory_bytes(), "cached": client.bytes_cached, "cached_max": config.cache.0 - config.dirty.0,
        "dirty": client.bytes_dirty, "dirty_max": config.dirty.0, "inodes": client.inodes,
        "metadata": parts.roles.manager.bytes_resident(), "metadata_max": config.metadata.0,
        "tokens": parts.roles.manager.tokens_held(),
    })
}

/// How far the reading of everything stored is; null when the settings turn it off.
fn scrub(parts: &Parts, status: &ScrubStatus) -> Value {
    let days = parts.roles.cluster.maps().settings.scrub_days.unwrap_or(parts.config.scrub_days);
    if days == 0 {
        return Value::Null;
    }
    json!({
        "days": days, "passes": status.passes, "stripes": status.stripes,
        "stripes_done": status.stripes_done, "mended": status.fragments_mended, "lost": status.fragments_lost,
    })
}

/// Which slots each node manages.
fn slots(maps: &Maps) -> Value {
    let firsts = maps.slots.keys().copied();
    let lasts = maps.slots.keys().skip(1).map(|next| next - 1).chain([protocol::id::SLOT_COUNT - 1]);
    let ranges = firsts.zip(lasts).zip(maps.slots.values());
    ranges.map(|((first, last), entry)| json!({"first": first, "last": last, "node": entry.node})).collect()
}

/// The machines.
fn nodes(parts: &Parts, maps: &Maps) -> Value {
    let voters = parts.roles.registry.as_ref().map(|registry| registry.voters());
    let nodes = maps.nodes.iter();
    let told = nodes.map(|(&number, node)| {
        let (runs, votes) = (node.state == NodeState::Alive, voters.as_ref().map(|voters| voters.contains(&number)));
        let targets = maps.present().filter(|(_, entry)| entry.node == number).count();
        json!({"id": number, "name": node.name, "runs": runs, "draining": maps.drains(number), "stores": node.stores,
               "votes": votes, "targets": targets, "copies": node.copies.targets})
    });
    told.collect()
}

/// Which slots are on their way from one node to another.
fn slots_moving(maps: &Maps) -> Value {
    let wishes = maps.wishes.iter();
    wishes.map(|(first, it)| json!({"first": first, "last": it.last, "from": it.from, "to": it.to})).collect()
}

/// Why a target does not serve, if it does not.
fn why_absent(parts: &Parts, target: TargetId, entry: &TargetEntry) -> Option<String> {
    if entry.state == TargetState::New {
        let again = "`dazzle target add` on its machine goes on with it, `dazzle target remove` gives it up";
        return Some(format!("it has its number, and does not serve yet: {again}"));
    }
    if let Some(serving) = parts.roles.storage.target(target) {
        return serving.failure().map(str::to_owned);
    }
    parts.roles.absent().into_iter().find(|absent| absent.target == target).map(|absent| absent.why)
}

fn target_state(state: TargetState) -> &'static str {
    match state {
        TargetState::Whole => "whole",
        TargetState::Behind => "behind",
        TargetState::Failed => "missing",
        TargetState::New => "new",
        TargetState::Removed => "removed",
    }
}

fn log_state(state: LogState) -> String {
    match state {
        LogState::Open(_) => "open".to_owned(),
        LogState::Sealing(_) => "being sealed".to_owned(),
        LogState::Sealed(length) => format!("sealed at stripe {} offset {}", length.stripe.0, length.offset),
    }
}

async fn why(parts: &Parts, path: &Path) -> Result<Value, String> {
    let mut inode = InodeId::ROOT;
    for name in path.components() {
        let name = Bytes::copy_from_slice(name.as_os_str().as_encoded_bytes());
        let found = parts.roles.client.lookup(inode, name).await;
        inode = found.map_err(|error| format!("{}: {error}", path.display()))?.inode;
    }
    // What is still only in memory has no address yet.
    parts.roles.client.settle().await.map_err(|error| error.to_string())?;
    let why = parts.roles.client.why(inode).await.map_err(|error| error.to_string())?;
    let maps = parts.roles.cluster.maps();
    let extents: Vec<_> = why
        .extents
        .iter()
        .map(|extent| {
            let address = extent.address;
            json!({"file_offset": extent.offset, "length": address.length, "log": address.log.0,
                   "stripe": address.stripe.0, "offset": address.offset, "targets": targets(&maps, address)})
        })
        .collect();
    let attributes = why.attributes;
    Ok(json!({
        "inode": attributes.inode.0, "slot": attributes.inode.slot().0, "node": why.node,
        "kind": format!("{:?}", attributes.kind), "mode": format!("{:o}", attributes.mode), "links": attributes.links,
        "size": attributes.size, "stored": attributes.stored, "inline": why.inline, "open_nodes": why.open_nodes,
        "locks": why.locks, "extents": extents,
        "name_slots": why.name_slots.iter().map(|slot| slot.0).collect::<Vec<_>>(),
    }))
}

/// The targets that hold the bytes at `address`, in words.
fn targets(maps: &Maps, address: LogAddress) -> String {
    let Some(log) = maps.logs.get(&address.log) else { return "a log that the registry does not know".into() };
    let Some(run) = log.run(address.stripe) else { return "no run".into() };
    let Some(group) = maps.groups.get(&run.group(address.stripe)) else { return "no group".into() };
    let shape = group.geometry;
    let first = address.offset / shape.fragment_size;
    let last = (address.offset + address.length.max(1) - 1) / shape.fragment_size;
    let names: Vec<_> = (first..=last)
        .map(|index| {
            let target = group.targets[shape.member(address.stripe, Part::Data(index as u8))];
            maps.called(target)
        })
        .collect();
    names.join(", ")
}
