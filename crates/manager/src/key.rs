//! The key space of a slot (`docs/format-slot.md`): keys that sort so that what is used together lies together.

use protocol::address::LogAddress;
use protocol::id::{InodeId, LogId, StripeNumber};
use protocol::intention::IntentionId;
use protocol::once::CallId;

use crate::extent::SharedId;

/// A record's key.
pub(crate) type Key = Vec<u8>;

const HEAD: u8 = 1;
const APPLIED: u8 = 2;
const LIVE: u8 = 3;
const SHARED: u8 = 4;
const PLACE: u8 = 5;
const ORPHAN: u8 = 6;
const PREPARED: u8 = 7;
const DECIDED: u8 = 8;
const RENAMES: u8 = 9;
/// Records of before, which go with their logs.
const ANSWERED: u8 = 10;
const GIVEN_UP: u8 = 11;
const ANSWER: u8 = 12;
const INODE: u8 = 16;
const ENTRY: u8 = 17;
const EXTENT: u8 = 18;
const XATTR: u8 = 19;
const PART: u8 = 20;
const HOLDING: u8 = 21;

/// Bytes of a key before its rest.
const PREFIX_SIZE: usize = 9;

/// The keys from the first to before the second.
pub(crate) type KeyRange = (Key, Key);

fn key(inode: u64, kind: u8, rest: &[&[u8]]) -> Key {
    let mut key = Vec::with_capacity(PREFIX_SIZE + rest.iter().map(|part| part.len()).sum::<usize>());
    key.extend_from_slice(&inode.to_be_bytes());
    key.push(kind);
    rest.iter().for_each(|part| key.extend_from_slice(part));
    key
}

fn all(inode: u64, kind: u8) -> KeyRange {
    (key(inode, kind, &[]), key(inode, kind + 1, &[]))
}

fn place(kind: u8, log: LogId, stripe: StripeNumber, offset: u32) -> Key {
    key(0, kind, &[&log.0.to_be_bytes(), &stripe.0.to_be_bytes(), &offset.to_be_bytes()])
}

/// The slot's counters.
pub(crate) fn head() -> Key {
    key(0, HEAD, &[])
}

/// Up to where the deltas of `log` are applied.
pub(crate) fn applied(log: LogId) -> Key {
    key(0, APPLIED, &[&log.0.to_be_bytes()])
}

/// All *applied* records.
pub(crate) fn applied_all() -> KeyRange {
    all(0, APPLIED)
}

/// The client's log that is named by a key of what was applied of it, or of its calls.
pub(crate) fn writer_log(key: &[u8]) -> LogId {
    LogId(number(key, PREFIX_SIZE))
}

/// Live bytes in a stripe.
pub(crate) fn live(log: LogId, stripe: StripeNumber) -> Key {
    key(0, LIVE, &[&log.0.to_be_bytes(), &stripe.0.to_be_bytes()])
}

/// A shared virtual extent.
pub(crate) fn shared(id: SharedId) -> Key {
    place(SHARED, id.log, id.stripe, id.offset)
}

/// Shared virtual extents behind one.
pub(crate) fn shared_behind(id: SharedId) -> KeyRange {
    let next = SharedId { offset: id.offset.saturating_add(1), ..id };
    (shared(next), all(0, SHARED).1)
}

/// Which shared virtual extent begins at `address` now.
pub(crate) fn shared_place(address: LogAddress) -> Key {
    place(PLACE, address.log, address.stripe, address.offset)
}

/// The places at which shared virtual extents may begin that lie within `address`.
pub(crate) fn shared_places(address: LogAddress) -> KeyRange {
    (shared_place(address), place(PLACE, address.log, address.stripe, address.offset.saturating_add(address.length)))
}

/// An inode without a name.
pub(crate) fn orphan(inode: InodeId) -> Key {
    key(0, ORPHAN, &[&inode.0.to_be_bytes()])
}

/// All inodes without a name.
pub(crate) fn orphans() -> KeyRange {
    all(0, ORPHAN)
}

/// The inode that an orphan's key names.
pub(crate) fn orphan_inode(key: &[u8]) -> InodeId {
    InodeId(number(key, PREFIX_SIZE))
}

/// An intention's part in this slot, while its outcome is not known.
pub(crate) fn prepared(id: IntentionId) -> Key {
    key(0, PREPARED, &[&id.log.0.to_be_bytes(), &id.number.to_be_bytes()])
}

/// An intention that took effect, and that this slot coordinated.
pub(crate) fn decided(id: IntentionId) -> Key {
    key(0, DECIDED, &[&id.log.0.to_be_bytes(), &id.number.to_be_bytes()])
}

/// Before which number a client has given all its calls up that take effect once.
pub(crate) fn given_up(client: LogId) -> Key {
    key(0, GIVEN_UP, &[&client.0.to_be_bytes()])
}

/// What was answered to such a call.
pub(crate) fn answer(call: CallId) -> Key {
    key(0, ANSWER, &[&call.client.0.to_be_bytes(), &call.number.to_be_bytes()])
}

/// What was answered to such calls of a client, before this one.
pub(crate) fn answers_before(call: CallId) -> KeyRange {
    (answer(CallId { number: 0, ..call }), answer(call))
}

/// All records of calls that take effect once.
pub(crate) fn calls_all() -> KeyRange {
    (key(0, ANSWERED, &[]), key(0, ANSWER + 1, &[]))
}

/// How often a directory came to lie in another one; in the root's slot.
pub(crate) fn renames() -> Key {
    key(0, RENAMES, &[])
}

/// Whether a record says something of an intention.
pub(crate) fn is_of_intention(key: &[u8]) -> bool {
    matches!(subject(key), Some(Subject::Prepared(_) | Subject::Decided(_)))
}

/// No key of an inode is less, and all keys of what a slot keeps beside its inodes are.
pub(crate) fn first_of_inodes() -> Key {
    key(1, 0, &[])
}

/// An inode's attributes and inline content.
pub(crate) fn inode(inode: InodeId) -> Key {
    key(inode.0, INODE, &[])
}

/// A name in a directory.
pub(crate) fn entry(directory: InodeId, cookie: u64) -> Key {
    key(directory.0, ENTRY, &[&cookie.to_be_bytes()])
}

/// The names of a directory behind a cookie.
pub(crate) fn entries_behind(directory: InodeId, cookie: u64) -> KeyRange {
    (entry(directory, cookie.saturating_add(1)), all(directory.0, ENTRY).1)
}

/// An extent of a file, by where it ends.
pub(crate) fn extent(inode: InodeId, end: u64) -> Key {
    key(inode.0, EXTENT, &[&end.to_be_bytes()])
}

/// The extents of a file that reach behind `offset`.
pub(crate) fn extents_behind(inode: InodeId, offset: u64) -> KeyRange {
    (extent(inode, offset.saturating_add(1)), all(inode.0, EXTENT).1)
}

/// An extended attribute.
pub(crate) fn xattr(inode: InodeId, name: &[u8]) -> Key {
    key(inode.0, XATTR, &[name])
}

/// All extended attributes of an inode.
pub(crate) fn xattrs(inode: InodeId) -> KeyRange {
    all(inode.0, XATTR)
}

/// The part of a split directory that ends with this cookie.
pub(crate) fn part(directory: InodeId, last: u64) -> Key {
    key(directory.0, PART, &[&last.to_be_bytes()])
}

/// The parts of a directory that end with this cookie or behind it.
pub(crate) fn parts_from(directory: InodeId, cookie: u64) -> KeyRange {
    (part(directory, cookie), all(directory.0, PART).1)
}

/// What the names of a split directory come to in a slot that is not its inode's.
pub(crate) fn holding(directory: InodeId) -> Key {
    key(directory.0, HOLDING, &[])
}

/// The number in the key of an entry (its cookie), an extent (its end) or a part (its last cookie).
pub(crate) fn rest_number(key: &[u8]) -> u64 {
    number(key, PREFIX_SIZE)
}

/// The name in an extended attribute's key.
pub(crate) fn xattr_name(key: &[u8]) -> &[u8] {
    key.get(PREFIX_SIZE..).unwrap_or_default()
}

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The slot's counters.
    Head,
    /// How far a log's deltas are applied.
    Applied,
    /// Live bytes of a stripe.
    Live(LogId, StripeNumber),
    /// A shared virtual extent.
    Shared(SharedId),
    /// Where one lies.
    Place,
    /// An inode without a name.
    Orphan(InodeId),
    /// An intention whose outcome is not known here.
    Prepared(IntentionId),
    /// One that took effect.
    Decided(IntentionId),
    /// How often directories moved.
    Renames,
    /// What is known of a client's calls.
    Calls(LogId),
    /// An inode.
    Inode(InodeId),
    /// A name in this directory, with this cookie.
    Entry(InodeId, u64),
    /// An extent of this inode that ends there.
    Extent(InodeId, u64),
    /// An extended attribute of this inode.
    Xattr(InodeId),
    /// The part of this directory that ends with this cookie.
    Part(InodeId, u64),
    /// What the names of this directory come to here.
    Holding(InodeId),
}

/// What the record with this key is about, if it is a key that we make.
pub(crate) fn subject(key: &[u8]) -> Option<Subject> {
    let inode = InodeId(number(key, 0));
    let kind = *key.get(PREFIX_SIZE - 1)?;
    let (log, stripe) = (LogId(number(key, PREFIX_SIZE)), StripeNumber(number(key, PREFIX_SIZE + 8)));
    let offset = || Some(u32::from_be_bytes(key.get(PREFIX_SIZE + 16..PREFIX_SIZE + 20)?.try_into().ok()?));
    Some(match (inode.0, kind) {
        (0, HEAD) => Subject::Head,
        (0, APPLIED) => Subject::Applied,
        (0, LIVE) => Subject::Live(log, stripe),
        (0, SHARED) => Subject::Shared(SharedId { log, stripe, offset: offset()? }),
        (0, PLACE) => Subject::Place,
        (0, PREPARED) => Subject::Prepared(intention(key)?),
        (0, DECIDED) => Subject::Decided(intention(key)?),
        (0, RENAMES) => Subject::Renames,
        (0, ANSWERED | GIVEN_UP | ANSWER) => Subject::Calls(log),
        (0, ORPHAN) => Subject::Orphan(InodeId(number(key, PREFIX_SIZE))),
        (1.., INODE) => Subject::Inode(inode),
        (1.., ENTRY) => Subject::Entry(inode, number(key, PREFIX_SIZE)),
        (1.., EXTENT) => Subject::Extent(inode, number(key, PREFIX_SIZE)),
        (1.., XATTR) => Subject::Xattr(inode),
        (1.., PART) => Subject::Part(inode, number(key, PREFIX_SIZE)),
        (1.., HOLDING) => Subject::Holding(inode),
        _ => return None,
    })
}

fn intention(key: &[u8]) -> Option<IntentionId> {
    let whole = key.len() == PREFIX_SIZE + 16;
    whole.then(|| IntentionId { log: LogId(number(key, PREFIX_SIZE)), number: number(key, PREFIX_SIZE + 8) })
}

/// Eight bytes at `at`; zero when the key is too short, which no key that we made is.
fn number(key: &[u8], at: usize) -> u64 {
    key.get(at..at + 8).map_or(0, |bytes| u64::from_be_bytes(bytes.try_into().expect("eight bytes")))
}
