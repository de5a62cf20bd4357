//! Calling clients: for what others want, for what a writer knows better, and after a take-over for what they hold
//! (`docs/tokens.md`). Awaits; `tokens` decides.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use event_listener::Event;
use futures_util::future::{join_all, select};
use host::{Address, Moment, NodeId, Port, Unreachable};
use protocol::file::{Attributes, Kind};
use protocol::id::{InodeId, LogId, SlotId};
use protocol::intention::Admission;
use protocol::manager::{Answer, ManagerAnswer, ManagerError, ManagerReply, ManagerRequest, has_content};
use protocol::maps::{LogState, Maps, Writer};
use protocol::storage::Durability;
use protocol::token::{Ahead, CLIENT_PORT, Claims, ClientAnswer, ClientRequest, Grant, Token, TokenMode};

use crate::manager::Manager;
use crate::needs;
use crate::ops::{Done, Operation};
use crate::sealing::seal;
use crate::start::StartError;
use crate::state::SlotState;
use crate::tokens::{Call, CallBack, GrantBeside, Refusal, SlotTokens, What};

/// How long a request waits for what others hold; then it is answered [`ManagerError::Held`], and asked again.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(10);
/// Between two attempts at the same call-back.
const PAUSE: Duration = Duration::from_millis(100);
/// How often an answer that a writer knows better is asked for.
const LOOKS_MAX: u32 = 100;

/// Something was given up, or somebody stopped waiting.
#[derive(Default)]
pub(crate) struct Moved(Event);

impl Moved {
    pub(crate) fn notify(&self) {
        self.0.notify(usize::MAX);
    }
}

/// A call-back under way; dropped without an answer, it comes to nothing.
struct Calling<'a> {
    manager: &'a Manager,
    begun: CallBack,
    /// The slot's stay here that the call-back belongs to.
    stay: u64,
    is_answered: bool,
}

impl Calling<'_> {
    /// Does something about the call-back, unless its slot has gone since.
    fn end(&self, end: impl FnOnce(&mut SlotTokens, CallBack)) {
        self.manager.table.with(self.begun.call.slot, |state| {
            if state.stay == self.stay {
                end(&mut state.tokens, self.begun);
            }
        });
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.end(SlotTokens::not_given_up);
        }
        self.manager.tokens_moved.notify();
    }
}

/// A client in line for an inode; dropped, it leaves.
struct InLine<'a> {
    manager: &'a Manager,
    node: u32,
    inode: InodeId,
    is_served: bool,
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        if !self.is_served {
            self.manager.table.with(self.inode.slot(), |state| state.tokens.leave(self.node, self.inode));
            self.manager.tokens_moved.notify();
        }
    }
}

impl Manager {
    // ---- granting ----

    /// Grants `node` a token of a file, after calling back what stands against it; tells the file as it then is.
    pub(crate) async fn token(&self, node: u32, inode: InodeId, mode: TokenMode) -> ManagerAnswer {
        let granted = self.grant_file(node, inode, mode).await?;
        let look = Operation::Asked(ManagerRequest::Attributes(inode));
        let (done, end) = self.perform(node, look, Durability::Replicated).await?;
        let Done::Answer(answer) = done else { unreachable!("an asked operation ends with an answer") };
        let journal = end.unwrap_or_else(|| self.writer.end());
        Ok(ManagerReply { granted: Some(granted), ..self.reply_at(answer, journal) })
    }

    /// Opens a file, and grants `node` a token of it as [`Manager::token`] does: whoever opens a file is about to use it.
    pub(crate) async fn open_and_keep(&self, node: u32, inode: InodeId, mode: TokenMode) -> ManagerAnswer {
        // Opening says what is wrong; and what others hold it can do without.
        let granted = self.grant_file(node, inode, mode).await.ok();
        let open = ManagerRequest::Open { inode, keep: None };
        let reply = self.ask(node, Operation::Asked(open)).await?;
        Ok(ManagerReply { granted: reply.granted.or(granted), ..reply })
    }

    /// Looks a name up, or a directory itself, and grants `node` the names of the directory where that can be at once. It is
    /// granted before it is looked: who changes the directory behind the look calls it back.
    pub(crate) async fn look_and_keep(&self, node: u32, directory: InodeId, name: Option<Bytes>) -> ManagerAnswer {
        let (slot, now) = (directory.slot(), self.host().now());
        let grant = |state: &mut SlotState| state.tokens.grant_beside(node, directory, TokenMode::Names, now);
        let granted = self.table.with(slot, grant).flatten();
        let is_itself = name.is_none();
        let look = match name {
            Some(name) => ManagerRequest::Lookup { directory, name },
            None => ManagerRequest::Attributes(directory),
        };
        let answer = self.ask(node, Operation::Asked(look)).await;
        let Some(grant) = granted else { return answer };
        let is_directory = |answer: &Answer| match answer {
            Answer::Attributes(attributes) | Answer::Entry(attributes, _) if is_itself => {
                attributes.kind == Kind::Directory
            }
            _ => true,
        };
        match answer {
            Ok(reply) if is_directory(&reply.answer) => {
                Ok(ManagerReply { granted: reply.granted.or(Some(Grant::Inode(grant.token))), ..reply })
            }
            // An error has no room for it.
            untold => {
                self.ungrant(node, grant);
                untold
            }
        }
    }

    fn ungrant(&self, node: u32, grant: GrantBeside) {
        self.table.with(grant.token.inode.slot(), |state| state.tokens.ungrant(node, grant));
        self.tokens_moved.notify();
    }

    /// Grants `node` a file that it just made, if nobody has touched that since.
    pub(crate) async fn keep_made(&self, node: u32, made: &Attributes) -> Option<Grant> {
        let (inode, now) = (made.inode, self.host().now());
        let grant = |state: &mut SlotState| state.tokens.grant_beside(node, inode, TokenMode::Write, now);
        let grant = self.table.with(inode.slot(), grant).flatten()?;
        let look = Operation::Asked(ManagerRequest::Attributes(inode));
        match self.perform(node, look, Durability::Replicated).await {
            Ok((Done::Answer(Answer::Attributes(by_now) | Answer::Entry(by_now, _)), _)) if by_now == *made => {
                Some(Grant::Inode(grant.token))
            }
            _ => {
                self.ungrant(node, grant);
                None
            }
        }
    }

    /// Grants `node` an inode that is a file, after calling back what stands against it.
    async fn grant_file(&self, node: u32, inode: InodeId, mode: TokenMode) -> Result<Grant, ManagerError> {
        let look = Operation::Asked(ManagerRequest::Attributes(inode));
        match self.perform(node, look, Durability::Replicated).await? {
            (Done::Answer(Answer::Attributes(attributes) | Answer::Entry(attributes, _)), _)
                if !has_content(attributes.kind) =>
            {
                Err(ManagerError::Unsupported)
            }
            _ => self.grant(node, inode, mode).await,
        }
    }

    async fn grant(&self, node: u32, inode: InodeId, mode: TokenMode) -> Result<Grant, ManagerError> {
        let deadline = self.host().now() + WAIT_MAX;
        let mut line = InLine { manager: self, node, inode, is_served: false };
        let slot = inode.slot();
        loop {
            let moved = self.tokens_moved.0.listen();
            // It may have come, or come back, since the request was looked at: what clients hold of it is not heard yet.
            let granted = self.table.with(slot, |state| match state.tokens.is_unheard() {
                true => Err(ManagerError::NotMine),
                false => Ok(state.tokens.grant(slot, node, inode, mode)),
            });
            match granted.ok_or(ManagerError::NotMine)?? {
                Ok(grant) => {
                    line.is_served = true;
                    self.tokens_moved.notify();
                    return Ok(grant);
                }
                Err(Refusal::Call(call)) => self.call_back(call, deadline).await?,
                Err(Refusal::Wait) => {
                    if self.host().now() >= deadline {
                        return Err(ManagerError::Held);
                    }
                    select(moved, pin!(self.host().sleep_until(deadline))).await;
                }
            }
        }
    }

    // ---- calling back ----

    /// Calls back what stands against an operation in slots of this manager. What is granted meanwhile, to others, is
    /// met when the operation is carried out.
    pub(crate) async fn make_way_here(&self, admission: &Admission, deadline: Moment) -> Result<(), ManagerError> {
        for need in &admission.needs {
            loop {
                let met = self.table.with(need.slot, |state| match state.tokens.is_unheard() {
                    true => Err(ManagerError::NotMine),
                    false => Ok(needs::meet(state, need, admission.node)),
                });
                match met.ok_or(ManagerError::NotMine)?? {
                    Ok(()) => break,
                    Err(_) if self.host().now() >= deadline => return Err(ManagerError::Held),
                    Err(call) => self.call_back(call, deadline).await?,
                }
            }
        }
        Ok(())
    }

    /// Calls something back, or waits while somebody else does. Then: look again. Fails when its time is over.
    pub(crate) async fn call_back(&self, call: Call, deadline: Moment) -> Result<(), ManagerError> {
        let moved = self.tokens_moved.0.listen();
        let now = self.host().now();
        let begun = self.table.with(call.slot, |state| (state.tokens.begin(call, now), state.stay));
        let (begun, stay) = begun.ok_or(ManagerError::NotMine)?;
        let Some(begun) = begun else {
            if self.host().now() >= deadline {
                return Err(ManagerError::Held);
            }
            // It may have ended between the look and this one: then there is nothing to wait for.
            let soon = deadline.min(self.host().now() + PAUSE);
            select(moved, pin!(self.host().sleep_until(soon))).await;
            return Ok(());
        };
        let life = self.life(call.holder);
        let mut calling = Calling { manager: self, begun, stay, is_answered: false };
        let request = match call.what {
            What::Slot => ClientRequest::GiveUpSlot { slot: call.slot, life, version: begun.version },
            What::Inode(token, keep) => {
                ClientRequest::GiveUp { inode: token.inode, life, version: begun.version, keep }
            }
        };
        loop {
            let remaining = match (self.ask_client(call.holder, request.clone()).await, call.what) {
                (Ok(ClientAnswer::Tokens(tokens)), What::Slot) => Some(tokens),
                (Ok(ClientAnswer::Done), What::Inode(..)) => Some(Vec::new()),
                // What a dead client held is void, all of it.
                _ if self.is_over(call.holder, life).await => {
                    self.void(call.slot, call.holder, life);
                    return Ok(());
                }
                _ => None,
            };
            if let Some(mut tokens) = remaining {
                tokens.retain(|token| token.inode.slot() == call.slot);
                calling.end(|held, begun| held.given_up(begun, &tokens));
                calling.is_answered = true;
                return Ok(());
            }
            if self.host().now() + PAUSE >= deadline {
                return Err(ManagerError::Held);
            }
            self.host().sleep(PAUSE).await;
        }
    }

    async fn ask_client(&self, node: u32, request: ClientRequest) -> Result<ClientAnswer, Unreachable> {
        let to = Address { node: NodeId(node), port: Port(CLIENT_PORT) };
        self.host().call(to, request).await
    }

    /// The log of the client's life to which what `node` holds was granted.
    fn life(&self, node: u32) -> LogId {
        self.lives.lock().expect("nobody panics over lives").get(&node).copied().unwrap_or_default()
    }

    /// The client on `node` writes this log; `end` does away with what is void by that, before anything of it is heard. It is
    /// told the life that was known before. False where a later one is known.
    fn begin_life(&self, node: u32, log: LogId, end: impl FnOnce(LogId)) -> bool {
        let mut lives = self.lives.lock().expect("nobody panics over lives");
        let known = lives.get(&node).copied().unwrap_or_default();
        if log < known {
            return false;
        }
        lives.insert(node, log);
        end(known);
        true
    }

    /// Does something to what a life has, unless a later one was heard of: none begins meanwhile. Whether it was done.
    fn in_life(&self, node: u32, life: LogId, act: impl FnOnce()) -> bool {
        let lives = self.lives.lock().expect("nobody panics over lives");
        let is_known = lives.get(&node).copied().unwrap_or_default() == life;
        if is_known {
            act();
        }
        is_known
    }

    /// Whether a life of the client on `node` is over, and everything that it recorded is known here (DESIGN §5: a slot
    /// grants nothing that stands against what a dead client held until then). Who never said which log it writes is no
    /// client that could be called.
    async fn is_over(&self, node: u32, life: LogId) -> bool {
        let known = match life == LogId::default() {
            true => self.cluster.newest().await,
            false => self.cluster.knowing(life).await,
        };
        let Ok(maps) = known else { return false };
        let mut of_life = logs(&maps, node).filter(|&(log, _)| log <= life || life == LogId::default());
        of_life.all(|(_, state)| matches!(state, LogState::Sealed(_))) && self.replay_sealed().await.is_ok()
    }

    /// What a life that is over held of a slot is void. The next life may hold something by now: that stays.
    fn void(&self, slot: SlotId, node: u32, life: LogId) {
        self.in_life(node, life, || {
            self.table.with(slot, |state| state.tokens.forget(node));
        });
    }

    /// A client says which log it writes: whatever its node wrote before is at its end. What an earlier life said may come
    /// behind the first word of a later one, and is not heard.
    pub(crate) async fn greet(&self, node: u32, log: LogId) -> ManagerAnswer {
        let _one = self.greeting.lock().await;
        let known = self.life(node);
        if log < known {
            return Err(ManagerError::Failed(format!("a later life of node {node} was heard before")));
        }
        if log != known {
            let failed = |error: StartError| ManagerError::Failed(error.to_string());
            let maps = self.cluster.knowing(log).await.map_err(|error| failed(error.into()))?;
            let earlier = logs(&maps, node).filter(|&(earlier, _)| earlier < log);
            for (earlier, _) in earlier.filter(|(_, state)| !matches!(state, LogState::Sealed(_))) {
                seal(&self.cluster, earlier).await.map_err(failed)?;
            }
            self.cluster.refresh().await.map_err(|error| failed(error.into()))?;
            self.replay_sealed().await.map_err(failed)?;
            self.begin_life(node, log, |ended| {
                // What it claimed meanwhile stays.
                if ended != known {
                    return;
                }
                for &slot in self.table.mine().iter() {
                    self.table.with(slot, |state| state.tokens.forget(node));
                }
                if known != LogId::default() {
                    self.forget_uses(node);
                }
            });
            self.tokens_moved.notify();
        }
        Ok(self.reply_at(Answer::Done, self.writer.end()))
    }

    /// A client says that it has nothing of these any more.
    pub(crate) fn forgotten(&self, node: u32, tokens: &[Token]) -> ManagerReply {
        for &token in tokens {
            self.table.with(token.inode.slot(), |state| state.tokens.forgotten(node, token));
        }
        self.tokens_moved.notify();
        self.reply_at(Answer::Done, self.writer.end())
    }

    /// How many tokens clients hold, for all that is known here: what they take of memory goes by that.
    pub fn tokens_held(&self) -> u64 {
        let held = |slot: &SlotId| self.table.with(*slot, |state| state.tokens.held()).unwrap_or_default();
        self.table.mine().iter().map(held).sum()
    }

    /// Locks and open files of clients whose log is sealed are nobody's. Their tokens go when somebody wants them.
    pub(crate) fn forget_dead(&self) {
        let maps = self.cluster.maps();
        let lives = self.lives.lock().expect("nobody panics over lives").clone();
        for (node, life) in lives.into_iter().filter(|&(_, log)| maps.is_over(log)) {
            self.in_life(node, life, || self.forget_uses(node));
        }
        self.askings.forget(|log| maps.is_over(log));
    }

    fn forget_uses(&self, node: u32) {
        self.locks.forget_node(node);
        let mine = self.table.mine();
        let used = |slot: &&SlotId| self.table.with(**slot, |state| state.opens.forget(node)) == Some(true);
        let used: Vec<SlotId> = mine.iter().filter(used).copied().collect();
        if !used.is_empty() {
            // What it held open without a name is freed.
            self.untidy.lock().expect("nobody panics over arrivals").insert(0, (self.host().now(), used));
        }
    }

    // ---- what a writer knows better ----

    /// As [`Manager::freshen`], of a file in anybody's slot.
    pub(crate) async fn freshen_anywhere(&self, node: u32, told: Attributes) -> Result<Attributes, ManagerError> {
        let slot = told.inode.slot();
        if self.manages(slot) {
            return self.freshen(node, told).await;
        }
        let owner = NodeId(self.cluster.maps().slot(slot.0).node);
        match self.call_manager(owner, ManagerRequest::Freshen(node, told)).await? {
            Answer::Attributes(fresh) if fresh.inode == told.inode => Ok(fresh),
            other => Err(ManagerError::Failed(format!("a manager answered with {other:?}"))),
        }
    }

    /// Attributes that another manager found here a while ago, as they are by now: since then a writer may have stored
    /// what it had.
    pub(crate) async fn freshen_for(&self, node: u32, told: Attributes) -> Result<Attributes, ManagerError> {
        let told = self.stored_attributes(node, told).await?;
        self.freshen(node, told).await
    }

    /// The attributes of a file as they are, with what the one who writes it has not stored yet.
    pub(crate) async fn freshen(&self, node: u32, told: Attributes) -> Result<Attributes, ManagerError> {
        let (inode, mut attributes) = (told.inode, told);
        let deadline = self.host().now() + WAIT_MAX;
        for _ in 0..LOOKS_MAX {
            let writer = self.table.with(inode.slot(), |state| match state.tokens.is_unheard() {
                true => Err(ManagerError::NotMine),
                false => Ok(state.tokens.writer_besides(inode, node)),
            });
            let Some(writer) = writer.ok_or(ManagerError::NotMine)?? else { return Ok(attributes) };
            let life = self.life(writer);
            match self.ask_client(writer, ClientRequest::Attributes { inode, life }).await {
                Ok(ClientAnswer::Ahead(Some(ahead))) => {
                    lay_over(&mut attributes, ahead);
                    return Ok(attributes);
                }
                Ok(ClientAnswer::Ahead(None)) => return self.stored_attributes(node, attributes).await,
                _ if self.is_over(writer, life).await => self.void(inode.slot(), writer, life),
                _ if self.host().now() >= deadline => break,
                _ => self.host().sleep(PAUSE).await,
            }
            attributes = self.stored_attributes(node, attributes).await?;
        }
        Err(ManagerError::Held)
    }

    /// What was told of a file, with what a writer may have stored since. All else stays: that belongs to what was done.
    async fn stored_attributes(&self, node: u32, told: Attributes) -> Result<Attributes, ManagerError> {
        let look = Operation::Asked(ManagerRequest::Attributes(told.inode));
        match self.perform(node, look, Durability::Replicated).await {
            Ok((Done::Answer(Answer::Attributes(by_now) | Answer::Entry(by_now, _)), _)) => {
                let Attributes { size, stored, modified, changed, .. } = by_now;
                Ok(Attributes { size, stored, modified, changed, ..told })
            }
            Ok((other, _)) => unreachable!("attributes are answered with attributes, not {other:?}"),
            Err(ManagerError::Stale | ManagerError::NotFound) => Ok(told),
            Err(error) => Err(error),
        }
    }

    // ---- after a take-over ----

    /// Hears from all living clients what they hold of the slots that arrived. False when one of them died meanwhile.
    pub(crate) async fn hear_claims(&self, slots: &[SlotId]) -> Result<bool, StartError> {
        let mut slots = slots.to_vec();
        slots.sort_unstable();
        let mut heard = BTreeMap::new();
        let living = |maps: &Maps| -> BTreeSet<u32> {
            let open = maps.logs.values().filter(|entry| entry.writer == Writer::Client);
            open.filter(|entry| !matches!(entry.state, LogState::Sealed(_))).map(|entry| entry.node).collect()
        };
        loop {
            let maps = self.cluster.refresh().await?;
            // Who was heard may be the next life of one that was taken for living until then: the log of that one is owed.
            // Only maps in which the log of the next life has begun tell so.
            heard.retain(|_, log| *log < maps.next_log);
            let left: Vec<u32> = living(&maps).into_iter().filter(|node| !heard.contains_key(node)).collect();
            if left.is_empty() {
                return Ok(!self.is_owed_deltas(&maps));
            }
            let calls = left.into_iter().map(async |node| (node, self.claims_of(node, &slots).await));
            let answers = join_all(calls).await;
            let all_heard = answers.iter().all(|(_, life)| life.is_some());
            heard.extend(answers.into_iter().filter_map(|(node, life)| Some((node, life?))));
            let died = maps.dead_logs().any(|log| maps.logs[&log].writer == Writer::Client);
            if died {
                return Ok(false);
            }
            if !all_heard {
                self.host().sleep(PAUSE).await;
            }
        }
    }

    /// Hears all that the client on a node holds, in place of what it said before; the log of the life that said it.
    async fn claims_of(&self, node: u32, arrived: &[SlotId]) -> Option<LogId> {
        let (mut from, mut life) = (InodeId(0), None);
        loop {
            let request = ClientRequest::Claim { slots: arrived.to_vec(), from };
            let Ok(ClientAnswer::Claim(log, claims)) = self.ask_client(node, request).await else { return None };
            if *life.get_or_insert(log) != log {
                return None;
            }
            // Of the slots that were here before, too, what an earlier life held is void, once all that it recorded is known.
            let before = self.life(node);
            if before != LogId::default() && before < log && self.greet(node, log).await.is_err() {
                return None;
            }
            if from == InodeId(0) && !self.hear_anew(node, (before, log), arrived) {
                return None;
            }
            let rest = claims.rest;
            if !self.in_life(node, log, || self.hear(node, claims, arrived)) {
                return None;
            }
            match rest {
                Some(next) if next > from => from = next,
                Some(_) => return None,
                None => return Some(log),
            }
        }
    }

    /// False where another life was heard meanwhile than the one `before`.
    fn hear_anew(&self, node: u32, (before, log): (LogId, LogId), arrived: &[SlotId]) -> bool {
        // Its first word may come later, and must not void what it just claimed.
        let mut ended = LogId::default();
        if !self.begin_life(node, log, |life| ended = life) || (ended != before && ended != log) {
            return false;
        }
        self.locks.disclaim(arrived, node);
        for &slot in arrived {
            self.table.with(slot, |state| state.opens.forget(node));
        }
        true
    }

    fn hear(&self, node: u32, claims: Claims, arrived: &[SlotId]) {
        let Claims { slots, tokens, opens, locks, rest: _ } = claims;
        let has_arrived = |slot: SlotId| arrived.binary_search(&slot).is_ok();
        for slot in slots.into_iter().filter(|&slot| has_arrived(slot)) {
            self.table.with(slot, |state| state.tokens.claim_slot(node));
        }
        for token in tokens.into_iter().filter(|token| has_arrived(token.inode.slot())) {
            self.table.with(token.inode.slot(), |state| state.tokens.claim(node, token));
        }
        for inode in opens.into_iter().filter(|inode| has_arrived(inode.slot())) {
            self.table.with(inode.slot(), |state| state.opens.open(inode, node));
        }
        for (inode, lock) in locks.into_iter().filter(|(inode, _)| has_arrived(inode.slot())) {
            self.locks.claim(node, inode, lock);
        }
    }
}

/// The logs that clients on `node` wrote, and write.
fn logs(maps: &Maps, node: u32) -> impl Iterator<Item = (LogId, LogState)> {
    let of_node = maps.logs.iter().filter(move |(_, entry)| entry.node == node && entry.writer == Writer::Client);
    of_node.map(|(&log, entry)| (log, entry.state))
}

fn lay_over(attributes: &mut Attributes, ahead: Ahead) {
    attributes.size = ahead.size;
    attributes.stored += ahead.grown;
    if let Some(written) = ahead.written {
        attributes.modified = attributes.modified.max(written);
        attributes.changed = attributes.changed.max(written);
    }
}
