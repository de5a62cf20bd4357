//! A machine's registry that is damaged, missing or older than what its targets hold, made anew from what is left
//! (`docs/decisions/0027-a-registry-is-rebuilt.md`). `registry::rebuilding` decides; this file looks, asks and awaits.
//!
//! 1. All is looked at on the shadows of the disks: nothing is changed before it is known that there will be maps, and what
//!    they are.
//! 2. Records are read by an outline of the maps, which a stand-in of the registry gives to whoever asks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use host::{BoxFuture, Envelope, Handler, Host, NodeId, Port};
use log::{Cluster, LogReader};
use manager::testimony::{self, Testimony};
use protocol::id::{LogId, TargetId};
use protocol::maps::{LogState, Maps, TargetState};
use protocol::registry::{REGISTRY_PORT, RegistryAnswer, RegistryError, RegistryReply};
use protocol::storage::{StorageError, StorageReply, StorageRequest, StoredFragment};
use registry::evidence::Evidence;
use registry::rebuilding::{Founder, RebuildError, Ruins, Told, ToldTable};
use registry::{Condition, RegistryStart, Salvage};
use storage::{Storage, Target, TargetOptions};

use crate::targets::{Disks, Lost};

/// Fragments that are listed at once.
const LIST_PAGE: u32 = 4096;

/// Why a registry is not rebuilt. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum NotRebuilt {
    /// The start would do.
    #[error(
        "the registry on these targets is sound, and as new as what they hold: nothing is to be rebuilt. Start it with \
         `dazzle up`"
    )]
    Sound,
    /// A promotion would do.
    #[error(
        "the registry on these targets is sound, and as new as what they hold: nothing is to be rebuilt. Where the \
         machines that vote are lost, use `dazzle registry promote`"
    )]
    Promotable,
    /// It cannot be.
    #[error(transparent)]
    Impossible(#[from] RebuildError),
    /// What lies on the targets is of another version, or cannot be written.
    #[error(transparent)]
    Registry(#[from] RegistryStart),
    /// What decides could not be read.
    #[error("log {}, which tells how the registry was, cannot be read: {why}", .log.0)]
    Unread {
        /// The log.
        log: LogId,
        /// Why.
        why: String,
    },
}

/// A registry that is not founded yet.
pub struct Rebuild {
    node: u32,
    salvage: Salvage,
    maps: Maps,
    /// What was found, and what is missing.
    pub findings: Findings,
}

/// What was found on a machine's targets, and what is missing.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// How the copies of the registry are.
    pub copies: BTreeMap<TargetId, Condition>,
    /// Targets that cannot be read, and why.
    pub lost: Vec<(TargetId, String)>,
    /// Targets that lack something, and are made whole later.
    pub behind: BTreeSet<TargetId>,
    /// Whether any copy is left, and what the best one lacks.
    pub has_copy: bool,
    /// What that is, in words.
    pub lacks: Option<String>,
    /// How many fragments there are.
    pub fragments: u64,
    /// How many logs there will be, how many of them no copy knows, and how many are to be sealed.
    pub logs: usize,
    /// Those that no copy knows.
    pub logs_unknown: usize,
    /// Those to be sealed.
    pub logs_unsealed: usize,
}

impl Rebuild {
    /// Looks at what is left on a machine's targets. `founder` names all of them; it is told here which are there.
    pub async fn look(
        host: &Host,
        mut founder: Founder,
        (disks, lost): (Disks, Lost),
        options: TargetOptions,
    ) -> Result<Rebuild, NotRebuilt> {
        let salvage = Salvage::read(&disks).await?;
        let known = salvage.standing().map(|best| best.maps().clone());
        if let Some(maps) = &known {
            // A target that was taken away may still be named in the settings.
            let is_own = |target: &TargetId| *target >= maps.next_target || maps.present().any(|(id, _)| id == *target);
            founder.targets.retain(|target, _| is_own(target));
        }
        let is_own = |target: &TargetId| founder.targets.contains_key(target);
        let shadows = disks.iter().filter(|(target, _)| is_own(target)).map(|(target, disk)| (*target, disk.shadow()));
        let (storage, unopened) = Storage::start(host.clone(), founder.cluster, shadows.collect(), options).await;
        let (evidence, failed) = gather(&storage).await;
        let unopened = unopened.into_iter().map(|(target, error)| (target, error.to_string())).chain(failed);
        let lost: Lost = lost.into_iter().filter(|(target, _)| is_own(target)).chain(unopened).collect();
        let is_lost = |target: &TargetId| lost.iter().any(|(lost, _)| lost == target);
        founder.present = founder.targets.keys().copied().filter(|target| !is_lost(target)).collect();
        founder.outdated = salvage.outdated.iter().copied().collect();
        let is_whole = salvage.is_whole();
        let ruins =
            Ruins { founder: &founder, known: known.as_deref().map(|maps| (maps, is_whole)), evidence: &evidence };
        expect_needed(&ruins, &salvage)?;
        let outline = ruins.outline()?;
        let told = hear(host, &ruins, &outline).await?;
        let maps = ruins.conclude(outline, &told)?;
        let findings = findings(&ruins, &maps, (&salvage, lost));
        Ok(Rebuild { node: founder.node, salvage, maps, findings })
    }

    /// The maps that it will begin with.
    pub fn maps(&self) -> &Maps {
        &self.maps
    }

    /// Founds it. Done again after a crash, it founds another one, with what the first one had.
    pub async fn found(self) -> Result<Arc<Maps>, RegistryStart> {
        self.salvage.found(self.node, self.maps).await
    }
}

/// Refuses where the registry is as it should be.
fn expect_needed(ruins: &Ruins<'_>, salvage: &Salvage) -> Result<(), NotRebuilt> {
    match salvage.standing().filter(|_| salvage.suffices() && ruins.lack().is_none()) {
        Some(standing) if standing.voters().iter().eq([&ruins.founder.node]) => Err(NotRebuilt::Sound),
        Some(_) => Err(NotRebuilt::Promotable),
        None => Ok(()),
    }
}

/// What the targets hold, and those that do not tell.
async fn gather(storage: &Storage) -> (Evidence, Lost) {
    let (mut evidence, mut failed) = (Evidence::default(), Vec::new());
    for target in storage.targets() {
        match all_of(&target).await {
            Ok(fragments) => evidence.add(target.id(), fragments, target.fences()),
            Err(error) => failed.push((target.id(), error.to_string())),
        }
    }
    (evidence.conclude(), failed)
}

async fn all_of(target: &Arc<Target>) -> Result<Vec<StoredFragment>, StorageError> {
    let mut all: Vec<StoredFragment> = Vec::new();
    loop {
        let after = all.last().map(|last| last.header.id);
        match target.serve(StorageRequest::List { after, limit: LIST_PAGE }).await? {
            StorageReply::Fragments(page) if !page.is_empty() => all.extend(page),
            _ => return Ok(all),
        }
    }
}

/// What the logs say of themselves of which that is asked.
async fn hear(host: &Host, ruins: &Ruins<'_>, outline: &Maps) -> Result<BTreeMap<LogId, Told>, NotRebuilt> {
    let asked = ruins.asked(outline);
    let mut told = BTreeMap::new();
    let Some(&(first, _)) = asked.first() else { return Ok(told) };
    host.listen(Port(REGISTRY_PORT), Arc::new(StandIn(Arc::new(outline.clone()))));
    let unread = |log: LogId, why: String| NotRebuilt::Unread { log, why };
    let connected = Cluster::connect(host.clone(), host.node()).await;
    let reader = LogReader::new(connected.map_err(|error| unread(first, error.to_string()))?);
    let mut is_based = false;
    for (log, trace) in asked.into_iter().rev() {
        let said = testimony::testimony(&reader, log, &trace.stripes()).await;
        let said = match said.map_err(|error| unread(log, error.to_string()))? {
            Testimony::Client => Told::Client,
            Testimony::Data => Told::Data,
            Testimony::Manager { table, hands_over } => {
                // Of those before the newest that has one none is needed.
                let mut newest = None;
                if let Some(address) = table.filter(|_| !is_based) {
                    let table = testimony::table(&reader, address).await;
                    let table = table.map_err(|error| unread(log, error.to_string()))?;
                    newest = Some(ToldTable { replayed: table.replayed, had_all: table.had_all });
                    is_based = true;
                }
                Told::Manager { table: newest, hands_over }
            }
        };
        told.insert(log, said);
    }
    Ok(told)
}

/// Gives the outline of the maps to whoever asks the registry of this machine.
struct StandIn(Arc<Maps>);

impl Handler for StandIn {
    fn handle(&self, _: NodeId, _: Envelope) -> BoxFuture<'static, Envelope> {
        // Nobody here asks for anything but maps.
        let answer: RegistryAnswer = Ok(RegistryReply::Maps(self.0.clone()));
        Box::pin(async move { Envelope::new::<Result<RegistryReply, RegistryError>>(answer) })
    }
}

fn findings(ruins: &Ruins<'_>, maps: &Maps, (salvage, lost): (&Salvage, Lost)) -> Findings {
    let known = ruins.known.map(|(known, _)| known);
    let is_known = |log: &LogId| known.is_some_and(|known| known.logs.contains_key(log));
    let behind = maps.present().filter(|(_, entry)| entry.state == TargetState::Behind).map(|(id, _)| id);
    Findings {
        copies: salvage.conditions.clone(),
        lost,
        behind: behind.collect(),
        has_copy: known.is_some(),
        lacks: ruins.lack(),
        fragments: ruins.evidence.fragments(),
        logs: maps.logs.len(),
        logs_unknown: maps.logs.keys().filter(|log| !is_known(log)).count(),
        logs_unsealed: maps.logs.values().filter(|entry| !matches!(entry.state, LogState::Sealed(_))).count(),
    }
}
