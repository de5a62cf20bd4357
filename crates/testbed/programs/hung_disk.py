#!/usr/bin/env python3
"""The disk beneath one target of several hangs, and programs go on; then it answers again, and the target comes back.

    hung_disk.py DAZZLE DIR MOUNT BELOW

DIR is the directory of a file system that is up on MOUNT. One of its targets is, or lies on, a device whose bytes are a file in the
file system mounted at BELOW. When that is frozen nothing that is written to the device comes to an end, whoever writes: programs
that sync, the kernel that writes pages back, a journal. All the while a program on each processor makes, writes, syncs, reads,
lists and removes files. No call may fail, none may take longer than BOUND, none longer than AGAIN once the target is known to
hang, and everything must be as it was written.
"""

import argparse
import contextlib
import ctypes
import json
import mmap
import multiprocessing
import os
import subprocess
import sys
import time

from daemon import Broken, Daemon

# In seconds. A disk hangs when it has ended nothing for 15 (storage's HANG_PATIENCE), which is found within one; what waited
# for it is laid anew.
BOUND = 20
AGAIN = 5
# How long anything else is waited for.
PATIENCE = 150
# Rounds of each program before the disk hangs, after programs have gone on, and when it answers again.
ROUNDS = 300
SIZE = 5000


class Shared(ctypes.Structure):
    """What a program tells of itself."""

    _fields_ = [("rounds", ctypes.c_uint64), ("longest", ctypes.c_double), ("begun", ctypes.c_double)]


class Program:
    """Calls on one processor, without a pause."""

    def __init__(self, root, processor):
        self.root, self.processor = os.path.join(root, f"by-{processor}"), processor
        self.shared = Shared.from_buffer(mmap.mmap(-1, ctypes.sizeof(Shared)))
        self.is_over = multiprocessing.Event()
        self.process = multiprocessing.Process(target=self.run)
        os.mkdir(self.root)
        self.process.start()

    @contextlib.contextmanager
    def timed(self):
        self.shared.begun = time.monotonic()
        yield
        self.shared.longest = max(self.shared.longest, time.monotonic() - self.shared.begun)
        self.shared.begun = 0

    def run(self):
        os.sched_setaffinity(0, {self.processor})
        written = {}
        while not self.is_over.is_set():
            number = self.shared.rounds
            path, content = os.path.join(self.root, str(number)), os.urandom(SIZE)
            with self.timed():
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            with self.timed():
                os.write(descriptor, content)
            if number % 4 == 0:
                with self.timed():
                    os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            with self.timed():
                self.expect(os.pread(descriptor, SIZE, 0) == content, path)
            with self.timed():
                os.close(descriptor)
            written[path] = content
            if number % 3 == 0:
                path = next(iter(written))
                with self.timed():
                    os.unlink(path)
                del written[path]
            if number % 50 == 0:
                with self.timed():
                    self.expect(len(os.listdir(self.root)) == len(written), self.root)
            self.shared.rounds = number + 1
        for path, content in written.items():
            with open(path, "rb") as file:
                self.expect(file.read() == content, path)

    @staticmethod
    def expect(is_so, path):
        if not is_so:
            raise Broken(f"{path} is not as it was written")

    def longest(self):
        """The longest call, be it over or not."""
        begun = self.shared.begun
        return max(self.shared.longest, time.monotonic() - begun if begun else 0)

    def end(self):
        self.is_over.set()
        self.process.join()
        if self.process.exitcode != 0:
            raise Broken(f"the program on processor {self.processor} failed")


def until(what, is_so):
    """Waits until `is_so` returns something, which it returns."""
    end = time.monotonic() + PATIENCE
    while not (found := is_so()):
        if time.monotonic() > end:
            raise Broken(f"{what}: not within {PATIENCE} s")
        time.sleep(0.05)
    return found


def go_on(programs, longest, when):
    """All do so many more rounds; no call has taken longer than so many seconds. Returns the longest."""
    ends = [program.shared.rounds + ROUNDS for program in programs]

    def is_so():
        for program in programs:
            if not program.process.is_alive():
                raise Broken(f"the program on processor {program.processor} failed {when}")
        return all(program.shared.rounds >= end for program, end in zip(programs, ends))

    until(f"programs go on {when}", is_so)
    took = max(program.longest() for program in programs)
    for program in programs:
        program.shared.longest = 0
    print(f"{when}: the longest call took {took:.2f} s")
    if took > longest:
        raise Broken(f"a call took {took:.2f} s {when}; {longest} s are its bound")


@contextlib.contextmanager
def frozen(path):
    """Nothing is written to the file system mounted there."""
    subprocess.run(["fsfreeze", "--freeze", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", path], check=True)


def states(daemon):
    return [target["state"] for target in daemon.status()["targets"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    for name in ("dazzle", "dir", "mount", "below"):
        parser.add_argument(name)
    arguments = parser.parse_args()
    daemon = Daemon(arguments.dazzle, arguments.dir, arguments.mount)
    programs = [Program(arguments.mount, processor) for processor in sorted(os.sched_getaffinity(0))]
    try:
        go_on(programs, AGAIN, "with all disks")
        with frozen(arguments.below):
            until("a target is known to hang", lambda: "missing" in states(daemon))
            go_on(programs, BOUND, "while a disk begins to hang")
            go_on(programs, AGAIN, "while it goes on hanging")
        until("the target is whole again", lambda: set(states(daemon)) == {"whole"})
        go_on(programs, AGAIN, "when it answers again")
        for program in programs:
            program.end()
        daemon.check()
    except Broken as broken:
        print(json.dumps([(target["name"], target["state"]) for target in daemon.status()["targets"]]))
        print(broken)
        sys.exit(1)
    finally:
        for program in programs:
            program.process.kill()


if __name__ == "__main__":
    main()
