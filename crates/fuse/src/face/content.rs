//! Open files and their bytes. Awaits.
//!
//! The kernel's page cache keeps its pages from one open to the next (KEEP_CACHE): as long as the client has given nothing up
//! since, every change of them passes through this kernel. O_DIRECT is the kernel's own affair: it reads and writes past its
//! pages by the same requests. It also sends the FSYNC that a write with O_SYNC or O_DSYNC owes, behind the last WRITE of that
//! call.
//!
//! What is opened to append goes past the pages, too (DIRECT_IO): through them the kernel sends a write that begins within a
//! page it has not as two WRITEs, and another machine may append between these. Behind such a write it sends no FSYNC, and
//! it takes no capabilities away: a file that has some is appended to through its pages.

use bytes::Bytes;
use client::{Allocate, ClientError, SeekKind, WriteAt};
use protocol::file::{Attributes, Kind, SetAttributes};
use protocol::id::InodeId;
use protocol::manager::{CloneRange, ManagerError};

use super::access::{self, Due};
use super::names::check_name;
use super::translation::{OpenFlags, allocate_mode};
use super::under_way::{Found, Use};
use super::{Call, Outcome, Shared};
use crate::abi::fopen;
use crate::attributes::Opened;
use crate::operation::{CopyFileRange, CopyReply, Create, LockOwner, Read, Release, Write};
use crate::{Errno, reply};

/// The most that one COPY_FILE_RANGE with the narrow reply copies: whole pages that 32 bits can count.
const NARROW_COPY_MAX: u64 = 0xffff_f000;
/// `O_EXCL`.
const EXCLUSIVE: u32 = 0o200;

// The kinds of lseek(2) that reach a file system.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// What becomes of the pages that the kernel has of a file when it is opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pages {
    Keep,
    Drop,
}

impl Call {
    pub(super) async fn open(self, open_flags: u32) -> Outcome {
        let flags = OpenFlags(open_flags);
        let given_up = self.client().given_up();
        let keeps = self.client().keeps_pages(self.inode);
        let mut attributes = self.client().open_to(self.inode, flags.first_use()).await?;
        // What was given up in between others may have written.
        let pages = if keeps && self.client().given_up() == given_up { Pages::Keep } else { Pages::Drop };
        // A read that managers do not know of yet counts, too.
        self.shared.access_times.overlay(&mut attributes);
        let past_pages = flags.appends() && !self.may_have_capabilities().await;
        let opened = self.opened(pages, past_pages);
        match access::due(&attributes, flags, self.shared.now()) {
            Due::Never => {}
            Due::Now => self.touch(),
            Due::WithRead => self.shared.access_times.opened(opened.handle),
        }
        Ok(reply::opened(self.unique, &opened))
    }

    pub(super) async fn create(self, create: Create) -> Outcome {
        check_name(&create.name)?;
        let new = self.new_inode(Kind::File, create.mode, create.umask);
        match self.client().create_open(self.inode, create.name, new).await {
            Ok(attributes) => Ok(self.created(attributes, OpenFlags(create.open_flags))),
            // The kernel thought the name free. It has not checked whether the caller may open what is there, so that is
            // not done here; ESTALE makes it look again.
            Err(ClientError::Manager(ManagerError::Exists)) if create.open_flags & EXCLUSIVE == 0 => Err(Errno::ESTALE),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn tmpfile(self, create: Create) -> Outcome {
        let new = self.new_inode(Kind::File, create.mode, create.umask);
        let attributes = self.client().create_unnamed(self.inode, new).await?;
        Ok(self.created(attributes, OpenFlags(create.open_flags)))
    }

    fn created(&self, attributes: Attributes, flags: OpenFlags) -> crate::Frame {
        let opened = self.opened(Pages::Keep, flags.appends());
        reply::created(self.unique, &self.named(attributes), &opened)
    }

    /// The kernel takes a file's capabilities away when something is written to its pages, and not past them.
    async fn may_have_capabilities(&self) -> bool {
        let found = self.client().xattr(self.inode, Bytes::from_static(b"security.capability")).await;
        !matches!(found, Err(ClientError::Manager(ManagerError::NoAttribute)))
    }

    fn opened(&self, pages: Pages, past_pages: bool) -> Opened {
        let keep = if pages == Pages::Keep { fopen::KEEP_CACHE } else { 0 };
        let direct = if past_pages { fopen::DIRECT_IO } else { 0 };
        Opened { handle: self.shared.handle(past_pages), flags: keep | direct, backing: 0 }
    }

    pub(super) async fn release(self, release: Release) -> Outcome {
        self.shared.access_times.take(release.handle);
        let mut owners = self.shared.holders.release(self.inode, release.handle);
        owners.extend(release.unlock_flock.filter(|owner| !owners.contains(owner)));
        for owner in owners {
            self.release_owner(owner).await;
        }
        self.client().close(self.inode).await;
        Ok(self.done())
    }

    pub(super) async fn flush(self, lock_owner: LockOwner) -> Outcome {
        let flushed = self.client().flush(self.inode).await;
        if self.shared.holders.flush(self.inode, lock_owner) {
            self.release_owner(lock_owner).await;
        }
        flushed?;
        Ok(self.done())
    }

    /// Locks that cannot be given back now go with this node's lease: closing must not fail for them.
    async fn release_owner(&self, owner: LockOwner) {
        let owner = self.client().lock_owner(owner.0);
        let _ = self.client().release_owner(self.inode, owner).await;
    }

    pub(super) async fn read(self, read: Read) -> Outcome {
        if self.shared.access_times.take(read.handle) {
            self.touch();
        }
        let is_past = read.handle.passes_pages() || OpenFlags(read.open_flags).is_direct();
        let used = if is_past { Use::ReadPast } else { Use::Read };
        let mut request =
            self.shared.under_way.begin(self.inode, used, (read.offset, read.size), self.shared.host.now());
        if let Some(owed) = request.take_owed() {
            return Ok(reply::data(self.unique, vec![owed]).guarded(request));
        }
        let mut pieces = loop {
            let pieces = self.client().read_for(&request, self.inode, read.offset, read.size).await?;
            match request.outcome() {
                Found::Answered => break pieces,
                Found::Spoiled => {}
                // Should a program hear of it after all, it tries again.
                Found::Refused => return Ok(reply::error(self.unique, Errno::EINTR).guarded(request)),
            }
        };
        // The kernel refuses a longer answer than it asked for.
        let mut room = read.size as usize;
        for piece in &mut pieces {
            piece.truncate(room);
            room -= piece.len();
        }
        Ok(reply::data(self.unique, pieces).guarded(request))
    }

    pub(super) async fn write(self, write: Write) -> Outcome {
        if write.kill_suidgid {
            self.shared.shed_set_id(self.inode).await?;
        }
        let appends = OpenFlags(write.open_flags).appends() && !write.from_page_cache;
        let at = if appends { WriteAt::End } else { WriteAt::Offset(write.offset) };
        let size = u32::try_from(write.data.len()).expect("a request has less than 4 GiB");
        let used = if write.from_page_cache { Use::WriteBack } else { Use::Write };
        let request = self.shared.under_way.begin(self.inode, used, (write.offset, size), self.shared.host.now());
        let offset = self.client().write(self.inode, at, write.data).await?;
        // No page is dropped that is still to be written.
        if used == Use::Write {
            self.shared.drop_mistaken_pages(self.inode, (write.offset, size), offset).await;
        }
        if appends && OpenFlags(write.open_flags).syncs() {
            self.client().fsync(self.inode, true).await?;
        }
        // What is owed is not waited for: the READ for it may wait for a page that this call has locked.
        self.shared.under_way.answers_arrive(self.inode).await;
        Ok(reply::written(self.unique, size).guarded(request))
    }

    pub(super) async fn fsync(self, data_only: bool) -> Outcome {
        self.client().fsync(self.inode, data_only).await?;
        Ok(self.done())
    }

    pub(super) async fn syncfs(self) -> Outcome {
        self.client().sync_all().await?;
        Ok(self.done())
    }

    pub(super) async fn fallocate(self, offset: u64, length: u64, mode: u32) -> Outcome {
        let mode = allocate_mode(mode)?;
        self.shed_as_plain_user(self.inode).await?;
        let change = self.shared.under_way.change(self.inode, self.shared.host.now());
        self.client().allocate(self.inode, Allocate { mode, offset, length }).await?;
        self.shared.under_way.answers_arrive(self.inode).await;
        Ok(self.done().guarded(change))
    }

    pub(super) async fn lseek(self, offset: u64, whence: u32) -> Outcome {
        let kind = match whence {
            SEEK_DATA => SeekKind::Data,
            SEEK_HOLE => SeekKind::Hole,
            _ => return Err(Errno::EINVAL),
        };
        let found = self.client().seek(self.inode, offset, kind).await?;
        Ok(reply::offset(self.unique, found))
    }

    pub(super) async fn copy_file_range(self, copy: CopyFileRange) -> Outcome {
        if copy.flags != 0 {
            return Err(Errno::EINVAL);
        }
        let target = InodeId(copy.target_node.0);
        self.shed_as_plain_user(target).await?;
        let length = match copy.reply {
            CopyReply::Narrow => copy.length.min(NARROW_COPY_MAX),
            CopyReply::Wide => copy.length,
        };
        let range = CloneRange {
            source: self.inode,
            source_offset: copy.source_offset,
            target,
            target_offset: copy.target_offset,
            length,
        };
        let change = self.shared.under_way.change(target, self.shared.host.now());
        let copied = self.client().copy_range(range).await?;
        self.shared.under_way.answers_arrive(target).await;
        Ok(reply::copied(self.unique, copied, copy.reply).guarded(change))
    }

    /// With these requests the kernel does not say whether set-id bits must go, as it does with WRITE; the caller's
    /// capabilities are unknown, so whoever is not root counts as having none.
    async fn shed_as_plain_user(&self, inode: InodeId) -> Result<(), Errno> {
        if self.caller.uid == 0 { Ok(()) } else { self.shared.shed_set_id(inode).await }
    }

    /// The file was read: its access time moves.
    fn touch(&self) {
        if self.shared.access_times.read(self.inode, self.shared.now()) {
            let shared = self.shared.clone();
            self.shared.host.spawn(async move { shared.tell_access_times().await });
        }
    }
}

impl Shared {
    /// Tells managers of access times, as long as there are any.
    async fn tell_access_times(&self) {
        loop {
            self.host.sleep(access::TELL_AFTER).await;
            let inodes = self.access_times.to_tell();
            if inodes.is_empty() {
                return;
            }
            self.tell_waiting(inodes).await;
        }
    }

    /// Tells managers of the access times of these files.
    pub(super) async fn tell_waiting(&self, inodes: Vec<InodeId>) {
        for inode in inodes {
            self.tell_access_time(inode).await;
            self.access_times.settle(inode);
        }
    }

    async fn tell_access_time(&self, inode: InodeId) {
        // A file that is gone, or out of reach, needs no access time.
        let Ok(known) = self.client.attributes(inode).await else { return };
        let Some(accessed) = self.access_times.waiting(inode).filter(|&time| time > known.accessed) else { return };
        let set = SetAttributes::read_at(accessed, known.changed);
        let _ = self.client.set_attributes(inode, set).await;
    }
}
