"""Names and renames: lengths, bytes, the flags of renameat2, what rename may replace."""

import errno
import os
import stat

from .bench import RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT, check, equal, must, read, refused, rename_with
from .bench import write


@check
def a_name_of_255_bytes_works_and_256_is_refused(work):
    name = "n" * 255
    write(f"{work}/{name}", b"long")
    equal(os.listdir(work), [name])
    equal(read(f"{work}/{name}"), b"long")
    refused(errno.ENAMETOOLONG, write, f"{work}/{'n' * 256}")
    refused(errno.ENAMETOOLONG, os.stat, f"{work}/{'n' * 256}")
    refused(errno.ENAMETOOLONG, os.mkdir, f"{work}/{'d' * 256}")
    refused(errno.ENAMETOOLONG, os.rename, f"{work}/{name}", f"{work}/{'n' * 256}")
    refused(errno.ENAMETOOLONG, os.symlink, "x", f"{work}/{'s' * 256}")
    refused(errno.ENAMETOOLONG, os.link, f"{work}/{name}", f"{work}/{'l' * 256}")
    os.rename(f"{work}/{name}", f"{work}/{'m' * 255}")


@check
def a_name_of_255_bytes_counts_bytes_not_letters(work):
    write(f"{work}/{'ü' * 127}x")
    refused(errno.ENAMETOOLONG, write, f"{work}/{'ü' * 128}")


@check
def any_byte_but_slash_and_nul_is_a_name(work):
    names = [bytes([byte]) for byte in range(1, 256) if byte not in (0x2E, 0x2F)]
    names += [b"\xff\xfe", b" ", b"...", b"a\nb", b"\\", b"-rf", b"con", b"A", b"a\x80"]
    for name in names:
        write(work.encode() + b"/x" + name, name)
    equal(sorted(os.listdir(work.encode())), sorted(b"x" + name for name in set(names)))
    for name in names:
        equal(read(work.encode() + b"/x" + name), name)


@check
def names_differ_by_case_and_by_normal_form(work):
    for name in ["a", "A", "\u00fc", "u\u0308"]:
        write(f"{work}/{name}", name.encode())
    equal(len(os.listdir(work)), 4)
    equal(read(f"{work}/u\u0308"), "u\u0308".encode())


@check
def paths_to_4095_bytes_work(work):
    deep = os.open(work, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=deep)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    write(f"/proc/self/fd/{deep}/end", b"deep")
    equal(read(f"/proc/self/fd/{deep}/end"), b"deep")
    os.close(deep)
    refused(errno.ENAMETOOLONG, os.stat, work + ("/" + "d" * 250) * 20)


@check
def rename_replaces_a_file_at_once(work):
    write(f"{work}/a", b"new")
    write(f"{work}/b", b"old")
    inode = os.stat(f"{work}/a").st_ino
    held = os.open(f"{work}/b", os.O_RDONLY)
    os.rename(f"{work}/a", f"{work}/b")
    equal(os.listdir(work), ["b"])
    equal(read(f"{work}/b"), b"new")
    equal(os.stat(f"{work}/b").st_ino, inode)
    equal(os.read(held, 10), b"old", "the replaced file, still open")
    equal(os.fstat(held).st_nlink, 0)
    os.close(held)


@check
def rename_noreplace_refuses_what_is_there(work):
    write(f"{work}/a", b"a")
    write(f"{work}/b", b"b")
    refused(errno.EEXIST, rename_with, f"{work}/a", f"{work}/b", RENAME_NOREPLACE)
    refused(errno.EEXIST, rename_with, f"{work}/a", f"{work}/a", RENAME_NOREPLACE)
    rename_with(f"{work}/a", f"{work}/c", RENAME_NOREPLACE)
    equal(sorted(os.listdir(work)), ["b", "c"])
    equal(read(f"{work}/b"), b"b")


@check
def rename_exchange_swaps_files_and_directories(work):
    write(f"{work}/file", b"file")
    os.makedirs(f"{work}/deep/directory/inside")
    inodes = os.stat(f"{work}/file").st_ino, os.stat(f"{work}/deep/directory").st_ino
    rename_with(f"{work}/file", f"{work}/deep/directory", RENAME_EXCHANGE)
    equal((os.stat(f"{work}/deep/directory").st_ino, os.stat(f"{work}/file").st_ino), inodes)
    equal(read(f"{work}/deep/directory"), b"file")
    equal(os.listdir(f"{work}/file"), ["inside"])
    equal(os.stat(f"{work}/deep").st_nlink, 2, "links of the directory that lost its directory")
    equal(os.stat(work).st_nlink, 4, "links of the directory that gained one")
    equal(os.stat(f"{work}/file/..").st_ino, os.stat(work).st_ino)
    refused(errno.ENOENT, rename_with, f"{work}/file", f"{work}/nothing", RENAME_EXCHANGE)
    refused(errno.EINVAL, rename_with, f"{work}/file", f"{work}/file/inside", RENAME_EXCHANGE)


@check
def rename_flags_that_exclude_each_other_are_refused(work):
    write(f"{work}/a")
    write(f"{work}/b")
    refused(errno.EINVAL, rename_with, f"{work}/a", f"{work}/b", RENAME_NOREPLACE | RENAME_EXCHANGE)
    refused(errno.EINVAL, rename_with, f"{work}/a", f"{work}/b", RENAME_WHITEOUT | RENAME_EXCHANGE)
    refused(errno.EINVAL, rename_with, f"{work}/a", f"{work}/b", 1 << 10)


@check
def rename_of_directories_keeps_the_tree_a_tree(work):
    os.makedirs(f"{work}/a/b/c")
    refused(errno.EINVAL, os.rename, f"{work}/a", f"{work}/a/b/c/a")
    refused(errno.EINVAL, os.rename, f"{work}/a", f"{work}/a/x")
    refused(errno.ENOTEMPTY, os.rename, f"{work}/a/b/c", f"{work}/a")
    os.rename(f"{work}/a/b", f"{work}/b")
    equal(os.stat(f"{work}/b/..").st_ino, os.stat(work).st_ino)
    equal(os.stat(f"{work}/a").st_nlink, 2)
    os.mkdir(f"{work}/empty")
    os.rename(f"{work}/b", f"{work}/empty")
    equal(os.listdir(f"{work}/empty"), ["c"])


@check
def rename_checks_the_kinds(work):
    write(f"{work}/file")
    os.mkdir(f"{work}/directory")
    os.makedirs(f"{work}/full/x")
    refused(errno.EISDIR, os.rename, f"{work}/file", f"{work}/directory")
    refused(errno.ENOTDIR, os.rename, f"{work}/directory", f"{work}/file")
    refused((errno.ENOTEMPTY, errno.EEXIST), os.rename, f"{work}/directory", f"{work}/full")
    refused(errno.ENOENT, os.rename, f"{work}/nothing", f"{work}/file")
    refused(errno.ENOTDIR, os.rename, f"{work}/file/x", f"{work}/y")


@check
def rename_of_one_file_onto_its_other_name_does_nothing(work):
    write(f"{work}/a", b"x")
    os.link(f"{work}/a", f"{work}/b")
    os.rename(f"{work}/a", f"{work}/b")
    equal(sorted(os.listdir(work)), ["a", "b"])
    equal(os.stat(f"{work}/a").st_nlink, 2)


@check
def rename_over_and_over_never_shows_a_gap(work):
    write(f"{work}/target", b"0")
    stop = f"{work}/stop"

    def watch():
        missed = 0
        while not os.path.exists(stop):
            try:
                os.stat(f"{work}/target")
            except OSError:
                missed += 1
        os._exit(min(missed, 100))

    watchers = []
    for _ in range(4):
        watchers.append(os.fork())
        if watchers[-1] == 0:
            watch()
    for number in range(3000):
        write(f"{work}/temporary", str(number).encode())
        os.rename(f"{work}/temporary", f"{work}/target")
    write(stop)
    missed = [os.waitstatus_to_exitcode(os.waitpid(watcher, 0)[1]) for watcher in watchers]
    equal(missed, [0, 0, 0, 0], "times that the name was not there")


@check
def a_trailing_slash_asks_for_a_directory(work):
    write(f"{work}/file")
    os.mkdir(f"{work}/directory")
    refused(errno.ENOTDIR, os.stat, f"{work}/file/")
    refused(errno.ENOTDIR, os.unlink, f"{work}/file/")
    os.rename(f"{work}/directory/", f"{work}/other/")
    must(stat.S_ISDIR(os.stat(f"{work}/other/").st_mode), "a directory")


@check
def symlinks_keep_what_they_are_given(work):
    for number, target in enumerate(["x", "/a/../b", "t" * 4095, "with space\n", "ü"]):
        os.symlink(target, f"{work}/{number}")
        equal(os.readlink(f"{work}/{number}"), target)
        equal(os.lstat(f"{work}/{number}").st_size, len(target.encode()))
    refused((errno.ENAMETOOLONG, errno.EINVAL), os.symlink, "t" * 4096, f"{work}/long")
    refused(errno.ENOENT, os.symlink, "", f"{work}/empty")
    os.symlink("loop", f"{work}/loop")
    refused(errno.ELOOP, os.stat, f"{work}/loop")
    refused(errno.ELOOP, os.open, f"{work}/0", os.O_RDONLY | os.O_NOFOLLOW)
