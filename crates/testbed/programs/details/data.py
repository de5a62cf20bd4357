"""Reading and writing: append, direct, synchronous, beyond the end, very large, from several processes."""

import errno
import mmap
import os
import resource
import signal

from .bench import check, children_succeed, equal, in_child, must, read, refused, write

TIB = 1 << 40


@check
def appends_of_several_processes_never_overlap(work):
    def append(who):
        descriptor = os.open(f"{work}/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for number in range(300):
            os.write(descriptor, f"{who}:{number:04}:{'z' * (number % 90)}\n".encode())
        os.close(descriptor)

    children_succeed([in_child(lambda who=who: append(who)) for who in range(4)])
    lines = read(f"{work}/log").decode().splitlines()
    equal(len(lines), 1200)
    for who in range(4):
        mine = [line for line in lines if line.startswith(f"{who}:")]
        equal(mine, [f"{who}:{number:04}:{'z' * (number % 90)}" for number in range(300)], "in order")


@check
def append_writes_at_the_end_wherever_the_position_is(work):
    descriptor = os.open(f"{work}/file", os.O_RDWR | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, b"one")
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, b"two")
    os.truncate(f"{work}/file", 4)
    os.write(descriptor, b"three")
    os.close(descriptor)
    equal(read(f"{work}/file"), b"onetthree")


@check
def direct_and_buffered_see_each_other(work):
    block = mmap.mmap(-1, 8192)
    buffered = os.open(f"{work}/file", os.O_RDWR | os.O_CREAT)
    direct = os.open(f"{work}/file", os.O_RDWR | os.O_DIRECT)
    for number in range(20):
        os.pwrite(buffered, bytes([number]) * 8192, 0)
        equal(os.preadv(direct, [block], 0), 8192)
        equal(block[:], bytes([number]) * 8192, "written buffered, read direct")
        block[:] = bytes([number + 100]) * 8192
        equal(os.pwritev(direct, [block], 4096), 8192)
        equal(os.pread(buffered, 8192, 4096), bytes([number + 100]) * 8192, "written direct, read buffered")
    os.close(direct)
    os.close(buffered)
    equal(os.stat(f"{work}/file").st_size, 12288)


@check
def a_direct_read_stops_at_the_end(work):
    write(f"{work}/file", b"x" * 5000)
    block = mmap.mmap(-1, 16384)
    direct = os.open(f"{work}/file", os.O_RDONLY | os.O_DIRECT)
    equal(os.preadv(direct, [block], 0), 5000)
    equal(block[:5000], b"x" * 5000)
    equal(os.preadv(direct, [block], 8192), 0)
    os.close(direct)


@check
def writing_beyond_the_end_leaves_zeros(work):
    descriptor = os.open(f"{work}/file", os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, b"start", 0)
    os.pwrite(descriptor, b"end", 1_000_003)
    content = os.pread(descriptor, 2_000_000, 0)
    equal(len(content), 1_000_006)
    must(content[5:1_000_003].count(0) == 999_998, "the gap is zero")
    os.close(descriptor)


@check
def truncate_cuts_and_grows_with_zeros(work):
    path = write(f"{work}/file", b"z" * 10000)
    os.truncate(path, 100)
    os.truncate(path, 9000)
    equal(read(path), b"z" * 100 + bytes(8900))
    os.truncate(path, 0)
    os.truncate(path, 50)
    equal(read(path), bytes(50))
    refused(errno.EINVAL, os.truncate, path, -1)
    refused(errno.EISDIR, os.truncate, work, 0)


@check
def truncate_within_a_page_does_not_bring_old_bytes_back(work):
    path = write(f"{work}/file", b"o" * 4096)
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.ftruncate(descriptor, 1000)
    os.fsync(descriptor)
    os.pwrite(descriptor, b"n", 3000)
    equal(os.pread(descriptor, 5000, 0), b"o" * 1000 + bytes(2000) + b"n")
    os.close(descriptor)


@check
def a_file_of_16_tib_holds_bytes_at_both_ends(work):
    # ext4 with 4 KiB blocks ends one block below 16 TiB.
    end = 16 * TIB - 8192
    descriptor = os.open(f"{work}/file", os.O_RDWR | os.O_CREAT)
    for offset in [0, 4 * TIB + 17, 8 * TIB - 1, end - 5]:
        os.pwrite(descriptor, b"bytes", offset)
    os.fsync(descriptor)
    equal(os.fstat(descriptor).st_size, end)
    for offset in [0, 4 * TIB + 17, 8 * TIB - 1, end - 5]:
        equal(os.pread(descriptor, 5, offset), b"bytes", f"at {offset}")
    equal(os.pread(descriptor, 100, 12 * TIB), bytes(100))
    must(os.fstat(descriptor).st_blocks < 1000, "blocks of a file of 20 bytes:", os.fstat(descriptor).st_blocks)
    os.ftruncate(descriptor, 3)
    equal(os.pread(descriptor, 10, 0), b"byt")
    os.close(descriptor)


@check
def offsets_below_zero_and_past_the_limit_are_refused(work):
    descriptor = os.open(f"{work}/file", os.O_RDWR | os.O_CREAT)
    refused(errno.EINVAL, os.pread, descriptor, 1, -1)
    refused(errno.EINVAL, os.lseek, descriptor, -1, os.SEEK_SET)
    refused((errno.EFBIG, errno.EINVAL), os.pwrite, descriptor, b"x", (1 << 63) - 1)
    os.close(descriptor)


@check
def reads_and_writes_with_many_buffers(work):
    descriptor = os.open(f"{work}/file", os.O_RDWR | os.O_CREAT)
    pieces = [bytes([number]) * (number * 13) for number in range(1, 200)]
    whole = b"".join(pieces)
    equal(os.pwritev(descriptor, pieces, 7), len(whole))
    buffers = [bytearray(len(piece)) for piece in pieces]
    equal(os.preadv(descriptor, buffers, 7), len(whole))
    equal(b"".join(buffers), whole)
    os.close(descriptor)


@check
def every_size_around_block_limits_is_kept(work):
    sizes = [size + delta for size in (512, 1024, 4096, 65536, 131072, 1 << 20) for delta in (-1, 0, 1)]
    for size in [0, 1, 100, 300] + sizes:
        content = bytes((size + index) % 251 for index in range(min(size, 1000))) * (size // 1000 + 1)
        path = write(f"{work}/{size}", content[:size])
        equal(os.stat(path).st_size, size)
        must(read(path) == content[:size], "content of", size)


@check
def small_files_grow_byte_by_byte(work):
    descriptor = os.open(f"{work}/file", os.O_RDWR | os.O_CREAT)
    for number in range(3000):
        os.write(descriptor, bytes([number % 256]))
        if number % 500 == 0:
            os.fsync(descriptor)
    equal(os.pread(descriptor, 4000, 0), bytes(number % 256 for number in range(3000)))
    os.close(descriptor)


@check
def synchronous_writes_and_all_kinds_of_sync_succeed(work):
    for number, flags in enumerate([os.O_SYNC, os.O_DSYNC, os.O_RSYNC]):
        descriptor = os.open(f"{work}/{number}", os.O_RDWR | os.O_CREAT | flags)
        os.write(descriptor, b"x" * 10000)
        os.fsync(descriptor)
        os.fdatasync(descriptor)
        os.close(descriptor)
        equal(os.stat(f"{work}/{number}").st_size, 10000)
    directory = os.open(work, os.O_RDONLY)
    os.fsync(directory)
    os.fdatasync(directory)
    os.close(directory)
    os.sync()
    reading = os.open(f"{work}/0", os.O_RDONLY)
    os.fsync(reading)
    os.close(reading)


@check
def a_file_open_twice_is_one_file(work):
    one = os.open(f"{work}/file", os.O_RDWR | os.O_CREAT)
    other = os.open(f"{work}/file", os.O_RDWR)
    for number in range(100):
        os.pwrite(one, b"%04d" % number, 0)
        equal(os.pread(other, 4, 0), b"%04d" % number)
        os.pwrite(other, b"%04d" % number, 8192)
        equal(os.fstat(one).st_size, 8196)
    os.close(one)
    os.close(other)


@check
def blocks_follow_the_bytes(work):
    path = write(f"{work}/file", os.urandom(1 << 20))
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    blocks = os.fstat(descriptor).st_blocks
    must(2048 <= blocks <= 2048 + 128, "blocks of 1 MiB:", blocks)
    os.ftruncate(descriptor, 4096)
    os.fsync(descriptor)
    must(os.fstat(descriptor).st_blocks <= 128, "blocks of 4 KiB:", os.fstat(descriptor).st_blocks)
    os.close(descriptor)


@check
def sendfile_and_splice_carry_bytes(work):
    content = os.urandom(300_000)
    source = os.open(write(f"{work}/source", content), os.O_RDONLY)
    target = os.open(f"{work}/target", os.O_RDWR | os.O_CREAT)
    sent = 0
    while sent < len(content):
        sent += os.sendfile(target, source, sent, len(content) - sent)
    equal(os.pread(target, 400_000, 0) == content, True, "sendfile")
    outlet, inlet = os.pipe()
    os.ftruncate(target, 0)
    moved = 0
    while moved < len(content):
        count = os.splice(source, inlet, 65536, offset_src=moved)
        done = 0
        while done < count:
            done += os.splice(outlet, target, count - done, offset_dst=moved + done)
        moved += count
    equal(os.pread(target, 400_000, 0) == content, True, "splice")
    for descriptor in (source, target, outlet, inlet):
        os.close(descriptor)


@check
def the_file_size_limit_of_a_process_is_kept(work):
    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))
        descriptor = os.open(f"{work}/file", os.O_RDWR | os.O_CREAT)
        equal(os.pwrite(descriptor, b"x" * 5000, 7000), 3000, "a write up to the limit")
        refused(errno.EFBIG, os.pwrite, descriptor, b"x", 10000)
        refused(errno.EFBIG, os.ftruncate, descriptor, 10001)
        equal(os.fstat(descriptor).st_size, 10000)

    children_succeed([in_child(limited)])


@check
def writers_of_different_parts_do_not_disturb_each_other(work):
    path = write(f"{work}/file")

    def fill(who):
        descriptor = os.open(path, os.O_RDWR)
        for number in range(who, 2000, 4):  # pieces that share pages with the neighbours'
            os.pwrite(descriptor, b"%d" % who * 1000, number * 1000)
        os.close(descriptor)

    children_succeed([in_child(lambda who=who: fill(who)) for who in range(4)])
    must(read(path) == b"".join(b"%d" % (number % 4) * 1000 for number in range(2000)), "each byte by its writer")
