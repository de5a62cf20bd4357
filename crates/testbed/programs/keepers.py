#!/usr/bin/env python3
"""What programs hold outlives the host that manages it: file locks, and open files without a name.

    keepers.py DAZZLE LAB VICTIM

LAB is the directory of a laboratory that is up, VICTIM the number of the host that is killed. Files are made so that the victim
manages them. On one of the others a program holds an exclusive flock, ranges of fcntl locks, and a file that was unlinked; on
another, programs try to get the locks, and wait for them. While the victim dies and its slots go to others, no lock may be
granted that the keeper holds, and the unlinked file must be read and written. Then the keeper lets go: each waiting program
gets its lock, and the room of the unlinked file comes back.
"""
import errno
import fcntl
import json
import multiprocessing
import os
import sys
import time

from daemon import Broken
from hosts import Lab

# How long the victim is watched to be dead: its lease, the recovery of its slots, and the grace of files without a name.
DEAD, PATIENCE = 15.0, 20.0
RANGES = [(fcntl.LOCK_EX, 100, 0), (fcntl.LOCK_SH, 50, 200)]
BLOCK = 1 << 16
# Not forked: a child would have the keeper's files open too.
APART = multiprocessing.get_context("spawn")


def check_managed(lab, host, path):
    """A host tells about a file of the slots that it manages itself, and of no others."""
    inode = json.loads(lab.execute(host, "why", "--json", path))["inode"]
    if inode != os.stat(path).st_ino:
        raise Broken(f"dazzle why tells of inode {inode}, and {path} is another")


def is_refused(take):
    try:
        take()
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return True
        raise
    return False


def wait_for(path, kind, got):
    """A program that waits for a lock, and holds it for as long as it lives."""
    with open(path, "r+b") as file:
        if kind == "flock":
            fcntl.flock(file, fcntl.LOCK_EX)
        else:
            fcntl.lockf(file, fcntl.LOCK_EX, 0, 0)
        got.set()
        time.sleep(PATIENCE)


class Waiter:
    """Such a program, and whether it has its lock."""

    def __init__(self, path, kind):
        self.kind, self.got = kind, APART.Event()
        self.process = APART.Process(target=wait_for, args=(path, kind, self.got), daemon=True)
        self.process.start()

    def look(self, when):
        if self.got.is_set():
            raise Broken(f"{when}: a program that waits got a {self.kind} lock that another holds")
        if not self.process.is_alive():
            raise Broken(f"{when}: waiting for a {self.kind} lock failed")


class Rival:
    """Tries to get what the keeper holds."""

    def __init__(self, directory):
        self.flocked = os.open(os.path.join(directory, "flocked"), os.O_RDWR)
        self.ranged = os.open(os.path.join(directory, "ranged"), os.O_RDWR)

    def look(self, when):
        tries = {
            "a flock": lambda: fcntl.flock(self.flocked, fcntl.LOCK_SH | fcntl.LOCK_NB),
            "an exclusive range": lambda: fcntl.lockf(self.ranged, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 99),
            "a shared range": lambda: fcntl.lockf(self.ranged, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0),
            "a range that others share": lambda: fcntl.lockf(self.ranged, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 249),
        }
        for name, take in tries.items():
            if not is_refused(take):
                raise Broken(f"{when}: {name} is granted that another holds")
        fcntl.lockf(self.ranged, fcntl.LOCK_EX | fcntl.LOCK_NB, 50, 120)
        fcntl.lockf(self.ranged, fcntl.LOCK_UN, 50, 120)


class Keeper:
    """Holds locks, and a file without a name."""

    def __init__(self, directory):
        self.flocked = os.open(os.path.join(directory, "flocked"), os.O_RDWR)
        self.ranged = os.open(os.path.join(directory, "ranged"), os.O_RDWR)
        fcntl.flock(self.flocked, fcntl.LOCK_EX)
        for kind, length, start in RANGES:
            fcntl.lockf(self.ranged, kind, length, start)
        path = os.path.join(directory, "unnamed")
        self.unnamed = os.open(path, os.O_RDWR | os.O_CREAT)
        self.blocks = 0
        self.write()
        os.fsync(self.unnamed)
        os.unlink(path)

    def write(self):
        os.pwrite(self.unnamed, self.block(self.blocks), self.blocks * BLOCK)
        self.blocks += 1

    @staticmethod
    def block(number):
        return bytes([number % 251]) * BLOCK

    def look(self, when):
        self.write()
        os.fsync(self.unnamed)
        os.posix_fadvise(self.unnamed, 0, 0, os.POSIX_FADV_DONTNEED)
        for number in range(self.blocks):
            if os.pread(self.unnamed, BLOCK, number * BLOCK) != self.block(number):
                raise Broken(f"{when}: the file without a name lost its block {number}")
        if os.fstat(self.unnamed).st_nlink != 0:
            raise Broken(f"{when}: the file without a name has one")

    def let_go(self):
        fcntl.flock(self.flocked, fcntl.LOCK_UN)
        fcntl.lockf(self.ranged, fcntl.LOCK_UN)
        os.close(self.unnamed)


def inodes(mount):
    told = os.statvfs(mount)
    return told.f_files - told.f_ffree


def within(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise Broken(f"after {PATIENCE:.0f} s, {what}")
        time.sleep(0.1)


def keep(lab, victim):
    mounts = lab.mounted()
    lab.wait_until_safe(victim)
    (own, other), name = [host for host in mounts if host != victim][:2], f"kept-from-{victim}"
    os.mkdir(os.path.join(mounts[victim], name))
    for file in ("flocked", "ranged"):
        os.close(os.open(os.path.join(mounts[victim], name, file), os.O_CREAT | os.O_RDWR))
    before = inodes(mounts[own])
    keeper, rival = Keeper(os.path.join(mounts[own], name)), Rival(os.path.join(mounts[other], name))
    waiters = [Waiter(os.path.join(mounts[other], name, file), kind) for file, kind in (("flocked", "flock"), ("ranged", "fcntl"))]
    time.sleep(1)
    check_managed(lab, victim, os.path.join(mounts[victim], name, "flocked"))
    looks = 0
    lab.act("kill", victim)
    until = time.monotonic() + DEAD
    while time.monotonic() < until:
        when = f"{DEAD - until + time.monotonic():.1f} s after host {victim} was killed"
        for one in (keeper, rival, *waiters):
            one.look(when)
        looks += 1
    keeper.let_go()
    for waiter in waiters:
        within(waiter.got.is_set, f"a {waiter.kind} lock that was given up is not granted to who waits")
    if not is_refused(lambda: fcntl.flock(keeper.flocked, fcntl.LOCK_EX | fcntl.LOCK_NB)):
        raise Broken("a flock is granted that a waiter has by now")
    within(lambda: inodes(mounts[own]) <= before, "the file without a name is not freed")
    for waiter in waiters:
        waiter.process.kill()
    print(f"keepers: ok: {looks} looks at {len(RANGES) + 1} locks and {keeper.blocks} blocks without a name, host {victim} killed")


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    try:
        keep(Lab(sys.argv[1], sys.argv[2]), int(sys.argv[3]))
    except (Broken, OSError) as broken:
        sys.exit(f"keepers: {broken}")


if __name__ == "__main__":
    main()
