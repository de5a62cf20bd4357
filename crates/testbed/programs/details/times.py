"""Times: nanoseconds, which operation moves which time, relatime, times far away."""

import errno
import os
import time

from .bench import as_user, birth_and_masks, check, equal, must, read, refused, write

OLD_NS = 1_000_000_000_123_456_789


def age(path):
    """Sets the access and modification times long ago."""
    os.utime(path, ns=(OLD_NS, OLD_NS), follow_symlinks=False)


def moved(path, deed, *, mtime, ctime=True):
    """Runs `deed`; says whether just the expected times of `path` moved."""
    age(path)
    before = os.lstat(path)
    time.sleep(0.012)  # more than the kernel's clock tick, or equal times would mean nothing
    deed()
    after = os.lstat(path)
    equal(after.st_mtime_ns != OLD_NS, mtime, f"mtime of {os.path.basename(path)} moved by {deed.__name__}:")
    equal(after.st_ctime_ns > before.st_ctime_ns, ctime, f"ctime of {os.path.basename(path)} moved by {deed.__name__}:")


@check
def nanoseconds_are_kept(work):
    path = write(f"{work}/file")
    os.mkdir(f"{work}/directory")
    os.symlink("x", f"{work}/link")
    for each in [path, f"{work}/directory", f"{work}/link"]:
        os.utime(each, ns=(OLD_NS + 1, OLD_NS + 2), follow_symlinks=False)
        about = os.lstat(each)
        equal((about.st_atime_ns, about.st_mtime_ns), (OLD_NS + 1, OLD_NS + 2), each)


@check
def times_far_away_are_kept(work):
    path = write(f"{work}/file")
    for second in [0, 1, -1, -(2**31) + 1, 2**31, 2**32 + 5, 2**33]:
        os.utime(path, ns=(second * 10**9 + 7, second * 10**9 + 9))
        equal((os.stat(path).st_atime_ns, os.stat(path).st_mtime_ns), (second * 10**9 + 7, second * 10**9 + 9))


@check
def new_files_are_born_now(work):
    before = time.time_ns() - 20_000_000
    path = write(f"{work}/file")
    about = os.stat(path)
    for moment in (about.st_atime_ns, about.st_mtime_ns, about.st_ctime_ns):
        must(before <= moment <= time.time_ns(), "a time of a new file:", moment - before)
    mask, born, _ = birth_and_masks(path)
    if mask & 0x800:
        must(before <= born <= time.time_ns(), "its birth:", born - before)


@check
def changing_bytes_moves_mtime_and_ctime(work):
    path = write(f"{work}/file", b"content")

    def rewrite():
        with open(path, "r+b") as file:
            file.write(b"C")

    def cut():
        os.truncate(path, 3)

    def cut_to_the_same():
        os.truncate(path, 3)

    def open_truncating():
        os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))

    def copy_into():
        descriptor = os.open(path, os.O_RDWR)
        os.pwrite(descriptor, b"abc", 0)
        os.copy_file_range(descriptor, descriptor, 1, 0, 2)
        os.close(descriptor)

    for deed in [rewrite, cut, cut_to_the_same, open_truncating, copy_into]:
        moved(path, deed, mtime=True)


@check
def changing_what_is_known_moves_ctime_alone(work):
    path = write(f"{work}/file", b"content")

    def change_mode():
        os.chmod(path, 0o600)

    def link():
        os.link(path, f"{work}/other")

    def unlink():
        os.unlink(f"{work}/other")

    def attribute():
        os.setxattr(path, "user.a", b"b")

    def rename():
        os.rename(path, f"{work}/renamed")
        os.rename(f"{work}/renamed", path)

    def own():
        os.chown(path, os.getuid(), os.getgid())

    for deed in [change_mode, link, unlink, attribute, rename, own]:
        moved(path, deed, mtime=False)


@check
def reading_and_looking_move_no_mtime_and_ctime(work):
    path = write(f"{work}/file", b"content")

    def look():
        read(path)
        os.stat(path)
        os.listdir(work)
        os.listxattr(path)

    def write_nothing():
        descriptor = os.open(path, os.O_WRONLY)
        os.write(descriptor, b"")
        os.close(descriptor)

    moved(path, look, mtime=False, ctime=False)
    moved(path, write_nothing, mtime=False, ctime=False)


@check
def changing_entries_moves_the_directory(work):
    inside = f"{work}/inside"
    os.mkdir(inside)
    os.mkdir(f"{work}/elsewhere")
    deeds = [
        ("create", lambda: write(f"{inside}/file")),
        ("link", lambda: os.link(f"{inside}/file", f"{inside}/link")),
        ("rename", lambda: os.rename(f"{inside}/link", f"{inside}/renamed")),
        ("rename away", lambda: os.rename(f"{inside}/renamed", f"{work}/elsewhere/here")),
        ("rename in", lambda: os.rename(f"{work}/elsewhere/here", f"{inside}/renamed")),
        ("unlink", lambda: os.unlink(f"{inside}/renamed")),
        ("mkdir", lambda: os.mkdir(f"{inside}/directory")),
        ("rmdir", lambda: os.rmdir(f"{inside}/directory")),
        ("symlink", lambda: os.symlink("x", f"{inside}/symlink")),
        ("mkfifo", lambda: os.mkfifo(f"{inside}/fifo")),
    ]
    for name, deed in deeds:
        deed.__name__ = name
        moved(inside, deed, mtime=True)

    def write_into():
        write(f"{inside}/file", b"more")

    moved(inside, write_into, mtime=False, ctime=False)


@check
def relatime_moves_an_old_access_time_once(work):
    path = write(f"{work}/file", b"content")
    os.utime(path, ns=(OLD_NS, time.time_ns()))
    read(path)
    seen = os.stat(path).st_atime_ns
    must(seen > OLD_NS, "atime older than mtime did not move when the file was read")


@check
def setting_times_needs_the_right(work):
    path = write(f"{work}/file", mode=0o644)

    def touch_another():
        refused(errno.EPERM, os.utime, path, ns=(OLD_NS, OLD_NS))
        refused(errno.EACCES, os.utime, path)

    as_user(12345, 12345, touch_another)
    os.chmod(path, 0o666)

    def touch_writable():
        os.utime(path)
        refused(errno.EPERM, os.utime, path, ns=(OLD_NS, OLD_NS))

    as_user(12345, 12345, touch_writable)
    refused(errno.ENOENT, os.utime, f"{work}/nothing")


@check
def times_set_while_writing_stay_when_closed(work):
    descriptor = os.open(f"{work}/file", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"x" * 100000)
    os.utime(descriptor, ns=(OLD_NS, OLD_NS))
    os.fsync(descriptor)
    os.close(descriptor)
    equal(os.stat(f"{work}/file").st_mtime_ns, OLD_NS, "as tar and rsync set it")


@check
def the_size_and_time_of_a_write_are_seen_at_once(work):
    descriptor = os.open(f"{work}/file", os.O_WRONLY | os.O_CREAT)
    for number in range(1, 20):
        os.write(descriptor, b"x" * 1000)
        equal(os.stat(f"{work}/file").st_size, number * 1000)
        equal(os.lstat(f"{work}/file").st_mtime_ns, os.fstat(descriptor).st_mtime_ns)
    os.close(descriptor)
