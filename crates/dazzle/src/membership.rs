//! A machine's way into its cluster: the first one founds it, those that are let in settle, and each is then called, and calls,
//! under the name in its certificate.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use futures_util::future::{join_all, try_join_all};
use host::{BoxFuture, Disk, Host, NodeId};
use log::{Cluster, Walk};
use protocol::id::TargetId;
use protocol::maps::{Maps, NodeEntry};
use protocol::registry::{Attempt, Invitation, RegistryError, RegistryReply, RegistryRequest};
use registry::{Registry, Standing};
use roles::joining::number_targets;
use storage::TargetOptions;
use tokio::runtime::Handle;

use crate::arrival::{self, Arrival, Comer, Stored};
use crate::config::{ClusterConfig, Config, FILE_NAME, PeerConfig};
use crate::edge::machine::RealMachine;
use crate::edge::network::{
    Admission, Admitted, AuthorityKey, CLOCKS_APART_MAX, JoinRefusal, JoinRequest, NetworkError, NetworkOptions,
    PlanRequest, Planned, TONGUES,
};
use crate::edge::storage_place;
use crate::edge::trust::{self, Authority, Date, Identity, Token, TokenError, TrustError, Validity};
use crate::node::NODE;
use crate::pace::Pace;
use crate::{probe, targets};

/// Of so many machines it is told why they are not reached.
const COMPLAINTS_MAX: usize = 8;
/// How long a token is good for.
const TOKEN_SECONDS: u64 = 24 * 3600;
/// So many bits of an attempt's number tell keys apart: machines that come in one second with one token are two attempts, of
/// which the one with the greater key counts. Above them is the clock's second, for some five hundred years.
const ATTEMPT_KEY_BITS: u32 = 30;

/// Makes the CA of a new cluster, and the first node's certificate.
pub(crate) fn found(dir: &Path, cluster: u128) -> Result<(), TrustError> {
    let now = Date::now();
    let authority = Authority::create(cluster, Validity::of_authority(now))?;
    trust::store_authority(dir, &authority)?;
    trust::store(dir, &Identity::create(&authority, NODE, Validity::of_node(now))?)
}

/// Opens the file system of one machine for others to join: its settings come last, so that a crash leaves it opened or not.
pub(crate) async fn open_up(
    dir: &Path,
    config: &mut Config,
    own: ClusterConfig,
    runtime: &Handle,
) -> Result<(), String> {
    config.cluster = Some(own);
    config.verify().map_err(|error| error.to_string())?;
    let mut cluster = None;
    for (_, disk) in targets::open_disks(dir, config, runtime) {
        if let Ok(disk) = disk
            && let Ok(Some((owner, _))) = storage::owner(&disk).await
        {
            cluster = Some(owner);
        }
    }
    let cluster = cluster.ok_or("none of its targets can be read: bring them back first")?;
    found(dir, cluster).map_err(|error| error.to_string())?;
    let path = dir.join(FILE_NAME);
    storage_place::write_text(&path, &config.to_text()).map_err(|error| format!("{}: {error}", path.display()))
}

/// Puts this machine on the network, if it has a part in a cluster. The gate is there where the CA's key is: on machines
/// that store.
pub(crate) async fn connect(
    dir: &Path,
    config: &Config,
    runtime: &Handle,
) -> Result<(Arc<RealMachine>, Option<Arc<Gate>>), String> {
    let Some(own) = &config.cluster else { return Ok((RealMachine::new(NODE, runtime.clone()), None)) };
    let identity = trust::load(dir).map_err(|error| error.to_string())?;
    identity.check(Date::now()).map_err(|error| error.to_string())?;
    let gate = match trust::load_authority(dir) {
        Ok(authority) => Some(Arc::new(Gate::new(authority))),
        Err(why @ (TrustError::Exposed { .. } | TrustError::Owned { .. })) => return Err(why.to_string()),
        // It only mounts, or others let machines in.
        Err(_) => None,
    };
    let machine = RealMachine::new(identity.name().node, runtime.clone());
    let session = getrandom::u64().map_err(|error| format!("the kernel gives no random numbers: {error}"))?;
    let admission = gate.clone().map(|gate| Arc::new(Porter(gate)) as Arc<dyn Admission>);
    let options = NetworkOptions { identity, listen: own.address.clone(), tongues: TONGUES, admission, session };
    machine.connect(options).await.map_err(|error| error.to_string())?;
    own.peers.iter().for_each(|peer| machine.know(NodeId(peer.node), peer.address.clone()));
    Ok((machine, gate))
}

/// Gives numbers to the targets of a machine that was let in, and makes targets of them. What was done before a crash is
/// found in the maps, and not done again.
pub(crate) async fn settle_in(
    (dir, config): (&Path, &mut Config),
    host: &Host,
    runtime: &Handle,
) -> Result<(), String> {
    let peers = peers(config);
    if peers.is_empty() || config.targets.iter().all(|target| target.id.is_some()) {
        return Ok(());
    }
    let unnumbered = config.targets.iter().filter(|target| target.id.is_none());
    let names: Vec<String> = unnumbered.map(|target| target.path.display().to_string()).collect();
    let numbered = config.targets.iter().filter_map(|target| target.id).map(TargetId).collect();
    let (maps, own) = number_targets(host, &peers, &names, &numbered).await?;
    let unnumbered = config.targets.iter_mut().filter(|target| target.id.is_none());
    unnumbered.zip(own).for_each(|(target, id)| target.id = Some(id.0));
    for (id, disk) in targets::open_disks(dir, config, runtime) {
        let disk = disk.map_err(|error| format!("target {}: {error}", id.0))?;
        if storage::owner(&disk).await.map_err(|error| error.to_string())?.is_none() {
            storage::format(&disk, maps.cluster, id, TargetOptions::default())
                .await
                .map_err(|error| format!("target {} cannot be formatted: {error}", id.0))?;
        }
    }
    let path = dir.join(FILE_NAME);
    storage_place::write_text(&path, &config.to_text()).map_err(|error| format!("{}: {error}", path.display()))
}

/// The machines that let this one in.
pub(crate) fn peers(config: &Config) -> Vec<NodeId> {
    let peers = config.cluster.iter().flat_map(|own| &own.peers);
    peers.map(|peer| NodeId(peer.node)).collect()
}

/// Notes which machines store, for the next start of one that has no replica, or an empty one: those that let it in may be
/// gone by then. Its targets have the numbers that their places gave them, unless they were noted before.
pub(crate) fn remember(dir: &Path, config: &Config, maps: &Maps) -> Result<(), String> {
    let mut config = config.clone();
    for (place, target) in (0..).zip(&mut config.targets) {
        target.id = target.id.or(Some(place));
    }
    let own = config.cluster.as_mut().expect("who calls other machines has a cluster");
    let peers = storing(maps, &own.address);
    if own.peers == peers {
        return Ok(());
    }
    own.peers = peers;
    let path = dir.join(FILE_NAME);
    storage_place::write_text(&path, &config.to_text()).map_err(|error| format!("{}: {error}", path.display()))
}

/// The machines that store, but for the one with this address.
fn storing(maps: &Maps, own: &str) -> Vec<PeerConfig> {
    let is_other = |entry: &NodeEntry| !entry.address.is_empty() && entry.address != own;
    let storing = maps.nodes.iter().filter(|(_, entry)| entry.stores && is_other(entry));
    storing.map(|(&node, entry)| PeerConfig { node, address: entry.address.clone() }).collect()
}

/// Notes which machines store whenever that changes, on one without a replica: at its next start those of this one may all
/// have been replaced.
pub(crate) fn keep_remembering(dir: &Path, cluster: &Cluster, runtime: &Handle) {
    let (dir, cluster) = (dir.to_owned(), cluster.clone());
    runtime.spawn(async move {
        let mut noted = Vec::new();
        loop {
            let newer = cluster.newer_maps();
            if let Err(error) = remember_changes(&dir, &cluster.maps(), &mut noted) {
                tracing::warn!(error, "dazzle.toml does not name the machines that store by now");
            }
            newer.await;
        }
    });
}

/// Notes which machines store if others were `noted` last. The settings may have been edited meanwhile. What fails is tried
/// again with the next maps.
fn remember_changes(dir: &Path, maps: &Maps, noted: &mut Vec<PeerConfig>) -> Result<(), String> {
    let peers = storing(maps, "");
    if peers == *noted {
        return Ok(());
    }
    let config = Config::load(dir).map_err(|error| error.to_string())?;
    remember(dir, &config, maps)?;
    *noted = peers;
    Ok(())
}

/// Tells a machine without a replica where the others are, now and as that changes.
pub(crate) fn introduce(machine: &Arc<RealMachine>, cluster: &Cluster, runtime: &Handle) {
    let (machine, cluster) = (machine.clone(), cluster.clone());
    know_all(&machine, &cluster.maps());
    runtime.spawn(async move {
        loop {
            let newer = cluster.newer_maps();
            know_all(&machine, &cluster.maps());
            newer.await;
        }
    });
}

/// Where the others are by what lies on the targets of a machine that starts: it asks them before it believes that.
pub(crate) async fn introduce_known(machine: &RealMachine, disks: &[(TargetId, Disk)]) {
    // What cannot be read the registry's start complains of.
    if let Ok(standing) = Standing::read(disks).await {
        know_all(machine, standing.maps());
    }
}

/// The same by its replica, which knows first.
pub(crate) fn introduce_by_replica(machine: &Arc<RealMachine>, registry: &Arc<Registry>, runtime: &Handle) {
    let (machine, registry) = (machine.clone(), registry.clone());
    know_all(&machine, &registry.maps());
    runtime.spawn(async move {
        let mut maps = registry.maps();
        loop {
            maps = registry.newer(maps.epoch).await;
            know_all(&machine, &maps);
        }
    });
}

/// Has the others call this machine as its settings do, once it takes part.
pub(crate) async fn announce_name(cluster: &Cluster, config: &Config) {
    let Some(own) = &config.cluster else { return };
    let node = cluster.host().node().0;
    if cluster.maps().nodes.get(&node).is_none_or(|entry| entry.name == own.name) {
        return;
    }
    if let Err(error) = cluster.registry(RegistryRequest::RenameNode(node, own.name.clone())).await {
        tracing::warn!(%error, name = own.name, "the others go on calling this machine by its former name");
    }
}

/// Refuses to begin, at once, where all that let this machine in answer what no waiting changes: that they are of another
/// cluster, or of another version. Others are waited for.
pub(crate) async fn expect_welcome(machine: &RealMachine, peers: &[NodeId]) -> Result<(), String> {
    let refusals = peers.iter().map(async |&node| match machine.reach(node).await {
        Err(why) if why.is_final() => Ok(()),
        Err(_) | Ok(()) => Err("this one may welcome it yet"),
    });
    match try_join_all(refusals).await {
        Ok(refused) if !refused.is_empty() => Err("all machines that let this one in refuse it".into()),
        _ => Ok(()),
    }
}

/// Refuses to begin where another machine is this node already, and answers: a copy of the other's directory, or the other way
/// about. Whoever has a connection with the other one tells; that is at least the machine that leads, which the other asks
/// for its lease every second.
pub(crate) async fn expect_alone(machine: &RealMachine, maps: &Maps, own: NodeId) -> Result<(), String> {
    know_all(machine, maps);
    let others = maps.nodes.iter().filter(|&(&node, entry)| node != own.0 && !entry.address.is_empty());
    let told = join_all(others.map(|(&node, _)| machine.reach(NodeId(node)))).await;
    match told.into_iter().filter_map(Result::err).find(|why| *why == NetworkError::Duplicate { node: own }) {
        Some(duplicate) => Err(duplicate.to_string()),
        None => Ok(()),
    }
}

/// An error of a start without any target, with what to do about it. What a machine voted for lay on its targets: an empty
/// disk in their place must not make it vote again as if it never had.
pub(crate) fn advise(config: &Config, node: NodeId, error: String) -> String {
    let NodeId(node) = node;
    match &config.cluster {
        Some(_) => format!(
            "{error}\nBring back one that is. If all are gone for good, the other machines make again what lay there: give \
             `dazzle node remove DIR {node}` on one of them, then empty this directory and have it join anew with `dazzle join`"
        ),
        None => format!(
            "{error}\nBring back all but {} of them: no other machine has what lies there. An empty disk can take the place of \
             one only while others are there",
            config.parity
        ),
    }
}

/// An error of the start, with what keeps other machines from being reached.
pub(crate) fn explain(machine: &RealMachine, error: String) -> String {
    let complaints = machine.peers().into_iter().filter_map(|peer| Some((peer.node.0, peer.error?)));
    let lines = complaints.take(COMPLAINTS_MAX).map(|(node, why)| format!("\nnode {node}: {why}"));
    error + &lines.collect::<String>()
}

fn know_all(machine: &RealMachine, maps: &Maps) {
    machine.know_members(maps);
    for (&node, entry) in maps.nodes.iter().filter(|(_, entry)| !entry.address.is_empty()) {
        machine.know(NodeId(node), entry.address.clone());
    }
}

/// Lets machines in: where the CA's key is.
pub(crate) struct Gate {
    authority: Authority,
    yard: OnceLock<Yard>,
}

/// What lies behind a gate.
pub(crate) struct Yard {
    pub(crate) cluster: Cluster,
    pub(crate) registry: Option<Arc<Registry>>,
    /// How many bytes a second each machine lays anew, unless that is set for all.
    pub(crate) budget: u64,
}

impl Gate {
    fn new(authority: Authority) -> Gate {
        Gate { authority, yard: OnceLock::new() }
    }

    /// From now on it opens.
    pub(crate) fn open(&self, yard: Yard) {
        assert!(self.yard.set(yard).is_ok(), "a gate is opened once");
    }

    /// A new token, for one machine. All gates of the cluster take it.
    pub(crate) fn issue(&self) -> Result<Token, String> {
        let number = getrandom::u64().map_err(|error| format!("the kernel gives no random numbers: {error}"))?;
        Ok(self.authority.invite(Invitation { number, expires: Date::now().0 + TOKEN_SECONDS }))
    }

    async fn let_in(&self, request: JoinRequest) -> Result<Admitted, JoinRefusal> {
        let Yard { cluster, .. } = self.yard.get().ok_or(JoinRefusal::NotYet)?;
        let attempt = Some(self.attempt(&request)?);
        let JoinRequest { name, address, stores, request, .. } = request;
        match cluster.registry(RegistryRequest::AddNode { name, address, stores, attempt }).await.map_err(refused)? {
            RegistryReply::Node(node, maps) => self.admit(node, &maps, stores, &request),
            _ => Err(JoinRefusal::Other("the registry answered another question".into())),
        }
    }

    /// What it would be like; nothing is changed, and the token stays good.
    async fn foresee(&self, request: PlanRequest) -> Result<Planned, JoinRefusal> {
        let Yard { cluster, registry, budget } = self.yard.get().ok_or(JoinRefusal::NotYet)?;
        let PlanRequest { join, bytes_free } = request;
        let attempt = Some(self.attempt(&join)?);
        let JoinRequest { name, address, stores, .. } = join;
        // Who could not be let in now is not told what it would be like.
        let maps = cluster.newest().await.map_err(refused)?;
        let mut stored = Stored::new();
        Walk::over_all(cluster, &maps).to_end(|state| arrival::add(&mut stored, &state)).await;
        let voters = registry.as_ref().map(|registry| registry.voters().into_iter().collect()).unwrap_or_default();
        let comer = Comer { name, address, stores, attempt, bytes_free };
        let stats = probe::stats(cluster, &maps).await;
        let arrival = Arrival::of((&maps, &stored), comer, stats, &voters).map_err(refused)?;
        let link = if arrival.moves() { probe::link(cluster).await } else { None };
        let budget = maps.settings.rebuild_or(*budget);
        Ok(Planned(arrival.in_json(Pace { budget, link }).to_string()))
    }

    /// By what a machine comes, if it was invited.
    fn attempt(&self, request: &JoinRequest) -> Result<Attempt, JoinRefusal> {
        let JoinRequest { invitation, proof, clock, request, .. } = request;
        let now = Date::now();
        self.authority.expect_invited(*invitation, proof, now).map_err(JoinRefusal::Token)?;
        if invitation.expires > now.0 + TOKEN_SECONDS + CLOCKS_APART_MAX.as_secs() {
            return Err(JoinRefusal::Other(good_for_too_long(invitation.expires, now)));
        }
        let key = trust::number_of(request) >> (u64::BITS - ATTEMPT_KEY_BITS);
        Ok(Attempt { invitation: *invitation, number: clock << ATTEMPT_KEY_BITS | key })
    }

    /// What the machine gets that is `node` from now on, and signed `request`.
    fn admit(&self, node: u32, maps: &Maps, stores: bool, request: &[u8]) -> Result<Admitted, JoinRefusal> {
        let signed = self.authority.sign(request, NodeId(node), Validity::of_node(Date::now()));
        let certificate = signed.map_err(|error| JoinRefusal::Other(error.to_string()))?;
        let peers = maps.nodes.iter().filter(|&(&other, entry)| other != node && !entry.address.is_empty());
        Ok(Admitted {
            node,
            cluster: maps.cluster,
            certificate,
            authority: self.authority.pem().to_owned(),
            authority_key: stores.then(|| AuthorityKey(self.authority.key_pem())),
            class: maps.class(),
            peers: peers.map(|(&other, entry)| (other, entry.address.clone())).collect(),
        })
    }
}

/// What is said of a token that no machine makes whose clock is right. Were it taken, the registry would forget those that it
/// still has to know.
fn good_for_too_long(expires: u64, now: Date) -> String {
    format!(
        "the token is good until {}, which is longer than any is made for, and the clock of the machine at this address says \
         {now}: the clock of the machine that made the token is ahead, or this one is behind. Compare both with `date`, set \
         the one that is wrong, and make a new token there with `dazzle token create`",
        Date(expires)
    )
}

/// What a machine is told that the registry does not take in.
fn refused(error: RegistryError) -> JoinRefusal {
    match error {
        RegistryError::Used => JoinRefusal::Token(TokenError::Used),
        RegistryError::Unavailable(why) => JoinRefusal::NoQuorum(why),
        RegistryError::InUse(why) => JoinRefusal::Taken(why),
        error => JoinRefusal::Other(error.to_string()),
    }
}

/// The gate as the network asks for it.
struct Porter(Arc<Gate>);

impl Admission for Porter {
    fn admit(&self, request: JoinRequest) -> BoxFuture<'static, Result<Admitted, JoinRefusal>> {
        let gate = self.0.clone();
        Box::pin(async move { gate.let_in(request).await })
    }

    fn plan(&self, request: PlanRequest) -> BoxFuture<'static, Result<Planned, JoinRefusal>> {
        let gate = self.0.clone();
        Box::pin(async move { gate.foresee(request).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ClusterConfig, Size};

    #[test]
    fn who_finds_no_target_is_told_what_to_do() {
        let mut config = Config::new(1, None, Vec::new());
        let alone = advise(&config, NodeId(1), "nothing is there".into());
        assert!(alone.starts_with("nothing is there\n") && alone.contains("all but 1 of them"), "{alone}");
        let (name, address) = ("rack-3".to_owned(), "192.0.2.3:4747".to_owned());
        config.cluster = Some(ClusterConfig { name, address, peers: Vec::new() });
        let member = advise(&config, NodeId(3), "nothing is there".into());
        assert!(member.contains("`dazzle node remove DIR 3`") && member.contains("`dazzle join`"), "{member}");
    }

    /// Maps in which these machines store, each at an address with its number, and one more does not.
    fn stored_on(nodes: &[u32]) -> Maps {
        let entry = |node: u32, stores| NodeEntry::new(node.to_string(), format!("192.0.2.{node}:4747"), stores);
        let mut maps = Maps::empty(7, 1);
        maps.nodes = nodes.iter().map(|&node| (node, entry(node, true))).collect();
        maps.nodes.insert(99, entry(99, false));
        maps
    }

    #[test]
    fn which_machines_store_is_noted_as_often_as_that_changes_beside_what_people_edit() {
        let dir = std::env::temp_dir().join(format!("dazzle-membership-{}", std::process::id()));
        let mut config = Config::new(1, None, Vec::new());
        let (name, address) = ("rack-9".to_owned(), "192.0.2.99:4747".to_owned());
        config.cluster = Some(ClusterConfig { name, address, peers: Vec::new() });
        let (path, mut noted) = (dir.join(FILE_NAME), Vec::new());
        let mut follow = |nodes: &[u32]| remember_changes(&dir, &stored_on(nodes), &mut noted);
        assert!(follow(&[1, 2]).is_err(), "there is no file to note it in");
        std::fs::create_dir_all(&dir).unwrap();
        let write = |config: &Config| storage_place::write_text(&path, &config.to_text()).unwrap();
        let peers = || peers(&Config::load(&dir).unwrap()).into_iter().map(|node| node.0).collect::<Vec<_>>();
        write(&config);
        assert_eq!(
            (follow(&[1, 2]), peers()),
            (Ok(()), vec![1, 2]),
            "what failed is tried again, though nothing changed"
        );
        config.cache = Size(300 << 20);
        write(&config);
        assert_eq!((follow(&[1, 2]), peers()), (Ok(()), vec![]), "who edits is left alone where nothing changed");
        assert_eq!((follow(&[2, 3]), peers()), (Ok(()), vec![2, 3]));
        assert_eq!(Config::load(&dir).unwrap().cache, config.cache, "and what was edited stays");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[tokio::test]
    async fn a_machine_that_has_not_begun_lets_nobody_in() {
        let gate = Gate::new(Authority::create(7, Validity::of_authority(Date::now())).expect("a CA can be made"));
        let Token { invitation, proof, .. } = gate.issue().expect("the kernel has random numbers");
        let (name, address, clock) = ("rack-1".to_owned(), "127.0.0.1:1".to_owned(), Date::now().0);
        let request = JoinRequest { name, address, stores: true, invitation, proof, clock, request: Vec::new() };
        assert_eq!(gate.let_in(request).await, Err(JoinRefusal::NotYet));
    }

    /// A gate, and what comes to it with a token that expires then.
    fn request_at(gate: &Gate, expires: u64, signed: &[u8]) -> JoinRequest {
        let Token { invitation, proof, .. } = gate.authority.invite(Invitation { number: 7, expires });
        let (name, address) = ("rack-1".to_owned(), "127.0.0.1:1".to_owned());
        JoinRequest { name, address, stores: true, invitation, proof, clock: 1_800_000_000, request: signed.to_vec() }
    }

    #[test]
    fn a_token_that_is_good_for_longer_than_any_is_made_for_is_refused() {
        let now = Date::now().0;
        let gate = Gate::new(Authority::create(7, Validity::of_authority(Date(now))).expect("a CA can be made"));
        let judge = |expires| gate.attempt(&request_at(&gate, expires, &[]));
        assert!(judge(now + TOKEN_SECONDS).is_ok());
        // Clocks may be apart by an hour; this test may take a minute.
        assert!(judge(now + TOKEN_SECONDS + 3600).is_ok());
        for ahead in [3660, 86_400, 30 * 86_400, u64::from(u32::MAX)] {
            let why = judge(now + TOKEN_SECONDS + ahead).expect_err("it is good for too long").to_string();
            assert!(why.contains("clock") && why.contains("`date`"), "{why}");
        }
    }

    #[test]
    fn of_two_machines_that_come_with_one_token_in_one_second_each_is_an_attempt_of_its_own() {
        let now = Date::now();
        let gate = Gate::new(Authority::create(7, Validity::of_authority(now)).expect("a CA can be made"));
        let number = |clock, signed: &[u8]| {
            let request = JoinRequest { clock, ..request_at(&gate, now.0 + 1000, signed) };
            gate.attempt(&request).expect("it was invited").number
        };
        assert_eq!(number(now.0, b"one"), number(now.0, b"one"), "the same, asked twice");
        assert_ne!(number(now.0, b"one"), number(now.0, b"other"));
        for signed in [b"one", b"two", b"six"] {
            assert!(
                number(now.0 + 1, signed) > number(now.0, b"one") && number(now.0 - 1, signed) < number(now.0, b"one")
            );
        }
    }
}
