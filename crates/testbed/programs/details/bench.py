"""What the checks stand on: their register, expected errors, other users, and system calls that Python does not have."""

import ctypes
import errno
import os
import signal
import struct
import traceback

CHECKS = []
CHILDREN = set()

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

AT_FDCWD, AT_SYMLINK_FOLLOW = -100, 0x400
RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_COLLAPSE, FALLOC_ZERO = 1, 2, 8, 16
O_TMPFILE = 0o20000000 | os.O_DIRECTORY
FICLONE = 0x40049409


class Skipped(Exception):
    """This machine cannot run the check; the reason is the message."""


def check(function):
    """Registers a check; its subject is its module's name."""
    subject = function.__module__.rsplit(".", 1)[-1]
    CHECKS.append((f"{subject}.{function.__name__}", function))
    return function


def must(condition, *what):
    """Fails the check unless `condition` holds."""
    if not condition:
        raise AssertionError(" ".join(str(part) for part in what))


def equal(got, expected, what=""):
    """Fails the check unless both are equal."""
    must(got == expected, what, "got", repr(got)[:200], "expected", repr(expected)[:200])


def refused(number, call, *arguments, **named):
    """The call must fail with this errno, or one of these."""
    numbers = number if isinstance(number, tuple) else (number,)
    names = "/".join(errno.errorcode[each] for each in numbers)
    try:
        call(*arguments, **named)
    except OSError as error:
        must(error.errno in numbers, f"{call.__name__}: {errno.errorcode.get(error.errno)} instead of {names}")
        return
    raise AssertionError(f"{call.__name__} succeeded instead of {names}")


def answered(result):
    """Turns C's -1 into an OSError."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def fallocate(descriptor, mode, offset, length):
    """fallocate(2) with its modes."""
    answered(libc.fallocate(descriptor, mode, ctypes.c_long(offset), ctypes.c_long(length)))


def rename_with(source, target, flags):
    """renameat2(2)."""
    answered(libc.renameat2(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), ctypes.c_uint(flags)))


def birth_and_masks(path):
    """statx(2): (mask, birth time in ns, attributes)."""
    buffer = ctypes.create_string_buffer(256)
    answered(libc.syscall(332, AT_FDCWD, os.fsencode(path), 0x100, 0xFFF, buffer))
    mask, _, attributes = struct.unpack_from("=IIQ", buffer, 0)
    seconds, nanoseconds = struct.unpack_from("=qI", buffer, 80)
    return mask, seconds * 10**9 + nanoseconds, attributes


def write(path, content=b"", mode=0o644):
    """A file with this content; its path again."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    return path


def read(path):
    """The bytes of a file."""
    with open(path, "rb") as file:
        return file.read()


def as_user(user, group, call, groups=()):
    """Runs `call` in a child with this user's rights; what fails there fails here."""
    if os.getuid() != 0:
        raise Skipped("needs root, to become other users")
    outlet, inlet = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(outlet)
        status = 0
        try:
            os.setgroups(list(groups))
            os.setresgid(group, group, group)
            os.setresuid(user, user, user)
            os.umask(0o022)
            call()
        except BaseException as trouble:  # whatever it is, the parent must hear of it
            where = traceback.extract_tb(trouble.__traceback__)[-1]
            os.write(inlet, f"as user {user}: {trouble!r} at line {where.lineno}".encode()[:4000])
            status = 1
        os._exit(status)
    os.close(inlet)
    told = b""
    while piece := os.read(outlet, 4096):
        told += piece
    os.close(outlet)
    _, status = os.waitpid(child, 0)
    must(status == 0, told.decode() or f"the child ended with status {status}")


def in_child(call):
    """Forks a process that runs `call`; its number."""
    child = os.fork()
    if child:
        CHILDREN.add(child)
        return child
    status = 1
    try:
        call()
        status = 0
    finally:
        os._exit(status)


def children_succeed(children):
    """Waits for these processes, all of which must end well."""
    ends = []
    for child in children:
        ends.append(os.waitpid(child, 0)[1])
        CHILDREN.discard(child)
    must(not any(ends), f"{sum(1 for end in ends if end)} of {len(ends)} processes failed")


def end_children():
    """Ends what a failed check left running."""
    for child in CHILDREN:
        try:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # the check waited for it itself
    CHILDREN.clear()


def name_open_file(descriptor, path):
    """Gives a file that is open, and has perhaps no name, this one: linkat(2) following /proc/self/fd."""
    source = os.fsencode(f"/proc/self/fd/{descriptor}")
    answered(libc.linkat(AT_FDCWD, source, AT_FDCWD, os.fsencode(path), AT_SYMLINK_FOLLOW))
