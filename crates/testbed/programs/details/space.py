"""Space: what statfs says, and that it follows what is written and removed."""

import os
import time

from .bench import check, must, write

MIB = 1 << 20


def free_bytes(path):
    """Free bytes for root."""
    about = os.statvfs(path)
    return about.f_bfree * about.f_frsize


@check
def statfs_makes_sense(work):
    about = os.statvfs(work)
    must(about.f_frsize >= 512 and about.f_bsize >= 512, "block sizes:", about)
    must(0 < about.f_bavail <= about.f_bfree <= about.f_blocks, "blocks:", about)
    must(0 < about.f_ffree <= about.f_files, "files:", about)
    must(about.f_namemax == 255, "longest name:", about.f_namemax)
    descriptor = os.open(write(f"{work}/file"), os.O_RDONLY)
    must(os.fstatvfs(descriptor).f_blocks == about.f_blocks, "the same through an open file")
    os.close(descriptor)


@check
def writing_uses_space_and_removing_gives_it_back(work):
    before = free_bytes(work)
    descriptor = os.open(f"{work}/file", os.O_WRONLY | os.O_CREAT)
    # What earlier checks removed may be given back meanwhile; it is much less than this.
    for _ in range(256):
        os.write(descriptor, os.urandom(MIB))
    os.fsync(descriptor)
    os.close(descriptor)
    used = before - free_bytes(work)
    must(used > 128 * MIB, "256 MiB written and synced took", used, "bytes of free space")
    os.unlink(f"{work}/file")
    # Others use the disk as well, and removal may be finished in the background.
    for _ in range(300):
        if free_bytes(work) > before - 32 * MIB:
            return
        time.sleep(0.1)
    must(False, "after removing 256 MiB free space is still lower by", before - free_bytes(work))


@check
def a_sparse_file_takes_no_space(work):
    before = free_bytes(work)
    os.truncate(write(f"{work}/file"), 8 << 40)
    must(before - free_bytes(work) < 64 * MIB, "a hole of 8 TiB took", before - free_bytes(work))
    must(os.stat(f"{work}/file").st_blocks < 64, "blocks of a hole")
