"""Ranges of a file: holes and data, fallocate in its modes, copy_file_range, cloning."""

import errno
import fcntl
import os
import random

from .bench import FALLOC_COLLAPSE, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO, FICLONE
from .bench import Skipped, check, equal, fallocate, must, read, refused, write

MIB = 1 << 20


def open_new(path, content=b""):
    """A new file, open for reading and writing, with its content on disk."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.write(descriptor, content)
    os.fsync(descriptor)
    return descriptor


@check
def seek_finds_holes_and_data(work):
    descriptor = open_new(f"{work}/file")
    os.pwrite(descriptor, b"d" * MIB, 4 * MIB)
    os.pwrite(descriptor, b"d" * MIB, 16 * MIB)
    os.ftruncate(descriptor, 32 * MIB)
    for _ in range(2):  # before the bytes are on disk, and after
        equal(os.lseek(descriptor, 0, os.SEEK_DATA), 4 * MIB)
        equal(os.lseek(descriptor, 4 * MIB + 5, os.SEEK_DATA), 4 * MIB + 5)
        equal(os.lseek(descriptor, 4 * MIB, os.SEEK_HOLE), 5 * MIB)
        equal(os.lseek(descriptor, 5 * MIB, os.SEEK_DATA), 16 * MIB)
        equal(os.lseek(descriptor, 0, os.SEEK_HOLE), 0)
        equal(os.lseek(descriptor, 17 * MIB, os.SEEK_HOLE), 17 * MIB)
        refused(errno.ENXIO, os.lseek, descriptor, 17 * MIB, os.SEEK_DATA)
        refused(errno.ENXIO, os.lseek, descriptor, 32 * MIB, os.SEEK_HOLE)
        refused(errno.ENXIO, os.lseek, descriptor, 32 * MIB, os.SEEK_DATA)
        os.fsync(descriptor)
    os.close(descriptor)


@check
def the_end_of_a_full_file_is_its_only_hole(work):
    descriptor = open_new(f"{work}/file", b"x" * 10000)
    equal(os.lseek(descriptor, 0, os.SEEK_HOLE), 10000)
    equal(os.lseek(descriptor, 9999, os.SEEK_DATA), 9999)
    os.close(descriptor)


@check
def punching_a_hole_reads_as_zeros_and_frees_blocks(work):
    descriptor = open_new(f"{work}/file", b"x" * (8 * MIB))
    before = os.fstat(descriptor).st_blocks
    fallocate(descriptor, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 2 * MIB, 4 * MIB)
    os.fsync(descriptor)
    equal(os.fstat(descriptor).st_size, 8 * MIB)
    freed = before - os.fstat(descriptor).st_blocks
    must(abs(freed - 8192) <= 64, "blocks freed by punching 4 MiB:", freed)
    equal(os.lseek(descriptor, 0, os.SEEK_HOLE), 2 * MIB)
    equal(os.lseek(descriptor, 2 * MIB, os.SEEK_DATA), 6 * MIB)
    content = os.pread(descriptor, 8 * MIB, 0)
    must(content == b"x" * (2 * MIB) + bytes(4 * MIB) + b"x" * (2 * MIB), "bytes around the hole")
    os.close(descriptor)


@check
def punching_odd_ranges_touches_just_those_bytes(work):
    descriptor = open_new(f"{work}/file", b"x" * 20000)
    fallocate(descriptor, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 1001, 9000)
    equal(os.pread(descriptor, 20000, 0), b"x" * 1001 + bytes(9000) + b"x" * 9999)
    fallocate(descriptor, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 19000, 50000)
    equal(os.fstat(descriptor).st_size, 20000)
    equal(os.pread(descriptor, 2000, 18999), b"x" + bytes(1000))
    refused((errno.EINVAL, errno.EOPNOTSUPP), fallocate, descriptor, FALLOC_PUNCH_HOLE, 0, 10)
    os.close(descriptor)


@check
def zero_range_zeroes_and_may_grow(work):
    descriptor = open_new(f"{work}/file", b"x" * 20000)
    fallocate(descriptor, FALLOC_ZERO, 500, 10000)
    equal(os.pread(descriptor, 20000, 0), b"x" * 500 + bytes(10000) + b"x" * 9500)
    fallocate(descriptor, FALLOC_ZERO | FALLOC_KEEP_SIZE, 19000, 5000)
    equal(os.fstat(descriptor).st_size, 20000)
    equal(os.pread(descriptor, 1001, 18999), b"x" + bytes(1000))
    fallocate(descriptor, FALLOC_ZERO, 19000, 5000)
    equal(os.fstat(descriptor).st_size, 24000)
    os.close(descriptor)


@check
def fallocate_keeps_bytes_and_grows_with_zeros(work):
    descriptor = open_new(f"{work}/file", b"x" * 1000)
    fallocate(descriptor, 0, 0, MIB)
    equal(os.fstat(descriptor).st_size, MIB)
    equal(os.pread(descriptor, MIB, 0), b"x" * 1000 + bytes(MIB - 1000))
    fallocate(descriptor, FALLOC_KEEP_SIZE, 0, 4 * MIB)
    equal(os.fstat(descriptor).st_size, MIB)
    os.posix_fallocate(descriptor, 0, 2 * MIB)
    equal(os.fstat(descriptor).st_size, 2 * MIB)
    refused(errno.EINVAL, fallocate, descriptor, 0, 0, 0)
    refused(errno.EINVAL, fallocate, descriptor, 0, -1, 10)
    os.close(descriptor)
    reading = os.open(f"{work}/file", os.O_RDONLY)
    refused(errno.EBADF, fallocate, reading, 0, 0, 10)
    os.close(reading)


@check
def collapse_range_works_or_is_refused_whole(work):
    descriptor = open_new(f"{work}/file", b"a" * 65536 + b"b" * 65536 + b"c" * 65536)
    try:
        fallocate(descriptor, FALLOC_COLLAPSE, 65536, 65536)
        equal(os.pread(descriptor, 1 << 20, 0), b"a" * 65536 + b"c" * 65536)
    except OSError as error:
        equal(error.errno, errno.EOPNOTSUPP)
        equal(os.fstat(descriptor).st_size, 3 * 65536)
    os.close(descriptor)


@check
def copy_file_range_copies_between_files(work):
    content = random.Random(1).randbytes(3 * MIB + 777)
    source = open_new(f"{work}/source", content)
    target = open_new(f"{work}/target", b"t" * 1000)
    done = 0
    while done < len(content):
        count = os.copy_file_range(source, target, len(content) - done, done, 500 + done)
        must(count > 0, "copy_file_range stopped at", done)
        done += count
    equal(os.fstat(target).st_size, 500 + len(content))
    must(read(f"{work}/target") == b"t" * 500 + content, "the copied bytes")
    os.pwrite(target, b"CHANGED", 1000)
    os.pwrite(source, b"OTHER", 2 * MIB)
    must(os.pread(source, 1000, 0) == content[:1000], "writing to the copy changed the source")
    must(os.pread(target, 5, 500 + 2 * MIB) == content[2 * MIB : 2 * MIB + 5], "writing to the source changed the copy")
    os.unlink(f"{work}/source")
    os.close(source)
    must(os.pread(target, MIB, 500 + MIB) == content[MIB : 2 * MIB], "the copy without its source")
    os.close(target)


@check
def copy_file_range_sees_what_was_just_written(work):
    source, target = open_new(f"{work}/source"), open_new(f"{work}/target")
    for number in range(50):
        content = random.Random(number).randbytes(10000)
        os.pwrite(source, content, 0)
        equal(os.copy_file_range(source, target, 10000, 0, 0), 10000)
        must(os.pread(target, 10000, 0) == content, "round", number)
    os.close(source)
    os.close(target)


@check
def copy_file_range_within_one_file(work):
    descriptor = open_new(f"{work}/file", bytes(range(256)) * 1024)
    equal(os.copy_file_range(descriptor, descriptor, 65536, 0, 131072 + 7), 65536)
    equal(os.pread(descriptor, 65536, 131072 + 7), bytes(range(256)) * 256)
    refused(errno.EINVAL, os.copy_file_range, descriptor, descriptor, 65536, 0, 1000)
    os.close(descriptor)


@check
def copy_file_range_at_the_end_and_with_wrong_modes(work):
    source, target = open_new(f"{work}/source", b"12345"), open_new(f"{work}/target")
    equal(os.copy_file_range(source, target, 100, 2, 0), 3)
    equal(os.copy_file_range(source, target, 100, 5, 0), 0)
    equal(os.copy_file_range(source, target, 100, 500, 0), 0)
    reading = os.open(f"{work}/target", os.O_RDONLY)
    refused(errno.EBADF, os.copy_file_range, source, reading, 1, 0, 0)
    appending = os.open(f"{work}/target", os.O_WRONLY | os.O_APPEND)
    refused(errno.EBADF, os.copy_file_range, source, appending, 1, 0, 0)
    for descriptor in (source, target, reading, appending):
        os.close(descriptor)


@check
def a_copied_hole_stays_zeros(work):
    source, target = open_new(f"{work}/source"), open_new(f"{work}/target", b"t" * (4 * MIB))
    os.pwrite(source, b"end", 4 * MIB - 3)
    done = 0
    while done < 4 * MIB:
        done += os.copy_file_range(source, target, 4 * MIB - done, done, done)
    must(read(f"{work}/target") == bytes(4 * MIB - 3) + b"end", "the copied hole")
    os.close(source)
    os.close(target)


@check
def a_clone_shares_bytes_until_one_is_written(work):
    source = open_new(f"{work}/source", b"s" * MIB)
    target = open_new(f"{work}/target")
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError as error:
        raise Skipped(f"FICLONE: {errno.errorcode[error.errno]}") from error
    finally:
        os.close(source)
    os.pwrite(target, b"t", 5)
    equal(read(f"{work}/source") == b"s" * MIB, True)
    os.close(target)


@check
def random_ranges_agree_with_a_model(work):
    chance, model = random.Random(7), bytearray(MIB)
    descriptor = open_new(f"{work}/file", bytes(MIB))
    for number in range(2000):
        offset = chance.randrange(MIB - 1)
        length = min(chance.randrange(1, 50000), MIB - offset)
        deed = chance.randrange(5)
        if deed == 0:
            fallocate(descriptor, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, offset, length)
            model[offset : offset + length] = bytes(length)
        elif deed == 1:
            source = chance.randrange(MIB - length)
            if abs(source - offset) >= length:
                equal(os.copy_file_range(descriptor, descriptor, length, source, offset), length)
                model[offset : offset + length] = model[source : source + length]
        elif deed == 2:
            content = chance.randbytes(length)
            os.pwrite(descriptor, content, offset)
            model[offset : offset + length] = content
        else:
            must(os.pread(descriptor, length, offset) == model[offset : offset + length], "read", number)
    must(read(f"{work}/file") == model, "at the end")
    os.close(descriptor)
