"""Directories: reading large ones while they change, link counts, positions, what rmdir refuses."""

import ctypes
import errno
import os
import stat

from .bench import check, children_succeed, equal, in_child, libc, must, refused, write


class Entry(ctypes.Structure):
    """struct dirent."""

    _fields_ = [
        ("inode", ctypes.c_uint64),
        ("position", ctypes.c_int64),
        ("length", ctypes.c_uint16),
        ("kind", ctypes.c_uint8),
        ("name", ctypes.c_char * 256),
    ]


libc.opendir.restype = ctypes.c_void_p
libc.readdir.restype = ctypes.POINTER(Entry)
libc.readdir.argtypes = libc.closedir.argtypes = libc.rewinddir.argtypes = libc.telldir.argtypes = [ctypes.c_void_p]
libc.telldir.restype = ctypes.c_long
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]


@check
def link_counts_follow_subdirectories(work):
    equal(os.stat(work).st_nlink, 2)
    for name in "abc":
        os.mkdir(f"{work}/{name}")
    equal(os.stat(work).st_nlink, 5)
    os.rmdir(f"{work}/a")
    equal(os.stat(work).st_nlink, 4)
    os.rename(f"{work}/b", f"{work}/c/b")
    equal((os.stat(work).st_nlink, os.stat(f"{work}/c").st_nlink), (3, 3))


@check
def rmdir_refuses_what_is_not_empty(work):
    os.makedirs(f"{work}/a/b")
    refused((errno.ENOTEMPTY, errno.EEXIST), os.rmdir, f"{work}/a")
    write(f"{work}/file")
    refused(errno.ENOTDIR, os.rmdir, f"{work}/file")
    refused((errno.EISDIR, errno.EPERM), os.unlink, f"{work}/a")
    refused(errno.EINVAL, os.rmdir, f"{work}/a/.")
    refused((errno.ENOTEMPTY, errno.EEXIST), os.rmdir, f"{work}/a/b/..")


@check
def entries_tell_their_kind_and_inode(work):
    write(f"{work}/file")
    os.mkdir(f"{work}/directory")
    os.symlink("file", f"{work}/link")
    os.mkfifo(f"{work}/fifo")
    for entry in os.scandir(work):
        about = os.lstat(entry.path)
        equal(entry.inode(), about.st_ino, entry.name)
        equal(entry.is_dir(follow_symlinks=False), stat.S_ISDIR(about.st_mode), entry.name)
        equal(entry.is_file(follow_symlinks=False), stat.S_ISREG(about.st_mode), entry.name)
        equal(entry.is_symlink(), stat.S_ISLNK(about.st_mode), entry.name)


@check
def ten_thousand_entries_are_listed_once_each(work):
    names = {f"entry-{number:05}" for number in range(10000)}
    for name in names:
        os.close(os.open(f"{work}/{name}", os.O_CREAT | os.O_WRONLY))
    listed = os.listdir(work)
    equal(len(listed), len(names))
    equal(set(listed), names)
    for name in names:
        os.unlink(f"{work}/{name}")
    equal(os.listdir(work), [])


@check
def what_stays_is_listed_though_others_come_and_go(work):
    stay = {f"stay-{number}" for number in range(3000)}
    for name in stay:
        write(f"{work}/{name}")
    listed = []
    for number, entry in enumerate(os.scandir(work)):
        listed.append(entry.name)
        if number % 3 == 0:
            write(f"{work}/come-{number}")
        if number % 3 == 1 and number > 3:
            os.unlink(f"{work}/come-{number - 1}")
    stayed = [name for name in listed if name in stay]
    equal(len(stayed), len(set(stayed)), "entries listed twice")
    equal(set(stayed), stay)


@check
def removing_while_listing_empties_a_directory(work):
    for number in range(5000):
        write(f"{work}/{number}")
    for entry in os.scandir(work):
        os.unlink(entry.path)
    equal(os.listdir(work), [])


@check
def two_readers_of_one_directory_do_not_disturb_each_other(work):
    for number in range(2000):
        write(f"{work}/{number}")
    first, second = os.scandir(work), os.scandir(work)
    names = [set(), set()]
    for one, other in zip(first, second):
        names[0].add(one.name)
        names[1].add(other.name)
    equal(names[0], names[1])
    equal(len(names[0]), 2000)


@check
def an_open_directory_outlives_its_removal(work):
    os.mkdir(f"{work}/gone")
    held = os.open(f"{work}/gone", os.O_RDONLY)
    os.rmdir(f"{work}/gone")
    equal(os.listdir(held), [])
    must(os.fstat(held).st_nlink in (0, 1), "links of a removed directory")
    refused(errno.ENOENT, os.mkdir, "x", dir_fd=held)
    refused(errno.ENOENT, os.open, "x", os.O_CREAT | os.O_WRONLY, dir_fd=held)
    os.close(held)


@check
def exclusive_create_has_one_winner(work):
    def race():
        for number in range(100):
            try:
                descriptor = os.open(f"{work}/{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                continue
            os.write(descriptor, b"won")
            os.close(descriptor)

    children_succeed([in_child(race) for _ in range(4)])
    for number in range(100):
        equal(os.stat(f"{work}/{number}").st_size, 3, "bytes of a file that one process wrote")


@check
def many_processes_make_entries_in_one_directory(work):
    def fill(who):
        for number in range(250):
            write(f"{work}/{who}-{number}", b"x")
            if number % 2:
                os.unlink(f"{work}/{who}-{number}")

    children_succeed([in_child(lambda who=who: fill(who)) for who in range(4)])
    equal(len(os.listdir(work)), 500)


@check
def opening_asks_what_the_flags_say(work):
    write(f"{work}/file", b"bytes")
    refused(errno.EEXIST, os.open, f"{work}/file", os.O_CREAT | os.O_EXCL)
    refused(errno.ENOTDIR, os.open, f"{work}/file", os.O_DIRECTORY)
    refused(errno.EISDIR, os.open, work, os.O_WRONLY)
    refused(errno.ENOENT, os.open, f"{work}/nothing", os.O_RDONLY)
    os.close(os.open(f"{work}/file", os.O_WRONLY | os.O_TRUNC))
    equal(os.stat(f"{work}/file").st_size, 0)
    path = os.open(f"{work}/file", os.O_PATH)
    refused(errno.EBADF, os.read, path, 1)
    os.close(path)


@check
def the_umask_and_the_given_mode_make_the_mode(work):
    before = os.umask(0o027)
    try:
        os.close(os.open(f"{work}/file", os.O_CREAT | os.O_WRONLY, 0o666))
        os.mkdir(f"{work}/directory", 0o777)
        os.mkfifo(f"{work}/fifo", 0o666)
    finally:
        os.umask(before)
    equal(oct(os.stat(f"{work}/file").st_mode & 0o7777), "0o640")
    equal(oct(os.stat(f"{work}/directory").st_mode & 0o7777), "0o750")
    equal(oct(os.stat(f"{work}/fifo").st_mode & 0o7777), "0o640")


@check
def a_position_can_be_returned_to(work):
    for number in range(3000):
        write(f"{work}/{number}")
    listing = libc.opendir(work.encode())
    places = []
    while True:
        place = libc.telldir(listing)
        entry = libc.readdir(listing)
        if not entry:
            break
        places.append((place, entry.contents.name))
    equal(len(places), 3002, "with . and ..")
    for place, name in places[::-97]:
        libc.seekdir(listing, place)
        equal(libc.readdir(listing).contents.name, name, f"at position {place}")
    for _, name in places[:2500]:  # what is removed does not move the others
        if name not in (b".", b".."):
            os.unlink(os.path.join(work.encode(), name))
    place, name = places[2700]
    libc.seekdir(listing, place)
    equal(libc.readdir(listing).contents.name, name, "after others were removed")
    write(f"{work}/new")
    libc.rewinddir(listing)
    seen = set()
    while entry := libc.readdir(listing):
        seen.add(entry.contents.name)
    must(b"new" in seen and len(seen) == len(os.listdir(work)) + 2, "a rewound listing is up to date:", len(seen))
    libc.closedir(listing)
