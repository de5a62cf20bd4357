#!/usr/bin/env python3
"""Kills the daemon at random points under a mixed load and looks whether it kept its word.

    crash.py DAZZLE DIR MOUNT [--rounds N] [--seed S]

DAZZLE is the program, DIR the directory of a file system that is up on MOUNT. In every round several workers write, append,
overwrite, rename and remove; they note what fsync acknowledged. The daemon is killed with SIGKILL at a random moment and
started again. Then every acknowledged byte must be there, every rename whose source was fsynced must hold one of the two
contents that it may hold, and `dazzle check` must find nothing. The seed and the rounds are printed.
"""

import argparse
import os
import random
import sys
import threading
import time

from daemon import Broken, Daemon

PAGE = 4096


class Worker(threading.Thread):
    """One writer with a directory of its own, and what it was promised."""

    def __init__(self, root, number, seed):
        super().__init__(daemon=True)
        self.root = os.path.join(root, f"worker-{number}")
        self.random = random.Random(seed)
        self.promised = {}  # path -> list of contents it may have, the newest last
        self.done = 0
        self.os = os  # who calls the kernel
        os.makedirs(self.root, exist_ok=True)

    def run(self):
        try:
            while True:
                self.random.choice([self.append, self.overwrite, self.replace, self.litter, self.remove])()
                self.done += 1
        except OSError:
            return  # the daemon is gone

    def path(self, family):
        return os.path.join(self.root, f"{family}-{self.random.randrange(6)}")

    def known(self, path):
        return self.promised.get(path, [b""])[-1]

    def bytes(self, most):
        return self.random.randbytes(self.random.randrange(1, most))

    def promise(self, path, content, change):
        """While `change` runs either content may survive; once it returns only the new one."""
        self.promised[path] = self.promised.get(path, [b""])[-1:] + [content]
        change()
        self.promised[path] = [content]

    def append(self):
        path, more = self.path("append"), self.bytes(3 * PAGE)

        def change():
            self.write_file(path, os.O_APPEND, more, syncs=True)

        # An append that was cut short may have grown the file in part; see `verify`.
        self.promise(path, self.known(path) + more, change)

    def overwrite(self):
        path = self.path("overwrite")
        old = self.known(path) or bytes(16 * PAGE)
        page, fresh = self.random.randrange(16) * PAGE, self.random.randbytes(PAGE)

        def change():
            file = self.os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if self.os.fstat(file).st_size == 0:
                    self.os.pwrite(file, old, 0)
                self.os.pwrite(file, fresh, page)
                self.os.fsync(file)
            finally:
                self.os.close(file)

        self.promise(path, old[:page] + fresh + old[page + PAGE :], change)

    def replace(self):
        path, content = self.path("replace"), self.bytes(40 * PAGE)

        def change():
            self.write_file(path + ".new", os.O_TRUNC, content, syncs=True)
            self.os.rename(path + ".new", path)
            directory = self.os.open(self.root, os.O_RDONLY)
            self.os.fsync(directory)
            self.os.close(directory)

        self.promise(path, content, change)

    def litter(self):
        for _ in range(self.random.randrange(20)):
            self.write_file(self.path("litter"), os.O_TRUNC, self.bytes(30 * PAGE), syncs=False)

    def remove(self):
        path = self.path("litter")
        if self.exists(path):
            self.os.unlink(path)
        name = self.path("directory")
        if self.exists(name):
            self.os.rmdir(name)
        else:
            self.os.mkdir(name)

    def exists(self, path):
        try:
            self.os.stat(path)
        except FileNotFoundError:
            return False
        return True

    def write_file(self, path, flag, content, syncs):
        file = self.os.open(path, os.O_WRONLY | os.O_CREAT | flag, 0o644)
        try:
            view = memoryview(content)
            while view:
                view = view[self.os.write(file, view) :]
            if syncs:
                self.os.fsync(file)
        finally:
            self.os.close(file)

    def verify(self):
        for path, allowed in self.promised.items():
            try:
                with open(path, "rb") as file:
                    found = file.read()
            except FileNotFoundError:
                found = b""
            if found in allowed:
                continue
            old, new = allowed[0], allowed[-1]
            family = os.path.basename(path).split("-")[0]
            if len(allowed) > 1 and family == "append" and found.startswith(old) and new.startswith(found):
                continue
            if len(allowed) > 1 and family == "overwrite" and page_wise(found, old, new):
                continue
            raise Broken(
                f"{path}: {len(found)} bytes found, {[len(content) for content in allowed]} promised; first difference at "
                f"{first_difference(found, new)}"
            )
        # What was found is what the next round builds on.
        for path in self.promised:
            content = b""
            if os.path.exists(path):
                with open(path, "rb") as file:
                    content = file.read()
            self.promised[path] = [content]


def page_wise(found, old, new):
    """Whether every page is the old or the new one: an overwrite that nobody acknowledged may have landed in part."""
    if old == b"" or len(found) != len(new):
        return new.startswith(found) or len(found) == len(new)
    pages = range(0, len(new), PAGE)
    return all(found[at : at + PAGE] in (old[at : at + PAGE], new[at : at + PAGE]) for at in pages)


def first_difference(a, b):
    return next((at for at, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def rounds(arguments):
    daemon = Daemon(arguments.dazzle, arguments.dir, arguments.mount)
    root = os.path.join(arguments.mount, "crash")
    dice = random.Random(arguments.seed)
    promised = {}
    operations = 0
    for number in range(arguments.rounds):
        workers = [Worker(root, n, dice.random()) for n in range(4)]
        for n, worker in enumerate(workers):
            worker.promised = promised.get(n, {})
            worker.start()
        time.sleep(dice.uniform(0.05, 1.5))
        daemon.kill()
        for worker in workers:
            worker.join(timeout=60)
            if worker.is_alive():
                raise Broken("a call hangs on a mount whose daemon is dead")
        daemon.up()
        for n, worker in enumerate(workers):
            worker.verify()
            promised[n] = worker.promised
            operations += worker.done
        daemon.check()
        print(f"round {number + 1} of {arguments.rounds}: kept its word ({operations} operations so far)", flush=True)
    print(f"crash: {arguments.rounds} kills, {operations} operations, seed {arguments.seed}, every promise kept")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("dazzle")
    parser.add_argument("dir")
    parser.add_argument("mount")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    try:
        rounds(arguments)
    except Broken as broken:
        sys.exit(f"crash: seed {arguments.seed}: {broken}")


if __name__ == "__main__":
    main()
