//! From an opcode and its arguments to an `Operation`: one line per opcode, one function where a line does not do.

use bytes::Bytes;

use crate::abi::{self, fattr, opcode};
use crate::negotiate::{InitFlags, Offer};
use crate::operation::{
    CopyFileRange, CopyReply, Create, Forget, Handle, Ioctl, Lock, LockFamily, LockKind, LockOwner, LockRequest,
    NodeId, Operation, Read, Release, SetAttributes, SetTime, Time, Unique, Write,
};
use crate::request::{Body, Reason};

type Decoded<T> = Result<T, Reason>;

/// Decodes the arguments of `number`; an opcode from the future is `Unknown`, not an error.
pub(crate) fn operation(number: u32, body: &mut Body) -> Decoded<Operation> {
    Ok(match number {
        opcode::LOOKUP => Operation::Lookup { name: name(body)? },
        opcode::FORGET => Operation::Forget { lookups: body.structure::<abi::ForgetIn>()?.nlookup },
        opcode::GETATTR => getattr(body)?,
        opcode::SETATTR => Operation::Setattr(set_attributes(&body.structure()?)),
        opcode::READLINK => Operation::Readlink,
        opcode::SYMLINK => Operation::Symlink { name: name(body)?, target: body.string()? },
        opcode::MKNOD => mknod(body)?,
        opcode::MKDIR => mkdir(body)?,
        opcode::UNLINK => Operation::Unlink { name: name(body)? },
        opcode::RMDIR => Operation::Rmdir { name: name(body)? },
        opcode::RENAME => rename(body)?,
        opcode::LINK => link(body)?,
        opcode::OPEN => open(body)?,
        opcode::READ => Operation::Read(read(body)?),
        opcode::WRITE => Operation::Write(write(body)?),
        opcode::STATFS => Operation::Statfs,
        opcode::RELEASE => Operation::Release(release(body)?),
        opcode::FSYNC => fsync(body)?,
        opcode::SETXATTR => setxattr(body)?,
        opcode::GETXATTR => getxattr(body)?,
        opcode::LISTXATTR => Operation::Listxattr { size: body.structure::<abi::GetxattrIn>()?.size },
        opcode::REMOVEXATTR => Operation::Removexattr { name: body.string()? },
        opcode::FLUSH => flush(body)?,
        opcode::INIT => init(body)?,
        opcode::OPENDIR => Operation::Opendir { open_flags: body.structure::<abi::OpenIn>()?.flags },
        opcode::READDIR => Operation::Readdir(read(body)?),
        opcode::RELEASEDIR => Operation::Releasedir(release(body)?),
        opcode::FSYNCDIR => fsyncdir(body)?,
        opcode::GETLK => Operation::Getlk(lock_request(body)?),
        opcode::SETLK => Operation::Setlk(lock_request(body)?),
        opcode::SETLKW => Operation::Setlkw(lock_request(body)?),
        opcode::ACCESS => Operation::Access { mask: body.structure::<abi::AccessIn>()?.mask },
        opcode::CREATE => Operation::Create(create(body)?),
        opcode::INTERRUPT => Operation::Interrupt { target: Unique(body.structure::<abi::InterruptIn>()?.unique) },
        opcode::BMAP => bmap(body)?,
        opcode::DESTROY => Operation::Destroy,
        opcode::IOCTL => Operation::Ioctl(ioctl(body)?),
        opcode::POLL => poll(body)?,
        opcode::NOTIFY_REPLY => notify_reply(body)?,
        opcode::BATCH_FORGET => batch_forget(body)?,
        opcode::FALLOCATE => fallocate(body)?,
        opcode::READDIRPLUS => Operation::Readdirplus(read(body)?),
        opcode::RENAME2 => rename2(body)?,
        opcode::LSEEK => lseek(body)?,
        opcode::COPY_FILE_RANGE => copy_file_range(body, CopyReply::Narrow)?,
        opcode::SETUPMAPPING | opcode::REMOVEMAPPING => Operation::Mapping,
        opcode::SYNCFS => Operation::Syncfs,
        opcode::TMPFILE => Operation::Tmpfile(tmpfile(body)?),
        opcode::STATX => statx(body)?,
        opcode::COPY_FILE_RANGE_64 => copy_file_range(body, CopyReply::Wide)?,
        unknown => Operation::Unknown { opcode: unknown },
    })
}

/// One component of a path. The kernel splits paths, so a slash here is its error or ours.
fn name(body: &mut Body) -> Decoded<Bytes> {
    let name = body.string()?;
    if name.contains(&b'/') { Err(Reason::Slash) } else { Ok(name) }
}

fn init(body: &mut Body) -> Decoded<Operation> {
    let input: abi::InitIn = body.structure()?;
    let mut flags = u64::from(input.flags);
    if flags & abi::init::INIT_EXT != 0 {
        let more: abi::InitExtIn = body.structure()?;
        flags |= u64::from(more.flags2) << 32;
    }
    Ok(Operation::Init(Offer {
        major: input.major,
        minor: input.minor,
        read_ahead_bytes_max: input.max_readahead,
        flags: InitFlags(flags),
    }))
}

fn batch_forget(body: &mut Body) -> Decoded<Operation> {
    let input: abi::BatchForgetIn = body.structure()?;
    let count = input.count as usize;
    // Checked before anything is allocated: the count is whatever the sender wrote.
    if body.items_left::<abi::ForgetOne>() < count {
        return Err(Reason::Short);
    }
    let mut forgets = Vec::with_capacity(count);
    for _ in 0..count {
        let one: abi::ForgetOne = body.item()?;
        forgets.push(Forget { node: NodeId(one.nodeid), lookups: one.nlookup });
    }
    Ok(Operation::BatchForget { forgets })
}

fn getattr(body: &mut Body) -> Decoded<Operation> {
    let input: abi::GetattrIn = body.structure()?;
    let handle = given(input.getattr_flags & abi::GETATTR_FH, Handle(input.fh));
    Ok(Operation::Getattr { handle })
}

fn statx(body: &mut Body) -> Decoded<Operation> {
    let input: abi::StatxIn = body.structure()?;
    let handle = given(input.getattr_flags & abi::GETATTR_FH, Handle(input.fh));
    Ok(Operation::Statx { handle, flags: input.sx_flags, mask: input.sx_mask })
}

/// `value` if the flag that vouches for it is set.
fn given<T>(flag: u32, value: T) -> Option<T> {
    (flag != 0).then_some(value)
}

fn set_attributes(input: &abi::SetattrIn) -> SetAttributes {
    let has = |flag| input.valid & flag;
    let time = |seconds: u64, nanoseconds| Time { seconds: seconds.cast_signed(), nanoseconds };
    let moment = |set, now, to| given(has(set), if has(now) != 0 { SetTime::Now } else { SetTime::To(to) });
    SetAttributes {
        handle: given(has(fattr::FH), Handle(input.fh)),
        lock_owner: given(has(fattr::LOCKOWNER), LockOwner(input.lock_owner)),
        mode: given(has(fattr::MODE), input.mode),
        uid: given(has(fattr::UID), input.uid),
        gid: given(has(fattr::GID), input.gid),
        size: given(has(fattr::SIZE), input.size),
        accessed: moment(fattr::ATIME, fattr::ATIME_NOW, time(input.atime, input.atimensec)),
        modified: moment(fattr::MTIME, fattr::MTIME_NOW, time(input.mtime, input.mtimensec)),
        changed: given(has(fattr::CTIME), time(input.ctime, input.ctimensec)),
        kill_suidgid: has(fattr::KILL_SUIDGID) != 0,
    }
}

fn mknod(body: &mut Body) -> Decoded<Operation> {
    let input: abi::MknodIn = body.structure()?;
    Ok(Operation::Mknod { name: name(body)?, mode: input.mode, device: input.rdev, umask: input.umask })
}

fn mkdir(body: &mut Body) -> Decoded<Operation> {
    let input: abi::MkdirIn = body.structure()?;
    Ok(Operation::Mkdir { name: name(body)?, mode: input.mode, umask: input.umask })
}

fn rename(body: &mut Body) -> Decoded<Operation> {
    let input: abi::RenameIn = body.structure()?;
    Ok(Operation::Rename { new_parent: NodeId(input.newdir), name: name(body)?, new_name: name(body)?, flags: 0 })
}

fn rename2(body: &mut Body) -> Decoded<Operation> {
    let input: abi::Rename2In = body.structure()?;
    let new_parent = NodeId(input.newdir);
    Ok(Operation::Rename { new_parent, name: name(body)?, new_name: name(body)?, flags: input.flags })
}

fn link(body: &mut Body) -> Decoded<Operation> {
    let input: abi::LinkIn = body.structure()?;
    Ok(Operation::Link { source: NodeId(input.oldnodeid), name: name(body)? })
}

fn open(body: &mut Body) -> Decoded<Operation> {
    let input: abi::OpenIn = body.structure()?;
    Ok(Operation::Open { open_flags: input.flags })
}

fn create(body: &mut Body) -> Decoded<Create> {
    let input: abi::CreateIn = body.structure()?;
    Ok(create_named(&input, name(body)?))
}

/// The kernel names a temporary file "/", which no other name may be.
fn tmpfile(body: &mut Body) -> Decoded<Create> {
    let input: abi::CreateIn = body.structure()?;
    Ok(create_named(&input, body.string()?))
}

fn create_named(input: &abi::CreateIn, name: Bytes) -> Create {
    Create { name, open_flags: input.flags, mode: input.mode, umask: input.umask }
}

fn read(body: &mut Body) -> Decoded<Read> {
    let input: abi::ReadIn = body.structure()?;
    Ok(Read {
        handle: Handle(input.fh),
        offset: input.offset,
        size: input.size,
        lock_owner: given(input.read_flags & abi::READ_LOCKOWNER, LockOwner(input.lock_owner)),
        open_flags: input.flags,
    })
}

fn write(body: &mut Body) -> Decoded<Write> {
    let input: abi::WriteIn = body.structure()?;
    Ok(Write {
        handle: Handle(input.fh),
        offset: input.offset,
        data: body.data(input.size)?,
        lock_owner: given(input.write_flags & abi::WRITE_LOCKOWNER, LockOwner(input.lock_owner)),
        open_flags: input.flags,
        from_page_cache: input.write_flags & abi::WRITE_CACHE != 0,
        kill_suidgid: input.write_flags & abi::WRITE_KILL_SUIDGID != 0,
    })
}

fn release(body: &mut Body) -> Decoded<Release> {
    let input: abi::ReleaseIn = body.structure()?;
    Ok(Release {
        handle: Handle(input.fh),
        open_flags: input.flags,
        flush: input.release_flags & abi::RELEASE_FLUSH != 0,
        unlock_flock: given(input.release_flags & abi::RELEASE_FLOCK_UNLOCK, LockOwner(input.lock_owner)),
    })
}

fn flush(body: &mut Body) -> Decoded<Operation> {
    let input: abi::FlushIn = body.structure()?;
    Ok(Operation::Flush { handle: Handle(input.fh), lock_owner: LockOwner(input.lock_owner) })
}

fn fsync(body: &mut Body) -> Decoded<Operation> {
    let input: abi::FsyncIn = body.structure()?;
    let data_only = input.fsync_flags & abi::FSYNC_FDATASYNC != 0;
    Ok(Operation::Fsync { handle: Handle(input.fh), data_only })
}

fn fsyncdir(body: &mut Body) -> Decoded<Operation> {
    let input: abi::FsyncIn = body.structure()?;
    let data_only = input.fsync_flags & abi::FSYNC_FDATASYNC != 0;
    Ok(Operation::Fsyncdir { handle: Handle(input.fh), data_only })
}

fn setxattr(body: &mut Body) -> Decoded<Operation> {
    // Both forms start alike; only the handshake tells which one it is.
    let input: abi::SetxattrIn = if body.dialect.setxattr_extended {
        body.structure()?
    } else {
        let short: abi::SetxattrCompatIn = body.structure()?;
        abi::SetxattrIn { size: short.size, flags: short.flags, setxattr_flags: 0, padding: 0 }
    };
    Ok(Operation::Setxattr {
        name: body.string()?,
        value: body.data(input.size)?,
        flags: input.flags,
        kill_sgid: input.setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0,
    })
}

fn getxattr(body: &mut Body) -> Decoded<Operation> {
    let input: abi::GetxattrIn = body.structure()?;
    Ok(Operation::Getxattr { name: body.string()?, size: input.size })
}

fn lock_request(body: &mut Body) -> Decoded<LockRequest> {
    let input: abi::LkIn = body.structure()?;
    let kind = match input.lk.kind {
        abi::LOCK_READ => LockKind::Read,
        abi::LOCK_WRITE => LockKind::Write,
        abi::LOCK_UNLOCK => LockKind::Unlock,
        other => return Err(Reason::LockKind(other)),
    };
    let family = if input.lk_flags & abi::LK_FLOCK != 0 { LockFamily::Flock } else { LockFamily::Posix };
    let lock = Lock { start: input.lk.start, end: input.lk.end, kind, pid: input.lk.pid };
    Ok(LockRequest { handle: Handle(input.fh), owner: LockOwner(input.owner), lock, family })
}

fn bmap(body: &mut Body) -> Decoded<Operation> {
    let input: abi::BmapIn = body.structure()?;
    Ok(Operation::Bmap { block: input.block, block_size: input.blocksize })
}

fn ioctl(body: &mut Body) -> Decoded<Ioctl> {
    let input: abi::IoctlIn = body.structure()?;
    Ok(Ioctl {
        handle: Handle(input.fh),
        flags: input.flags,
        command: input.cmd,
        argument: input.arg,
        data: body.data(input.in_size)?,
        output_size: input.out_size,
    })
}

fn poll(body: &mut Body) -> Decoded<Operation> {
    let input: abi::PollIn = body.structure()?;
    let schedule_notify = input.flags & abi::POLL_SCHEDULE_NOTIFY != 0;
    Ok(Operation::Poll { handle: Handle(input.fh), kernel_handle: input.kh, events: input.events, schedule_notify })
}

fn notify_reply(body: &mut Body) -> Decoded<Operation> {
    let input: abi::NotifyRetrieveIn = body.structure()?;
    Ok(Operation::NotifyReply { offset: input.offset, data: body.data(input.size)? })
}

fn fallocate(body: &mut Body) -> Decoded<Operation> {
    let input: abi::FallocateIn = body.structure()?;
    let (offset, length) = (input.offset, input.length);
    Ok(Operation::Fallocate { handle: Handle(input.fh), offset, length, mode: input.mode })
}

fn lseek(body: &mut Body) -> Decoded<Operation> {
    let input: abi::LseekIn = body.structure()?;
    Ok(Operation::Lseek { handle: Handle(input.fh), offset: input.offset, whence: input.whence })
}

fn copy_file_range(body: &mut Body, reply: CopyReply) -> Decoded<Operation> {
    let input: abi::CopyFileRangeIn = body.structure()?;
    Ok(Operation::CopyFileRange(CopyFileRange {
        source: Handle(input.fh_in),
        source_offset: input.off_in,
        target_node: NodeId(input.nodeid_out),
        target: Handle(input.fh_out),
        target_offset: input.off_out,
        length: input.len,
        flags: input.flags,
        reply,
    }))
}
