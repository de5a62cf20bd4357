"""Links and what is left without them: hard links, unlinked open files, O_TMPFILE, special files."""

import errno
import os
import socket
import stat

from .bench import O_TMPFILE, Skipped, check, children_succeed, equal, in_child, must, name_open_file, read, refused
from .bench import write


@check
def hard_links_are_one_file(work):
    path = write(f"{work}/a", b"one")
    os.mkdir(f"{work}/d")
    os.link(path, f"{work}/b")
    os.link(path, f"{work}/d/c")
    equal(os.stat(path).st_nlink, 3)
    equal(len({os.stat(f"{work}/{name}").st_ino for name in ["a", "b", "d/c"]}), 1)
    with open(f"{work}/b", "ab") as file:
        file.write(b"+two")
    equal(read(f"{work}/d/c"), b"one+two")
    os.chmod(f"{work}/d/c", 0o600)
    equal(os.stat(path).st_mode & 0o777, 0o600)
    os.unlink(path)
    equal(os.stat(f"{work}/b").st_nlink, 2)
    equal(read(f"{work}/b"), b"one+two")


@check
def link_refuses_what_it_must(work):
    path = write(f"{work}/file")
    os.mkdir(f"{work}/directory")
    refused(errno.EEXIST, os.link, path, f"{work}/directory")
    refused(errno.EPERM, os.link, f"{work}/directory", f"{work}/second")
    refused(errno.ENOENT, os.link, f"{work}/nothing", f"{work}/second")
    os.symlink("file", f"{work}/symlink")
    os.link(f"{work}/symlink", f"{work}/again", follow_symlinks=False)
    must(stat.S_ISLNK(os.lstat(f"{work}/again").st_mode), "a link to a symlink is one")
    equal(os.lstat(f"{work}/symlink").st_nlink, 2)


@check
def a_thousand_links_to_one_file(work):
    path = write(f"{work}/file")
    for number in range(1000):
        os.link(path, f"{work}/{number}")
    equal(os.stat(path).st_nlink, 1001)
    for number in range(1000):
        os.unlink(f"{work}/{number}")
    equal(os.stat(path).st_nlink, 1)


@check
def an_unlinked_file_lives_while_it_is_open(work):
    descriptor = os.open(f"{work}/file", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"before")
    os.unlink(f"{work}/file")
    equal(os.fstat(descriptor).st_nlink, 0)
    equal(os.listdir(work), [])
    os.pwrite(descriptor, b"after" * 100000, 0)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    equal(os.pread(descriptor, 10, 499990), b"afterafter")
    os.ftruncate(descriptor, 10)
    os.fchmod(descriptor, 0o600)
    os.utime(descriptor, ns=(5, 7))
    equal((os.fstat(descriptor).st_size, os.fstat(descriptor).st_mtime_ns), (10, 7))
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    equal(os.read(again, 5), b"after")
    write(f"{work}/file", b"another")
    equal(os.pread(descriptor, 5, 0), b"after")
    must(os.stat(f"{work}/file").st_ino != os.fstat(descriptor).st_ino, "the number of an open inode was used again")
    os.close(again)
    os.close(descriptor)


@check
def an_unlinked_file_in_a_removed_directory_lives_too(work):
    os.mkdir(f"{work}/directory")
    descriptor = os.open(f"{work}/directory/file", os.O_RDWR | os.O_CREAT)
    os.unlink(f"{work}/directory/file")
    os.rmdir(f"{work}/directory")
    os.write(descriptor, b"x" * 10000)
    equal(os.fstat(descriptor).st_size, 10000)
    os.close(descriptor)


@check
def another_process_may_hold_an_unlinked_file(work):
    path = write(f"{work}/file", b"content")
    outlet, inlet = os.pipe()
    ready, inform = os.pipe()

    def hold():
        descriptor = os.open(path, os.O_RDWR)
        os.write(inform, b"x")
        os.read(outlet, 1)
        equal(os.read(descriptor, 10), b"content")
        os.pwrite(descriptor, b"C", 0)
        equal(os.pread(descriptor, 10, 0), b"Content")

    child = in_child(hold)
    os.read(ready, 1)
    os.unlink(path)
    os.write(inlet, b"x")
    children_succeed([child])
    for descriptor in (outlet, inlet, ready, inform):
        os.close(descriptor)


@check
def a_file_without_a_name_can_get_one(work):
    descriptor = os.open(work, O_TMPFILE | os.O_RDWR, 0o640)
    os.write(descriptor, b"content" * 1000)
    equal(os.listdir(work), [])
    equal(os.fstat(descriptor).st_nlink, 0)
    os.fsync(descriptor)
    name_open_file(descriptor, f"{work}/named")
    equal(os.fstat(descriptor).st_nlink, 1)
    os.write(descriptor, b"more")
    os.close(descriptor)
    equal(read(f"{work}/named"), b"content" * 1000 + b"more")
    equal(os.stat(f"{work}/named").st_mode & 0o7777, 0o640)


@check
def a_file_without_a_name_is_gone_when_closed(work):
    for _ in range(50):
        descriptor = os.open(work, O_TMPFILE | os.O_RDWR, 0o600)
        os.write(descriptor, b"x" * 100000)
        os.close(descriptor)
    equal(os.listdir(work), [])


@check
def a_file_made_without_a_name_exclusively_gets_none(work):
    descriptor = os.open(work, O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
    refused(errno.ENOENT, name_open_file, descriptor, f"{work}/named")
    os.close(descriptor)
    refused(errno.EINVAL, os.open, work, O_TMPFILE | os.O_RDONLY, 0o600)
    refused(errno.ENOENT, os.open, f"{work}/nothing", O_TMPFILE | os.O_RDWR, 0o600)


@check
def an_unlinked_file_gets_no_name_again(work):
    descriptor = os.open(f"{work}/file", os.O_RDWR | os.O_CREAT)
    os.unlink(f"{work}/file")
    refused(errno.ENOENT, name_open_file, descriptor, f"{work}/again")
    os.close(descriptor)


@check
def pipes_and_sockets_work_by_name(work):
    os.mkfifo(f"{work}/fifo", 0o600)
    must(stat.S_ISFIFO(os.stat(f"{work}/fifo").st_mode), "a fifo")

    def talk():
        with open(f"{work}/fifo", "wb") as fifo:
            fifo.write(b"through the pipe")

    child = in_child(talk)
    equal(read(f"{work}/fifo"), b"through the pipe")
    children_succeed([child])
    previous = os.getcwd()
    os.chdir(work)  # the name of a socket has 107 bytes at most
    try:
        server, caller = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        server.bind("socket")
        server.listen()
        must(stat.S_ISSOCK(os.stat("socket").st_mode), "a socket")
        caller.connect("socket")
        caller.sendall(b"hello")
        caller.close()
        equal(server.accept()[0].recv(10), b"hello")
        server.close()
    finally:
        os.chdir(previous)


@check
def device_nodes_keep_their_numbers(work):
    if os.getuid() != 0:
        raise Skipped("needs root, to make device nodes")
    for number, (kind, device) in enumerate([(stat.S_IFCHR, (1, 3)), (stat.S_IFBLK, (259, 70000))]):
        path = f"{work}/{number}"
        os.mknod(path, 0o600 | kind, os.makedev(*device))
        about = os.stat(path)
        equal((stat.S_IFMT(about.st_mode), about.st_rdev), (kind, os.makedev(*device)))
    os.mknod(f"{work}/regular", 0o600 | stat.S_IFREG)
    must(stat.S_ISREG(os.stat(f"{work}/regular").st_mode), "a regular file by mknod")


@check
def inode_numbers_stay_and_are_not_shared(work):
    numbers = {}
    for number in range(500):
        numbers[f"{work}/{number}"] = os.stat(write(f"{work}/{number}")).st_ino
    equal(len(set(numbers.values())), 500)
    for path, inode in numbers.items():
        os.rename(path, path + "r")
        equal(os.stat(path + "r").st_ino, inode)
    must(len({os.stat(path + "r").st_dev for path in numbers}) == 1, "one device")
