//! The face that the kernel talks to: each request becomes calls of the client, and their outcome an answer.
//!
//! | file | it has |
//! |---|---|
//! | `names`, `attributes`, `content`, `directories`, `xattrs`, `locks`, `space` | the operations, by family; these await |
//! | `call_backs` | what the kernel is told to forget |
//! | `translation` | the kernel's numbers and the protocol's words |
//! | `errors` | which errno |
//! | `access` | access times, as `relatime` has them |
//! | `kept_listings` | of which directories the kernel may keep a listing |
//! | `kept_names` | how long the kernel may use names in directories that others use, too |
//! | `listings` | which listings are on their way to the kernel with names that it may use |
//! | `set_ids` | which files may have set-id bits |
//! | `holders`, `waits` | who may hold locks; who waits for one, and may be interrupted |
//! | `heritage` | what is left to the next process on the same mount |
//! | `under_way` | which pages requests under way may have locked |
//! | `ends` | where the kernel takes files to end |
//! | `told` | what the kernel was last told of directories and special files, which may be gone while someone uses them |
//!
//! The kernel's node numbers are inode numbers, the root's too. An inode number is never used twice, so the generation is
//! always 0, and nothing must be counted: FORGET has nothing to undo. Handles are numbers to tell open files apart.
//!
//! The kernel checks permissions (`default_permissions`, POSIX ACLs); the umask comes along, for a default ACL takes its
//! place, and the manager applies either.
//!
//! Answered with ENOSYS, so that the kernel does not ask again: OPENDIR (a directory needs no handle, since cookies say all;
//! the kernel then keeps listings, too: see `kept_listings`), ACCESS, POLL, BMAP. IOCTL has no
//! command that is known here (ENOTTY): attributes of `chattr` are not kept, and FICLONE never leaves the kernel.

mod access;
mod attributes;
mod call_backs;
mod content;
mod directories;
mod ends;
mod errors;
mod heritage;
mod holders;
mod kept_listings;
mod kept_names;
mod listings;
mod locks;
mod names;
mod set_ids;
mod space;
mod told;
mod translation;
mod under_way;
mod waits;
mod xattrs;

use std::fmt;
use std::future::{Future, ready};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

pub use call_backs::{Notifier, Told};
use client::{Above, Client};
pub use heritage::FaceHeritage;
use host::{BoxFuture, Host};
use kept_names::Leaving;
use protocol::file::{self, Caller, Time};
use protocol::id::InodeId;

use crate::attributes::{Attributes, Entry};
use crate::operation::{Handle, NodeId, Operation, Unique};
use crate::{Errno, Frame, Request, reply};

/// Answers the requests of one mount. Clones share everything.
#[derive(Clone)]
pub struct Face(Arc<Shared>);

/// What the calls of a mount share.
struct Shared {
    client: Client,
    host: Host,
    handles: AtomicU64,
    access_times: access::AccessTimes,
    holders: holders::Holders,
    set_ids: set_ids::SetIds,
    told: told::Told,
    kept_listings: kept_listings::KeptListings,
    kept_names: kept_names::KeptNames,
    listings: Arc<listings::Listings>,
    waits: waits::Waits,
    forgotten: call_backs::Forgotten,
    under_way: Arc<under_way::UnderWay>,
    /// The way to this face's kernel, once it is mounted.
    notifier: OnceLock<Arc<dyn Notifier>>,
}

/// In the number of a handle: what is open by it goes past the kernel's pages.
const PASSES_PAGES: u64 = 1 << 63;

impl Handle {
    /// Whether what is open by it goes past the kernel's pages, whatever the flags say.
    fn passes_pages(self) -> bool {
        self.0 & PASSES_PAGES != 0
    }
}

/// One request under way: what it is named, about which inode, and for whom.
struct Call {
    shared: Arc<Shared>,
    unique: Unique,
    inode: InodeId,
    caller: Caller,
    /// How much the client had given up when it came: what is told may be from then.
    begun: u64,
}

/// What an operation comes to.
type Outcome = Result<Frame, Errno>;

impl Face {
    /// A face of `client`.
    pub fn new(client: Client, host: Host) -> Face {
        Face(Arc::new(Shared {
            client,
            host,
            handles: AtomicU64::new(1),
            access_times: access::AccessTimes::default(),
            holders: holders::Holders::default(),
            set_ids: set_ids::SetIds::default(),
            told: told::Told::default(),
            kept_listings: kept_listings::KeptListings::default(),
            kept_names: kept_names::KeptNames::default(),
            listings: Arc::default(),
            waits: waits::Waits::default(),
            forgotten: call_backs::Forgotten::default(),
            under_way: Arc::default(),
            notifier: OnceLock::new(),
        }))
    }

    /// The answer to a request; none to those that the kernel wants no answer to. May be dropped at any time.
    pub fn answer(&self, request: Request) -> BoxFuture<'static, Option<Frame>> {
        let unique = request.unique;
        let call = Call {
            shared: self.0.clone(),
            unique,
            inode: InodeId(request.node.0),
            caller: Caller { uid: request.uid, gid: request.gid },
            begun: self.0.client.given_up(),
        };
        match request.operation {
            Operation::Lookup { name } => boxed(unique, call.lookup(name)),
            Operation::Getattr { .. } => boxed(unique, call.getattr()),
            Operation::Setattr(set) => boxed(unique, call.setattr(set)),
            Operation::Statx { .. } => boxed(unique, call.statx()),
            Operation::Readlink => boxed(unique, call.readlink()),
            Operation::Symlink { name, target } => boxed(unique, call.symlink(name, target)),
            Operation::Mknod { name, mode, device, umask } => boxed(unique, call.mknod(name, mode, device, umask)),
            Operation::Mkdir { name, mode, umask } => boxed(unique, call.mkdir(name, mode, umask)),
            Operation::Unlink { name } => boxed(unique, call.unlink(name)),
            Operation::Rmdir { name } => boxed(unique, call.rmdir(name)),
            Operation::Rename { name, new_parent, new_name, flags } => {
                boxed(unique, call.rename(name, (new_parent, new_name), flags))
            }
            Operation::Link { source, name } => boxed(unique, call.link(source, name)),
            Operation::Open { open_flags } => boxed(unique, call.open(open_flags)),
            Operation::Create(create) => boxed(unique, call.create(create)),
            Operation::Tmpfile(create) => boxed(unique, call.tmpfile(create)),
            Operation::Read(read) => boxed(unique, call.read(read)),
            Operation::Write(write) => boxed(unique, call.write(write)),
            Operation::Statfs => boxed(unique, call.statfs()),
            Operation::Release(release) => boxed(unique, call.release(release)),
            Operation::Flush { lock_owner, .. } => boxed(unique, call.flush(lock_owner)),
            Operation::Fsync { data_only, .. } => boxed(unique, call.fsync(data_only)),
            Operation::Fsyncdir { .. } => boxed(unique, call.fsyncdir()),
            Operation::Syncfs => boxed(unique, call.syncfs()),
            Operation::Setxattr { name, value, flags, kill_sgid } => {
                boxed(unique, call.setxattr(name, value, flags, kill_sgid))
            }
            Operation::Getxattr { name, size } => boxed(unique, call.getxattr(name, size)),
            Operation::Listxattr { size } => boxed(unique, call.listxattr(size)),
            Operation::Removexattr { name } => boxed(unique, call.removexattr(name)),
            Operation::Readdir(read) => boxed(unique, call.readdir(read)),
            Operation::Readdirplus(read) => boxed(unique, call.readdirplus(read)),
            Operation::Getlk(request) => boxed(unique, call.getlk(request)),
            Operation::Setlk(request) => boxed(unique, call.setlk(request)),
            Operation::Setlkw(request) => boxed(unique, call.setlkw(request)),
            Operation::Fallocate { offset, length, mode, .. } => boxed(unique, call.fallocate(offset, length, mode)),
            Operation::Lseek { offset, whence, .. } => boxed(unique, call.lseek(offset, whence)),
            Operation::CopyFileRange(copy) => boxed(unique, call.copy_file_range(copy)),
            at_once => Box::pin(ready(self.answer_at_once(call.inode, unique, at_once))),
        }
    }

    /// The kernel of this mount, for the client to tell what it must forget.
    pub fn kernel(&self, notifier: Arc<dyn Notifier>) -> Arc<dyn Above> {
        assert!(self.0.notifier.set(notifier).is_ok(), "a face is mounted once");
        Arc::new(call_backs::Kernel(self.0.clone()))
    }

    /// Tells managers what they are told late, for a clean stop; no request may come any more.
    pub fn settle(&self) -> BoxFuture<'static, ()> {
        let shared = self.0.clone();
        Box::pin(async move { shared.tell_waiting(shared.access_times.to_tell()).await })
    }

    /// What needs no client.
    fn answer_at_once(&self, inode: InodeId, unique: Unique, operation: Operation) -> Option<Frame> {
        let errno = match operation {
            Operation::Forget { .. } => {
                self.0.forgotten_by_kernel(&[inode]);
                return None;
            }
            Operation::BatchForget { forgets } => {
                let inodes: Vec<InodeId> = forgets.iter().map(|forget| InodeId(forget.node.0)).collect();
                self.0.forgotten_by_kernel(&inodes);
                return None;
            }
            Operation::Interrupt { target } => {
                self.0.waits.interrupt(target);
                return None;
            }
            Operation::NotifyReply { .. } => return None,
            Operation::Destroy | Operation::Releasedir(_) => return Some(reply::done(unique)),
            Operation::Ioctl(_) => Errno::ENOTTY,
            // A handshake comes once, and not to a face.
            Operation::Init(_) => Errno::EPROTO,
            _ => Errno::ENOSYS,
        };
        Some(reply::error(unique, errno))
    }
}

/// An operation as the edge polls it. Each has a box of its own size.
fn boxed(unique: Unique, outcome: impl Future<Output = Outcome> + Send + 'static) -> BoxFuture<'static, Option<Frame>> {
    Box::pin(async move { Some(outcome.await.unwrap_or_else(|errno| reply::error(unique, errno))) })
}

impl Shared {
    fn now(&self) -> Time {
        Time(self.host.wall().0)
    }

    fn handle(&self, passes_pages: bool) -> Handle {
        let number = self.handles.fetch_add(1, Ordering::Relaxed);
        Handle(if passes_pages { number | PASSES_PAGES } else { number })
    }

    /// The kernel has nothing of these any more.
    fn forgotten_by_kernel(&self, inodes: &[InodeId]) {
        self.told.forget(inodes);
        self.kept_listings.forget(inodes);
    }

    /// Attributes for the kernel, and how long it may use them: where others change them only behind this client, or do not
    /// change them before it `keeps` them no more. All that it is told of passes here.
    fn present(&self, mut attributes: file::Attributes, keeps: bool) -> (Attributes, Duration) {
        self.access_times.overlay(&mut attributes);
        self.set_ids.pass(&attributes);
        self.forget_departing(self.told.pass(&attributes));
        // Else others ask no kernel before they change what this one knows.
        let valid_max = translation::attributes_valid(&attributes);
        let valid = match self.forgets_names() {
            true if keeps || self.client.is_alone_for(attributes.inode, Duration::ZERO) => valid_max,
            false if self.client.is_alone_for(attributes.inode, translation::SHORTLY_VALID) => {
                valid_max.min(translation::SHORTLY_VALID)
            }
            _ => Duration::ZERO,
        };
        (translation::attributes(&attributes), valid)
    }
}

impl Call {
    fn client(&self) -> &Client {
        &self.shared.client
    }

    fn done(&self) -> Frame {
        reply::done(self.unique)
    }

    fn entry(&self, attributes: file::Attributes) -> Frame {
        reply::entry(self.unique, &self.named(attributes))
    }

    /// An inode for the kernel, under a name in this directory. Of one that it may hear of for the first time it is not given
    /// attributes that are only kept: it could not be told to forget them while they are on their way.
    fn named(&self, attributes: file::Attributes) -> Entry {
        self.named_for(attributes, self.names_valid(Leaving::Now))
    }

    fn named_for(&self, attributes: file::Attributes, name_valid: Duration) -> Entry {
        let node = NodeId(attributes.inode.0);
        let (attributes, attributes_valid) = self.shared.present(attributes, false);
        Entry { node, generation: 0, attributes, name_valid, attributes_valid }
    }

    /// How long the kernel may use names in this directory.
    fn names_valid(&self, leaving: Leaving) -> Duration {
        match self.shared.forgets_names() {
            true if self.client().is_alone_for(self.inode, Duration::ZERO) && self.keeps_names() => {
                translation::NAME_VALID
            }
            true => {
                let now = self.shared.host.now();
                self.shared.kept_names.valid(self.inode, (now, leaving), || self.keeps_names())
            }
            false if self.client().is_alone_for(self.inode, translation::SHORTLY_VALID) => translation::SHORTLY_VALID,
            _ => Duration::ZERO,
        }
    }

    /// Whether what this call was told of a directory is as good as what is told now, and stays so until the kernel is told
    /// to forget it.
    fn keeps_names(&self) -> bool {
        // In this order: what was given up and granted anew in between shows.
        self.client().keeps_names(self.inode) && self.client().given_up() == self.begun
    }
}

impl fmt::Debug for Face {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Face of {:?}", self.0.client)
    }
}

/// Locks a short critical section. Poison only says that another thread panicked, and its panic is report enough.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod tests {
    use protocol::file::{Attributes, Kind, Time};
    use protocol::id::InodeId;

    /// A file of a byte, made long ago.
    pub(crate) fn file() -> Attributes {
        Attributes {
            inode: InodeId(7),
            kind: Kind::File,
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            device: 0,
            size: 1,
            stored: 1,
            accessed: Time(0),
            modified: Time(0),
            changed: Time(0),
            created: Time(0),
            version: 1,
        }
    }
}
