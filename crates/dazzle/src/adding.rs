//! Adding targets to this machine, and putting empty disks in the place of those of targets that do not serve, as commands ask
//! for it while everything goes on. This file looks at places and writes the settings; the order of things is `roles`'s.

use std::path::{Path, PathBuf};
use std::time::Duration;

use host::Disk;
use log::Walk;
use protocol::id::TargetId;
use protocol::maps::{Maps, TargetEntry, TargetState};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::config::{Config, FILE_NAME, Size, TargetConfig};
use crate::drain::{measured_pace, pace, refreshed};
use crate::edge::control::{Line, Progress};
use crate::edge::directory::Room;
use crate::edge::storage_place::{self, Made, Spot};
use crate::node::Parts;
use crate::pace::Pace;
use crate::plan::joined;
use crate::probe;
use crate::supply::{Gain, Owed, Refill, lacking};

/// How often it is looked what is lacking, at most, and how much of the time.
const LOOK: Duration = Duration::from_millis(500);
const LOOK_SHARE: u32 = 4;

/// A place for a target, and the settings as they are without it.
struct Place {
    /// All targets have their numbers here.
    config: Config,
    /// As the settings name it.
    path: PathBuf,
    limit: Option<Size>,
    disk: Disk,
    made: Made,
}

/// What a new target would give; changes nothing.
pub(crate) async fn plan_to_add(parts: &Parts, path: &Path, limit: Option<Size>) -> Result<Value, String> {
    let _one = parts.supplying.lock().await;
    let maps = refreshed(parts).await?;
    let place = Place::find(parts, &maps, (path, limit), None)?;
    let name = place.path.display().to_string();
    let usage = place.disk.usage().map_err(|error| format!("{name}: {error}"))?;
    let stats = probe::stats(&parts.roles.cluster, &maps).await;
    let own = (parts.roles.cluster.host().node().0, parts.roles.session(), name.clone());
    Ok(joined(json!({"name": name}), Gain::of(&maps, own, usage, stats)?.in_json()))
}

/// Adds a target, and waits until it is written to. Who hangs up ends the waiting alone.
pub(crate) async fn add(parts: &Parts, path: &Path, limit: Option<Size>, progress: &Progress) -> Result<Value, String> {
    let target = {
        let _one = parts.supplying.lock().await;
        let maps = refreshed(parts).await?;
        let Place { config, path, limit, disk, made } = Place::find(parts, &maps, (path, limit), None)?;
        let name = path.display().to_string();
        let note = async |target| write_down(parts, config, (target, path), limit);
        let added = parts.roles.add_target(name.clone(), disk, note).await;
        let target = added.map_err(|error| format!("{name}: {error}"))?;
        made.keep();
        target
    };
    until_whole(parts, target, progress).await?;
    Ok(json!({"name": parts.roles.cluster.maps().called(target), "target": target.0}))
}

/// What would be made again on an empty disk; changes nothing.
pub(crate) async fn plan_to_replace(parts: &Parts, name: &str, path: Option<&Path>) -> Result<Value, String> {
    let _one = parts.supplying.lock().await;
    let maps = refreshed(parts).await?;
    let target = find(parts, &maps, name)?;
    let former = former_place(parts, target);
    Place::of(parts, &maps, target, path)?;
    let refill = refill(parts, &maps, target, measured_pace(parts).await).await;
    let name = maps.called(target);
    let refused = match parts.roles.serves_from(target, former).await {
        true => Some(format!("{name} serves")),
        false => refill.objection(&name),
    };
    Ok(joined(json!({"name": name, "refused": refused}), refill.in_json()))
}

/// Has an empty disk take the place of a target's, and waits until everything is there again. Who hangs up ends the waiting
/// alone.
pub(crate) async fn replace(
    parts: &Parts,
    name: &str,
    (path, force): (Option<&Path>, bool),
    progress: &Progress,
) -> Result<Value, String> {
    let target = {
        let _one = parts.supplying.lock().await;
        let maps = refreshed(parts).await?;
        let target = find(parts, &maps, name)?;
        let former = former_place(parts, target);
        let Place { config, path, limit, disk, made } = Place::of(parts, &maps, target, path)?;
        let objection = refill(parts, &maps, target, pace(parts)).await.objection(&maps.called(target));
        if let Some(why) = objection.filter(|_| !force) {
            return Err(format!("{why}; or, if that is gone for good, --force gives it up. Nothing was changed"));
        }
        let name = path.display().to_string();
        let note = async |target| write_down(parts, config, (target, path), limit);
        let replaced = parts.roles.replace_target((target, name.clone()), former, disk, note).await;
        replaced.map_err(|error| format!("{name}: {error}"))?;
        made.keep();
        target
    };
    until_whole(parts, target, progress).await?;
    Ok(json!({"name": parts.roles.cluster.maps().called(target), "target": target.0}))
}

impl Place {
    /// The place at `path` for a target of this machine: a new one, or `own`.
    fn find(
        parts: &Parts,
        maps: &Maps,
        (path, limit): (&Path, Option<Size>),
        own: Option<TargetId>,
    ) -> Result<Place, String> {
        let config = numbered(parts)?;
        let full = parts.dir.join(path);
        let path = full.strip_prefix(&parts.dir).unwrap_or(&full).to_owned();
        let unfit = |why: &str| Err(format!("{} is no place for a target: {why}. Nothing was changed", full.display()));
        // Nothing is asked of the file system that this very daemon answers for.
        if config.mount.as_ref().is_some_and(|mount| full.starts_with(mount)) {
            return unfit("it lies in the file system itself");
        }
        let failed = |error: std::io::Error| format!("{}: {error}", full.display());
        let mut made = Made::default();
        if path.is_relative() {
            made.make_missing(&full).map_err(failed)?;
        } else if !full.exists() {
            return Err(format!(
                "{} does not exist: make that directory, or name a block device or a preallocated file. Nothing was changed",
                full.display()
            ));
        }
        let mut then = config.clone();
        then.targets.push(TargetConfig { path: path.clone(), id: None, limit });
        then.verify().map_err(|why| format!("{why}. Nothing was changed"))?;
        let spot = Spot::of(&full).map_err(failed)?;
        let others = config.targets.iter().filter(|other| other.id != own.map(|own| own.0) || own.is_none());
        let others = others.filter(|other| !may_be_taken(maps, other, &path));
        for other in others {
            let there = Spot::of(&parts.dir.join(&other.path));
            if other.path == path || there.is_ok_and(|there| there.overlaps(&spot)) {
                return Err(format!(
                    "{} is the place of target {}, {}, or lies in it or around it; name another. Nothing was changed",
                    full.display(),
                    other.id.unwrap_or_default(),
                    other.path.display()
                ));
            }
        }
        if spot.holds(&parts.dir) {
            return unfit("it holds the directory of the file system");
        }
        let paths: Vec<PathBuf> = config.targets.iter().map(|target| parts.dir.join(&target.path)).collect();
        let sharers = storage_place::sharers(&paths.into_iter().chain([full.clone()]).collect::<Vec<_>>());
        let room =
            Room { bytes_limit: limit.map_or(0, |limit| limit.0), sharers: sharers.last().copied().unwrap_or(1) };
        let disk = storage_place::open_disk(&full, room, Handle::current()).map_err(|error| error.to_string())?;
        Ok(Place { config, path, limit, disk, made })
    }

    /// The place for what is to stand in for `target`: where it was, unless `path` says another.
    fn of(parts: &Parts, maps: &Maps, target: TargetId, path: Option<&Path>) -> Result<Place, String> {
        let config = numbered(parts)?;
        let entry = config.targets.iter().find(|entry| entry.id == Some(target.0));
        let known = entry.map(|entry| entry.path.clone());
        let path = path.map(Path::to_owned).or(known).ok_or_else(|| {
            format!("{FILE_NAME} does not say where target {} was: name a place. Nothing was changed", target.0)
        })?;
        Place::find(parts, maps, (&path, entry.and_then(|entry| entry.limit)), Some(target))
    }
}

/// The settings as they are now, with the number of every target.
fn numbered(parts: &Parts) -> Result<Config, String> {
    let mut config = Config::load(&parts.dir).map_err(|error| error.to_string())?;
    for (number, target) in (0..).zip(&mut config.targets) {
        target.id = target.id.or(Some(number));
    }
    Ok(config)
}

/// Whether the place that the settings give to `other` is free for whoever asks for `path`: its target was taken away, or
/// was to lie there and never has.
fn may_be_taken(maps: &Maps, other: &TargetConfig, path: &Path) -> bool {
    let entry = other.id.and_then(|id| maps.targets.get(&TargetId(id)));
    match entry.map(|entry| entry.state) {
        None | Some(TargetState::Removed) => true,
        Some(TargetState::New) => other.path == path,
        Some(_) => false,
    }
}

/// The settings with a target at `path`, durably.
fn write_down(
    parts: &Parts,
    mut config: Config,
    (target, path): (TargetId, PathBuf),
    limit: Option<Size>,
) -> Result<(), String> {
    let maps = parts.roles.cluster.maps();
    let is_there = |id: Option<u32>| maps.present().any(|(present, _)| Some(present.0) == id);
    let serves = |own: &std::sync::Arc<storage::Target>| own.failure().is_none() && is_there(Some(own.id().0));
    // While nothing else serves, the maps may lie on a target that was taken away alone.
    if parts.roles.storage.targets().iter().any(serves) {
        config.targets.retain(|entry| is_there(entry.id));
    }
    let entry = TargetConfig { path, id: Some(target.0), limit };
    match config.targets.iter_mut().find(|known| known.id == entry.id) {
        Some(known) => *known = entry,
        None => config.targets.push(entry),
    }
    config.verify()?;
    let file = parts.dir.join(FILE_NAME);
    storage_place::write_text(&file, &config.to_text()).map_err(|error| format!("{}: {error}", file.display()))
}

/// The disk that lies where a target's does.
fn former_place(parts: &Parts, target: TargetId) -> Option<Disk> {
    let config = numbered(parts).ok()?;
    let entry = config.targets.iter().find(|entry| entry.id == Some(target.0))?;
    let room = Room { bytes_limit: 0, sharers: 1 };
    storage_place::open_disk(&parts.dir.join(&entry.path), room, Handle::current()).ok()
}

/// A target of this machine, by number or name.
fn find(parts: &Parts, maps: &Maps, name: &str) -> Result<TargetId, String> {
    let is_it = |target: TargetId, entry: &TargetEntry| {
        target.0.to_string() == name || entry.name == name || maps.called(target) == name
    };
    let found: Vec<(TargetId, u32)> =
        maps.present().filter(|(id, entry)| is_it(*id, entry)).map(|(id, entry)| (id, entry.node)).collect();
    let node = parts.roles.cluster.host().node().0;
    let own: Vec<TargetId> = found.iter().filter(|(_, of)| *of == node).map(|(id, _)| *id).collect();
    match (&own[..], &found[..]) {
        (&[target], _) => Ok(target),
        ([], &[(target, of), ..]) => {
            let machine = maps.nodes.get(&of).map_or("", |entry| entry.name.as_str());
            let name = maps.called(target);
            Err(format!(
                "{name} is on another machine, node {of} {machine}: give the command there. Nothing was changed"
            ))
        }
        ([], []) if name.parse().is_ok_and(|number| TargetId(number) < maps.next_target) => Err(format!(
            "target {name} was taken away, and its number never comes back: `dazzle target add` adds another. Nothing was \
             changed"
        )),
        ([], []) => Err(format!("there is no target {name}; `dazzle status` lists them. Nothing was changed")),
        _ => Err(format!("there are {} targets {name}; say which by its number", own.len())),
    }
}

async fn refill(parts: &Parts, maps: &Maps, target: TargetId, pace: Pace) -> Refill {
    let (newest, mut owed) = (parts.roles.cluster.maps(), Owed::default());
    Walk::over_all(&parts.roles.cluster, &newest).to_end(|state| owed.add(maps, &state, target)).await;
    Refill::of(maps, owed, target, pace)
}

/// Waits until a target lacks nothing.
async fn until_whole(parts: &Parts, target: TargetId, progress: &Progress) -> Result<(), String> {
    let host = parts.roles.cluster.host();
    let mut most = 0;
    loop {
        let began = host.now();
        let maps = parts.roles.cluster.maps();
        let Some((_, entry)) = maps.present().find(|(id, _)| *id == target) else {
            return Err("it was taken away meanwhile".into());
        };
        if entry.state == TargetState::Whole {
            return Ok(());
        }
        if let Some(why) = parts.roles.storage.target(target).as_ref().and_then(|serving| serving.failure()) {
            return Err(format!("it has failed: {why}"));
        }
        let mut left = 0;
        Walk::over_all(&parts.roles.cluster, &maps).to_end(|state| left += lacking(&maps, &state, target)).await;
        most = most.max(left);
        let what = match left {
            0 => "it is looked for what it lacks".to_owned(),
            _ => format!("{} to be made again", Size(left)),
        };
        if progress.send(Line::Progress { what, done: most - left, total: most.max(1) }).is_err() {
            return Err("nobody waits for it".into());
        }
        host.sleep(LOOK.max(host.now().since(began) * LOOK_SHARE)).await;
    }
}
