//! Joining: the one exchange for a machine that has no certificate yet. `docs/format-network.md`, *Joining*.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use host::{BoxFuture, NodeId};
use protocol::maps::Class;
use protocol::registry::Invitation;
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::edge::trust::{Authority, Date, Identity, NodeKey, NodeName, Proof, Token, TokenError, TrustError, joiner};

use super::dialling::{self, Dialled};
use super::error::{JoinError, NetworkError};

/// The version of the exchange.
pub const JOIN_VERSION: u16 = 5;
/// What stands in its place where a machine only asks what it would be like: who knows nothing of plans must not let it in.
pub const PLAN_VERSION: u16 = 0x8000 | JOIN_VERSION;
/// How long the exchange may take; the cluster agrees on the newcomer in between.
pub const JOIN_PATIENCE: Duration = Duration::from_secs(15);
/// How long a machine that joins waits for a name to be found, then for a connection, then for TLS.
const REACH_PATIENCE: Duration = Duration::from_secs(4);
/// How far the clocks of a newcomer and of the machine that lets it in may be apart. Certificates would bear a day; but the
/// times of files are those of the machine that wrote them.
pub const CLOCKS_APART_MAX: Duration = Duration::from_secs(3600);
pub(super) const REQUEST_BYTES_MAX: usize = 16 << 10;
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The longest name of a machine, and the longest address: what the DNS allows, with a port.
const NAME_BYTES_MAX: usize = 260;
/// How long the listener waits for what a machine wants, from its first message on; and for it to close behind the answer.
pub(super) const HEAR_PATIENCE: Duration = Duration::from_secs(4);
/// About how many is decided at once; more wait for that.
const JOINS_MAX: usize = 4;
/// After so many refusals within [`ATTEMPTS_SPAN`] of machines that came with a right proof nobody is looked at: this bounds
/// what the cluster has to agree on. A wrong one is refused for the price of an HMAC, and no number of them guesses 128 bits.
const ATTEMPTS_MAX: usize = 10;
const ATTEMPTS_SPAN: Duration = Duration::from_secs(60);

/// What a machine that wants to join says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// What it is called.
    pub name: String,
    /// Where it can be dialled: host and port.
    pub address: String,
    /// Whether it has disks.
    pub stores: bool,
    /// What it was invited by,
    pub invitation: Invitation,
    /// and the token's proof of that.
    pub proof: Proof,
    /// The second since 1970, by its clock. Of its attempts the latest counts.
    pub clock: u64,
    /// A certificate signing request, in DER.
    pub request: Vec<u8>,
}

/// What a machine says that would join, and wants to know before what it would be like. Nothing is changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRequest {
    /// What it would say, with nothing to be signed.
    pub join: JoinRequest,
    /// For each of its targets, how many bytes are free there.
    pub bytes_free: Vec<u64>,
}

/// The answer, in JSON: for programs it is printed as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned(pub String);

/// What a machine gets that is let in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admitted {
    /// Its number.
    pub node: u32,
    /// The cluster's id.
    pub cluster: u128,
    /// Its certificate, in PEM.
    pub certificate: String,
    /// The CA's, in PEM.
    pub authority: String,
    /// The CA's key, for a machine that stores: it lets others in, too.
    pub authority_key: Option<AuthorityKey>,
    /// The redundancy class.
    pub class: Class,
    /// The other nodes and where they are.
    pub peers: Vec<(u32, String)>,
}

/// A CA's key, in PEM; no log shows it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorityKey(pub String);

impl std::fmt::Debug for AuthorityKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuthorityKey")
    }
}

/// Why a machine is not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum JoinRefusal {
    /// The token is not good.
    #[error("{0}")]
    Token(TokenError),
    /// The programs differ.
    #[error("{}", versions_differ(*.theirs, *.ours))]
    Version {
        /// What the other end speaks.
        theirs: u16,
        /// What this one does.
        ours: u16,
    },
    /// The request makes no sense.
    #[error("the cluster did not understand the request: upgrade the older of the two programs")]
    Garbled,
    /// The newcomer cannot be called what it says, or not there.
    #[error("{0}")]
    Nonsense(String),
    /// The clocks differ.
    #[error(
        "this machine's clock says {}, and that of the machine at this address {}: set the clock that is wrong (compare both \
         with `date`), then join again",
        Date(*.theirs),
        Date(*.ours)
    )]
    Clock {
        /// The newcomer's.
        theirs: u64,
        /// The listener's.
        ours: u64,
    },
    /// Too many try.
    #[error("too many machines were refused in the last minute: try again in a minute")]
    Busy,
    /// Here nobody can let machines in.
    #[error(
        "the node at this address only mounts and lets no machines in: use the address of one that stores; the token is good \
         at each of these"
    )]
    NotHere,
    /// Here nobody can let machines in yet.
    #[error("the daemon at this address has not begun yet: see there with `dazzle status`, and try again when it has")]
    NotYet,
    /// Its name or address is in use.
    #[error("{0}")]
    Taken(String),
    /// The cluster cannot agree on anything now.
    #[error("the cluster cannot take machines in now: {0}. Then join again with the same token")]
    NoQuorum(String),
    /// Something else, in words.
    #[error("{0}")]
    Other(String),
}

impl JoinRefusal {
    /// Whether it takes a right proof to be told so.
    fn is_of_the_invited(&self) -> bool {
        use JoinRefusal::{NoQuorum, Other, Taken};
        matches!(self, JoinRefusal::Token(TokenError::Used) | Taken(_) | NoQuorum(_) | Other(_))
    }
}

fn versions_differ(theirs: u16, ours: u16) -> String {
    let older = if theirs < ours { "the Dazzle there" } else { "this one" };
    format!("the Dazzle there speaks join version {theirs}, this one {ours}: upgrade {older}")
}

/// Who decides about newcomers: checks the token, gives a number, signs, and tells the registry.
pub trait Admission: Send + Sync {
    /// Lets a machine in, or does not.
    fn admit(&self, request: JoinRequest) -> BoxFuture<'static, Result<Admitted, JoinRefusal>>;
    /// Tells what it would be like, or why it would not be let in.
    fn plan(&self, request: PlanRequest) -> BoxFuture<'static, Result<Planned, JoinRefusal>>;
}

/// What a machine has that was let in.
pub struct Joined {
    /// To be stored.
    pub identity: Identity,
    /// The CA, to be stored with its key by a machine that stores.
    pub authority: Option<Authority>,
    /// The redundancy class.
    pub class: Class,
    /// The other nodes and where they are.
    pub peers: Vec<(NodeId, String)>,
}

/// The machine that joins.
#[derive(Clone, Debug)]
pub struct Newcomer {
    /// What it is called.
    pub name: String,
    /// Where others will dial it: host and port.
    pub address: String,
    /// Whether it has disks.
    pub stores: bool,
}

impl Newcomer {
    /// What it says, with nothing to be signed.
    fn request(self, token: &Token, now: Date) -> JoinRequest {
        let Newcomer { name, address, stores } = self;
        let (invitation, proof, clock) = (token.invitation, token.proof, now.0);
        JoinRequest { name, address, stores, invitation, proof, clock, request: Vec::new() }
    }
}

impl JoinRequest {
    /// Whether a machine can be called what it says, where it says.
    fn verify(&self) -> Result<(), JoinRefusal> {
        let is_plain =
            |text: &str| !text.is_empty() && text.len() <= NAME_BYTES_MAX && !text.contains(char::is_control);
        if !is_plain(&self.name) {
            return Err(JoinRefusal::Nonsense(format!(
                "a machine's name has 1 to {NAME_BYTES_MAX} letters: give --name"
            )));
        }
        if !is_plain(&self.address) {
            let why = format!(
                "a machine's address has at most {NAME_BYTES_MAX} letters, as \"192.0.2.7:4747\": give --address"
            );
            return Err(JoinRefusal::Nonsense(why));
        }
        Ok(())
    }

    /// Whether its clock says what ours does, nearly.
    fn verify_clock(&self, now: Date) -> Result<(), JoinRefusal> {
        let close = now.0.abs_diff(self.clock) <= CLOCKS_APART_MAX.as_secs();
        if close { Ok(()) } else { Err(JoinRefusal::Clock { theirs: self.clock, ours: now.0 }) }
    }
}

/// Joins the cluster that made `token`, by the node at `address`. Whether the token has expired, the clock of that node says.
pub async fn join(address: &str, token: &Token, newcomer: Newcomer, now: Date) -> Result<Joined, JoinError> {
    let key = NodeKey::generate()?;
    let request = JoinRequest { request: key.request()?, ..newcomer.request(token, now) };
    let stream = reach(address, token).await?;
    let asked = timeout(JOIN_PATIENCE, ask::<Admitted>(address, stream, (JOIN_VERSION, &request))).await;
    let admitted = asked.unwrap_or(Err(JoinError::Undecided { address: address.to_owned() }))?;
    let authority_key = admitted.authority_key.as_ref();
    let authority = authority_key.map(|key| Authority::from_pem(&admitted.authority, &key.0)).transpose()?;
    let identity = Identity::from_pem(admitted.authority, admitted.certificate, key.pem())?;
    identity.check(now)?;
    let promised = NodeName { node: NodeId(admitted.node), cluster: admitted.cluster };
    if identity.fingerprint() != token.fingerprint || identity.name() != promised {
        return Err(TrustError::WrongAuthority.into());
    }
    Ok(Joined {
        identity,
        authority,
        class: admitted.class,
        peers: admitted.peers.into_iter().map(|(node, place)| (NodeId(node), place)).collect(),
    })
}

/// Asks what it would be like to join, with targets that have so many bytes free. Nothing is changed, and the token stays good.
pub async fn plan(
    address: &str,
    token: &Token,
    (newcomer, bytes_free): (Newcomer, Vec<u64>),
    now: Date,
) -> Result<Planned, JoinError> {
    let request = PlanRequest { join: newcomer.request(token, now), bytes_free };
    let stream = reach(address, token).await?;
    let asked = timeout(JOIN_PATIENCE, ask(address, stream, (PLAN_VERSION, &request))).await;
    match asked.map_err(|_| NetworkError::TimedOut { address: address.to_owned() })? {
        Err(JoinError::Refused(JoinRefusal::Version { theirs: PLAN_VERSION, .. })) => {
            let old = "the Dazzle at this address tells no plans yet: upgrade it, or join without --plan";
            Err(JoinRefusal::Other(old.into()).into())
        }
        answer => answer,
    }
}

/// A connection to a machine of the cluster that made `token`, which has proven to be one.
async fn reach(address: &str, token: &Token) -> Result<Dialled, JoinError> {
    let unresolved = || NetworkError::Unresolved { address: address.to_owned(), why: "no name server answers".into() };
    let places = timeout(REACH_PATIENCE, dialling::resolve(address)).await.map_err(|_| unresolved())??;
    let timed_out = || NetworkError::TimedOut { address: address.to_owned() };
    let connecting = dialling::connect_to_any(address, places);
    let stream = timeout(REACH_PATIENCE, connecting).await.map_err(|_| timed_out())??;
    // Which node answers does not matter; whose it is, the verifier sees.
    let anybody = ServerName::try_from("join.dazzle").expect("letters and a dot make a DNS name");
    let silent = || NetworkError::Silent { address: address.to_owned(), seconds: REACH_PATIENCE.as_secs() };
    let connector = joiner(token.fingerprint)?;
    let encrypting = dialling::encrypt(address, stream, &connector, anybody);
    Ok(timeout(REACH_PATIENCE, encrypting).await.map_err(|_| silent())??)
}

async fn ask<T: DeserializeOwned>(
    address: &str,
    mut stream: Dialled,
    (version, request): (u16, &impl Serialize),
) -> Result<T, JoinError> {
    let failed = |error: io::Error| JoinError::from(NetworkError::of(address, &error));
    send_as(&mut stream, version, request).await.map_err(failed)?;
    let answer = receive::<Result<T, JoinRefusal>>(&mut stream, ANSWER_BYTES_MAX).await.map_err(failed)?;
    Ok(answer.flatten()?)
}

/// The listener's part: bounds what strangers can make it do, and asks.
pub(super) struct Door {
    admission: Option<Arc<dyn Admission>>,
    attempts: Mutex<Attempts>,
    turns: Semaphore,
}

impl Door {
    /// A door that `admission` opens; without, it stays shut.
    pub(super) fn new(admission: Option<Arc<dyn Admission>>) -> Door {
        Door { admission, attempts: Mutex::default(), turns: Semaphore::new(JOINS_MAX) }
    }

    /// Answers one machine that was heard, when it is its turn.
    pub(super) async fn answer(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        heard: Result<Heard, JoinRefusal>,
        now: Duration,
    ) -> io::Result<()> {
        let turn = self.turns.acquire().await;
        match heard {
            Ok(Heard::Join(request)) => send(&mut stream, &self.decide(now, self.consider(request)).await).await?,
            Ok(Heard::Plan(request)) => send(&mut stream, &self.decide(now, self.foresee(request)).await).await?,
            Err(refusal) => send(&mut stream, &Err::<Admitted, _>(refusal)).await?,
        }
        drop(turn);
        // Whoever asked closes first, so that the answer is not lost with the connection.
        let _ = timeout(HEAR_PATIENCE, stream.read(&mut [0])).await;
        Ok(())
    }

    async fn decide<T>(
        &self,
        now: Duration,
        considering: impl Future<Output = Result<T, JoinRefusal>>,
    ) -> Result<T, JoinRefusal> {
        let attempts = || self.attempts.lock().expect("no panic while attempts are counted");
        if !attempts().allow(now) {
            return Err(JoinRefusal::Busy);
        }
        let answer = considering.await;
        // Machines that come with what they need may come as fast as they like; strangers keep nobody out.
        if answer.as_ref().is_err_and(JoinRefusal::is_of_the_invited) {
            attempts().note(now);
        }
        answer
    }

    async fn consider(&self, request: JoinRequest) -> Result<Admitted, JoinRefusal> {
        request.verify()?;
        request.verify_clock(Date::now())?;
        match &self.admission {
            Some(admission) => admission.admit(request).await,
            None => Err(JoinRefusal::NotHere),
        }
    }

    async fn foresee(&self, request: PlanRequest) -> Result<Planned, JoinRefusal> {
        request.join.verify()?;
        request.join.verify_clock(Date::now())?;
        match &self.admission {
            Some(admission) => admission.plan(request).await,
            None => Err(JoinRefusal::NotHere),
        }
    }
}

/// What a machine wants that comes with a token.
pub(super) enum Heard {
    Join(JoinRequest),
    Plan(PlanRequest),
}

/// When machines were refused.
#[derive(Debug, Default)]
struct Attempts(VecDeque<Duration>);

impl Attempts {
    /// Whether one more is looked at.
    fn allow(&mut self, now: Duration) -> bool {
        while self.0.front().is_some_and(|then| now.saturating_sub(*then) >= ATTEMPTS_SPAN) {
            self.0.pop_front();
        }
        self.0.len() < ATTEMPTS_MAX
    }

    fn note(&mut self, now: Duration) {
        self.0.push_back(now);
    }
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> io::Result<()> {
    send_as(stream, JOIN_VERSION, message).await
}

async fn send_as(stream: &mut (impl AsyncWrite + Unpin), version: u16, message: &impl Serialize) -> io::Result<()> {
    let message = postcard::to_stdvec(message).expect("messages have no form that cannot be encoded");
    stream.write_all(&(message.len() as u32).to_le_bytes()).await?;
    stream.write_all(&version.to_le_bytes()).await?;
    stream.write_all(&message).await?;
    stream.flush().await
}

/// What a machine wants, or why that is nothing.
pub(super) async fn hear(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Result<Heard, JoinRefusal>> {
    let message =
        receive_as(stream, REQUEST_BYTES_MAX, |version| [JOIN_VERSION, PLAN_VERSION].contains(&version)).await?;
    Ok(message.and_then(|(version, message)| match version {
        PLAN_VERSION => decode(&message).map(Heard::Plan),
        _ => decode(&message).map(Heard::Join),
    }))
}

/// One message of at most `bytes_max`, or why it is none.
async fn receive<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
    bytes_max: usize,
) -> io::Result<Result<T, JoinRefusal>> {
    let message = receive_as(stream, bytes_max, |version| version == JOIN_VERSION).await?;
    Ok(message.and_then(|(_, message)| decode(&message)))
}

/// One message of a version that is spoken, with that.
async fn receive_as(
    stream: &mut (impl AsyncRead + Unpin),
    bytes_max: usize,
    is_spoken: impl Fn(u16) -> bool,
) -> io::Result<Result<(u16, Vec<u8>), JoinRefusal>> {
    let length = stream.read_u32_le().await? as usize;
    let version = stream.read_u16_le().await?;
    if !is_spoken(version) {
        // Who asked an end of another version reads no further than that either, and says the same the other way about.
        return Ok(Err(JoinRefusal::Version { theirs: version, ours: JOIN_VERSION }));
    }
    if length > bytes_max {
        return Ok(Err(JoinRefusal::Garbled));
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(Ok((version, message)))
}

fn decode<T: DeserializeOwned>(message: &[u8]) -> Result<T, JoinRefusal> {
    postcard::from_bytes(message).map_err(|_| JoinRefusal::Garbled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_looked_at_after_ten_refusals_in_a_minute() {
        let mut attempts = Attempts::default();
        let at = Duration::from_secs;
        for second in 0..10 {
            assert!(attempts.allow(at(second)) && attempts.allow(at(second)));
            attempts.note(at(second));
        }
        assert!(!attempts.allow(at(59)));
        assert!(attempts.allow(at(60)));
        attempts.note(at(60));
        assert!(!attempts.allow(at(60)) && attempts.allow(at(61)));
    }
}
