#!/usr/bin/env python3
"""Overwrites everything at random, many times over, on a small file system whose daemon is killed in between.

    space.py DAZZLE DIR MOUNT [--large MIB] [--files N] [--times T] [--kills K] [--seed S]

One file of --large MiB is overwritten in random places and a tree of --files small files is rewritten, truncated and
replaced, until all of it was written T times over. At K moments on the way the daemon is killed with SIGKILL. Never may a
write be refused: what lives fits. After every kill each page must be one that was written there, and no older than what
was fsynced last. At the end everything is removed, and the free space must be back.

Printed: what programs wrote, what was stored for that (the write cost), and the cost that the log-structured file system's
curve 2 / (1 - u) gives for a cleaner that finds its stripes no emptier than the disk is full.
"""

import argparse
import os
import random
import shutil
import struct
import sys
import time

from daemon import Broken, Daemon

PAGE = 4096
STAMP = struct.Struct("<QQ")
SETTLE_SECONDS = 120
# A few stripes: open ones, and what lies among live bytes.
SLACK = 24 << 20


class Pages:
    """Pages that say which they are: a number, a generation, and filler."""

    def __init__(self, dice):
        self.filler = dice.randbytes(PAGE - STAMP.size)
        self.buffer = bytearray((bytes(STAMP.size) + self.filler) * 512)

    def stamped(self, first, count, generation):
        """Pages `first` and following, of one generation. Valid until the next call."""
        for index in range(count):
            STAMP.pack_into(self.buffer, index * PAGE, first + index, generation)
        return memoryview(self.buffer)[: count * PAGE]

    def read(self, content, where):
        """The stamps of all pages."""
        stamps = []
        for at in range(0, len(content), PAGE):
            if content[at + STAMP.size : at + PAGE] != self.filler[: len(content) - at - STAMP.size]:
                raise Broken(f"{where}: the page at {at} holds what nobody wrote")
            stamps.append(STAMP.unpack_from(content, at))
        return stamps


class Large:
    """The large file. Each page may hold any generation from `least`, which an fsync vouched for, to `newest`."""

    def __init__(self, root, pages, count):
        self.path, self.pages, self.count = os.path.join(root, "large"), pages, count
        self.least = [0] * count
        self.newest = [0] * count

    def fill(self, generation):
        with open(self.path, "wb", buffering=0) as file:
            for first in range(0, self.count, 256):
                write_all(file, self.pages.stamped(first, min(256, self.count - first), generation))
        self.newest = [generation] * self.count
        return self.count

    def overwrite(self, dice, generation):
        """Some pages in a row, most often few; returns how many."""
        length = min(dice.choice([1, 1, 4, 16, 64, 256]), self.count)
        first = dice.randrange(self.count - length + 1)
        with open(self.path, "r+b", buffering=0) as file:
            file.seek(first * PAGE)
            write_all(file, self.pages.stamped(first, length, generation))
        self.newest[first : first + length] = [generation] * length
        return length

    def settle(self):
        with open(self.path, "rb") as file:
            os.fsync(file.fileno())
        self.least = self.newest[:]

    def verify(self):
        found = []
        with open(self.path, "rb", buffering=0) as file:
            while content := file.read(512 * PAGE):
                found.extend(self.pages.read(content, self.path))
        if len(found) != self.count:
            raise Broken(f"{self.path}: {len(found)} pages of {self.count}")
        for at, (page, generation) in enumerate(found):
            if page != at or not self.least[at] <= generation <= self.newest[at]:
                known = f"{self.least[at]} to {self.newest[at]}"
                raise Broken(f"{self.path}: page {at} holds page {page}, generation {generation} and not {known}")
        self.least = [generation for _, generation in found]
        self.newest = self.least[:]


class Tree:
    """The small files: each holds pages of its own number, all of one generation. What was found after a kill as it
    was not yet written, or not whole, has generation 0 and may be anything until it is written again."""

    def __init__(self, root, pages, count):
        self.pages, self.count = pages, count
        self.paths = [os.path.join(root, f"tree/{n // 200}/{n}") for n in range(count)]
        self.least = [0] * count
        self.newest = [0] * count
        for n in range(0, count, 200):
            os.makedirs(os.path.join(root, f"tree/{n // 200}"))

    def fill(self, dice, generation):
        return sum(self.rewrite(dice, number, generation) for number in range(self.count))

    def rewrite(self, dice, number, generation):
        """One file, by truncating it or by a new one that takes its name; returns how many pages."""
        path, length, way = self.paths[number], dice.choice([1, 1, 2, 2, 4, 8, 16]), dice.random()
        self.newest[number] = generation
        if way < 0.3:
            self.write(path + ".new", number, length, generation, settle=True)
            os.rename(path + ".new", path)
            return length
        self.write(path, number, length, generation, settle=way < 0.35)
        if way < 0.35:
            self.least[number] = generation
        return length

    def write(self, path, number, length, generation, settle):
        content = self.pages.stamped(0, length, generation)
        for index in range(length):
            STAMP.pack_into(content, index * PAGE, number, generation)
        with open(path, "wb", buffering=0) as file:
            write_all(file, content)
            if settle:
                os.fsync(file.fileno())

    def verify(self):
        for number, path in enumerate(self.paths):
            stamps = []
            if os.path.exists(path):
                with open(path, "rb") as file:
                    stamps = self.pages.read(file.read(), path)
            least, newest = self.least[number], self.newest[number]
            generations = {generation for _, generation in stamps}
            if any(page != number for page, _ in stamps) or len(generations) > 1:
                raise Broken(f"{path}: holds {stamps}")
            found = generations.pop() if stamps else 0
            # A rewrite that no fsync vouched for may have truncated the file and no more.
            is_cut = not stamps and least < newest
            if not is_cut and not least <= found <= newest:
                raise Broken(f"{path}: generation {found}, expected {least} to {newest}")
            self.least[number] = self.newest[number] = found


def write_all(file, content):
    view = memoryview(content)
    while view:
        view = view[file.write(view) :]


def stored_bytes(daemon):
    """Bytes that all targets were given since the daemon's start."""
    return sum(target["written"] for target in daemon.status()["targets"])


def free_bytes(mount):
    about = os.statvfs(mount)
    return about.f_bavail * about.f_frsize


def wait_for_free(mount, expected, slack):
    deadline = time.monotonic() + SETTLE_SECONDS
    while (free := free_bytes(mount)) < expected - slack:
        if time.monotonic() > deadline:
            raise Broken(f"space leaks: {expected} bytes were free, {free} are {SETTLE_SECONDS} s after all was removed")
        time.sleep(0.5)
    return free


def overwrite_all(arguments, dice, daemon):
    """Returns the bytes that live, that programs wrote and that the targets were given for that."""
    root = os.path.join(arguments.mount, "space")
    os.mkdir(root)
    pages = Pages(dice)
    large, tree = Large(root, pages, arguments.large * 256), Tree(root, pages, arguments.files)
    generation = 1
    live = large.fill(generation) + tree.fill(dice, generation)
    large.settle()
    goal = live * arguments.times
    kills = sorted(dice.randrange(live, goal) for _ in range(arguments.kills))
    written, stored, told = live, 0, 0
    while written < goal:
        for _ in range(100):
            generation += 1
            written += large.overwrite(dice, generation)
            # No file twice in a generation: the second write could be cut short behind the first's fsync.
            written += sum(tree.rewrite(dice, number, generation) for number in dice.sample(range(tree.count), 4))
        if dice.random() < 0.05:
            large.settle()
        if kills and written >= kills[0]:
            kills.pop(0)
            stored += stored_bytes(daemon)
            daemon.kill()
            daemon.up()
            large.verify()
            tree.verify()
        if written * 10 // goal > told:
            told = written * 10 // goal
            print(f"{10 * told} % written, {free_bytes(arguments.mount) >> 20} MiB free", flush=True)
    stored += stored_bytes(daemon)
    large.verify()
    tree.verify()
    return live * PAGE, written * PAGE, stored


def run(arguments):
    daemon = Daemon(arguments.dazzle, arguments.dir, arguments.mount)
    empty = free_bytes(arguments.mount)
    start = time.monotonic()
    live, written, stored = overwrite_all(arguments, random.Random(arguments.seed), daemon)
    seconds = time.monotonic() - start
    daemon.check()
    shutil.rmtree(os.path.join(arguments.mount, "space"))
    free = wait_for_free(arguments.mount, empty, SLACK)
    full = live / empty
    print(
        f"space: {written >> 20} MiB written over {live >> 20} MiB ({full:.0%} of the room) in {seconds:.0f} s with "
        f"{arguments.kills} kills, seed {arguments.seed}\n"
        f"space: {stored >> 20} MiB stored, {stored / written:.2f} for each that was written; 2 / (1 - u) = "
        f"{2 / (1 - full):.2f}\n"
        f"space: {empty >> 20} MiB were free before, {free >> 20} MiB are after all was removed"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("dazzle")
    parser.add_argument("dir")
    parser.add_argument("mount")
    parser.add_argument("--large", type=int, default=1024, metavar="MIB")
    parser.add_argument("--files", type=int, default=20000)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    try:
        run(arguments)
    except (Broken, OSError) as broken:
        sys.exit(f"space: seed {arguments.seed}: {broken}")


if __name__ == "__main__":
    main()
