"""Mapped memory: shared writable maps, what other descriptors and processes see, and the last page."""

import errno
import mmap
import os
import signal

from .bench import check, children_succeed, equal, in_child, must, read, refused, write


@check
def a_shared_map_and_read_see_each_other(work):
    path = write(f"{work}/file", b"x" * 100000)
    descriptor = os.open(path, os.O_RDWR)
    with mmap.mmap(descriptor, 100000) as shared:
        for number in range(50):
            shared[number * 1000 : number * 1000 + 4] = b"%04d" % number
            equal(os.pread(descriptor, 4, number * 1000), b"%04d" % number, "map to read")
            os.pwrite(descriptor, b"%04d" % number, number * 1000 + 500)
            equal(shared[number * 1000 + 500 : number * 1000 + 504], b"%04d" % number, "write to map")
        shared.flush()
    os.close(descriptor)
    equal(read(path)[49000:49004], b"0049")


@check
def what_a_map_wrote_is_there_after_its_end(work):
    path = write(f"{work}/file", bytes(1 << 20))
    descriptor = os.open(path, os.O_RDWR)
    with mmap.mmap(descriptor, 1 << 20) as shared:
        for offset in range(0, 1 << 20, 4096):
            shared[offset] = offset // 4096 % 256
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    content = read(path)
    equal(bytes(content[offset] for offset in range(0, 1 << 20, 4096)), bytes(range(256)))


@check
def a_map_keeps_a_file_that_is_closed_and_unlinked(work):
    path = write(f"{work}/file", b"x" * 8192)
    descriptor = os.open(path, os.O_RDWR)
    shared = mmap.mmap(descriptor, 8192)
    os.close(descriptor)
    os.unlink(path)
    shared[5000] = 65
    equal(shared[4999:5002], b"xAx")
    shared.flush()
    shared.close()


@check
def processes_share_what_they_map(work):
    path = write(f"{work}/file", bytes(4096 * 4))

    def count(who):
        descriptor = os.open(path, os.O_RDWR)
        with mmap.mmap(descriptor, 4096 * 4) as shared:
            for number in range(1000):
                shared[who * 4096 + number] = who + 1
        os.close(descriptor)

    children_succeed([in_child(lambda who=who: count(who)) for who in range(4)])
    content = read(path)
    for who in range(4):
        equal(content[who * 4096 : who * 4096 + 1000], bytes([who + 1]) * 1000)


@check
def a_private_map_changes_nothing(work):
    path = write(f"{work}/file", b"x" * 4096)
    descriptor = os.open(path, os.O_RDONLY)
    with mmap.mmap(descriptor, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as private:
        private[0:5] = b"other"
        equal(private[0:5], b"other")
    os.close(descriptor)
    equal(read(path), b"x" * 4096)


@check
def bytes_written_beyond_the_end_do_not_appear(work):
    path = write(f"{work}/file", b"x" * 100)
    descriptor = os.open(path, os.O_RDWR)
    with mmap.mmap(descriptor, 100) as shared:
        equal(len(shared), 100)
    shared = mmap.mmap(descriptor, 0)
    shared[99] = 65
    shared.flush()
    shared.close()
    os.ftruncate(descriptor, 4096)
    equal(os.pread(descriptor, 4096, 0), b"x" * 99 + b"A" + bytes(3996))
    os.close(descriptor)


@check
def a_map_of_a_hole_can_be_filled(work):
    descriptor = os.open(f"{work}/file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(descriptor, 64 << 20)
    with mmap.mmap(descriptor, 64 << 20) as shared:
        equal(shared[1000:1010], bytes(10))
        shared[40 << 20] = 7
        shared.flush()
    must(os.fstat(descriptor).st_blocks < 1000, "blocks of a file with one page:", os.fstat(descriptor).st_blocks)
    equal(os.pread(descriptor, 3, (40 << 20) - 1), b"\x00\x07\x00")
    os.close(descriptor)


@check
def writing_a_map_moves_the_modification_time(work):
    path = write(f"{work}/file", bytes(4096))
    os.utime(path, ns=(10**18, 10**18))
    descriptor = os.open(path, os.O_RDWR)
    with mmap.mmap(descriptor, 4096) as shared:
        shared[0] = 1
        shared.flush()
    os.fsync(descriptor)
    os.close(descriptor)
    must(os.stat(path).st_mtime_ns > 10**18, "mtime after a mapped write")


@check
def a_truncated_map_shows_zeros_when_it_grows_again(work):
    path = write(f"{work}/file", b"o" * 8192)
    descriptor = os.open(path, os.O_RDWR)
    shared = mmap.mmap(descriptor, 8192)
    shared[0] = 66
    os.ftruncate(descriptor, 1000)
    os.ftruncate(descriptor, 8192)
    equal(shared[:], b"B" + b"o" * 999 + bytes(7192))
    shared.close()
    os.close(descriptor)


@check
def a_running_program_cannot_be_written(work):
    with open("/bin/sleep", "rb") as program:
        path = write(f"{work}/program", program.read(), 0o755)
    equal(os.spawnv(os.P_WAIT, path, [path, "0"]), 0)
    running = os.spawnv(os.P_NOWAIT, path, [path, "60"])
    try:
        while os.readlink(f"/proc/{running}/exe") != path:
            os.sched_yield()
        size = os.path.getsize(path)
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_TRUNC):
            refused(errno.ETXTBSY, os.open, path, flags)
        refused(errno.ETXTBSY, os.truncate, path, 0)
        equal(os.path.getsize(path), size)
        os.unlink(path)
    finally:
        os.kill(running, 9)
        os.waitpid(running, 0)


@check
def touching_a_map_beyond_the_end_is_a_bus_error(work):
    path = write(f"{work}/file", b"x" * 20000)
    child = os.fork()
    if child == 0:
        descriptor = os.open(path, os.O_RDWR)
        shared = mmap.mmap(descriptor, 20000)
        os.ftruncate(descriptor, 100)
        must(shared[4095] == 0, "the rest of the last page is zero")
        shared[8192]  # must not come back
        os._exit(0)
    equal(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), -signal.SIGBUS)
