#!/usr/bin/env python3
"""Whether cost stays flat as a Dazzle file system grows: rates, memory and restart time at several sizes.

    size.py DAZZLE DIR MOUNT [--sizes N,N,...] [--one N] [--rounds N] [--metadata MIB] [--loose]
    size.py --plain DIR [--sizes N,N,...] [--rounds N] [--loose]

DIR is the directory of a file system that is up on MOUNT, best an empty one. It is filled with files of 1 KiB, 1,000 to a
directory, up to each of --sizes. When the kernel has forgotten all that, and the daemon rests, there are --rounds rounds,
each time after the kernel's caches were dropped, and the file system has heard what the kernel forgot thereby: 10,000 files
that were just created in fresh directories are looked up in another order ("fresh"), those of ten directories in any order
("ten directories"), and 10,000 from anywhere ("anywhere"). The last is told in lookups, of directories on the way as of
files, since the more files there are, the more directories 10,000 of them lie in. Medians are told. Then the daemon is
killed with SIGKILL and started again, and all files are looked at once, so that what was in memory is there again. At last
--one files go into one directory; behind each tenth, when the daemon rests, 10,000 of all names are looked up, --rounds
times. Prints a markdown table. --metadata has the daemon keep less metadata in memory than it would.

With --plain the same goes on in a directory of another file system, for comparison: there are only rates.

Who asks stays on one processor, unless --loose: where the kernel moves it at an answer to another one that is idle, and that
one must be woken, as in some virtual machines, every call takes twice as long, of few files as of many.
"""

import argparse
import contextlib
import os
import random
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../crates/testbed/programs"))
from daemon import Daemon  # noqa: E402

PROBE = 10_000
# Of what the kernel drops it tells the file system behind the drop, for a tenth of a second here.
HEARD_SECONDS = 0.5
PER_DIRECTORY = 1_000
CONTENT = os.urandom(1024)


def create(path):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(descriptor, CONTENT)
    os.close(descriptor)


def rate(work, items):
    """How many of `items` a second `work` takes."""
    start = time.perf_counter()
    for item in items:
        work(item)
    return len(items) / (time.perf_counter() - start)


@contextlib.contextmanager
def staying(is_loose):
    """On one processor, unless `is_loose`."""
    everywhere = os.sched_getaffinity(0)
    if not is_loose:
        os.sched_setaffinity(0, {max(everywhere)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, everywhere)


def forget():
    """The kernel drops its caches of names and inodes."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
        file.write("2")
    time.sleep(HEARD_SECONDS)


def in_parallel(works):
    """Runs each of `works` in a process of its own."""
    children = []
    for work in works:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                work()
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    if any(os.waitpid(child, 0)[1] != 0 for child in children):
        raise RuntimeError("a process that fills the file system failed")


class Fill:
    """Many directories with files, numbered through."""

    def __init__(self, root):
        self.root, self.count = root, 0

    def path(self, number):
        directory, name = divmod(number, PER_DIRECTORY)
        return os.path.join(self.root, f"many/{directory // 1000}/{directory % 1000}/{name}")

    def of_directories(self, count):
        """All files of so many directories, in any order."""
        directories = random.sample(range(self.count // PER_DIRECTORY), count)
        paths = [self.path(directory * PER_DIRECTORY + number) for directory in directories for number in range(PER_DIRECTORY)]
        random.shuffle(paths)
        return paths

    def walk(self):
        """Looks at every file once."""
        for number in range(self.count):
            os.stat(self.path(number))

    def grow(self, count):
        """Two processes make directories and files up to `count`."""
        directories = range(self.count // PER_DIRECTORY, count // PER_DIRECTORY)

        def work(share):
            for directory in directories[share::2]:
                first = directory * PER_DIRECTORY
                os.makedirs(os.path.dirname(self.path(first)), exist_ok=True)
                for number in range(first, first + PER_DIRECTORY):
                    create(self.path(number))

        start = time.perf_counter()
        in_parallel([lambda: work(0), lambda: work(1)])
        self.count = len(directories) * PER_DIRECTORY + self.count
        return len(directories) * PER_DIRECTORY / (time.perf_counter() - start)


def probe(root, name, fill):
    """Rates of creating, of stats of what was just made, and of stats of any file."""
    paths = []
    for directory in range(PROBE // PER_DIRECTORY):
        os.makedirs(os.path.join(root, name, str(directory)))
        paths += [os.path.join(root, name, str(directory), str(number)) for number in range(PER_DIRECTORY)]
    created = rate(create, paths)
    forget()
    random.Random(1).shuffle(paths)
    fresh = rate(os.stat, paths)
    forget()
    near = rate(os.stat, fill.of_directories(PROBE // PER_DIRECTORY))
    forget()
    # Each once: what the kernel remembers from a moment ago is no answer of ours, and of few files it would be many.
    numbers = random.sample(range(fill.count), min(PROBE, fill.count))
    lookups = 1 + len({number // PER_DIRECTORY for number in numbers}) / len(numbers)
    return created, fresh, near, lookups * rate(os.stat, [fill.path(number) for number in numbers])


def stats_of_some(paths):
    forget()
    return rate(os.stat, random.sample(paths, PROBE))


def restart_seconds(daemon, path):
    daemon.kill()
    start = time.perf_counter()
    daemon.up()
    os.stat(path)
    return time.perf_counter() - start


def rest(daemon):
    """Waits until the daemon has done what it does behind a fill: it uses less than a twentieth of a processor."""
    second = os.sysconf("SC_CLK_TCK")
    before, used = 0, second
    while used > second // 20:
        time.sleep(1)
        now = daemon.processor_time()
        before, used = now, now - before


def told(memory):
    """Cells about the daemon's memory."""
    return [f"{memory['process'] >> 20} MiB", f"{memory['metadata'] >> 20} MiB", f"{memory['inodes']:,}"]


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def many(arguments, daemon, root):
    """One row for each size."""
    columns = ["files", "fill/s", "create/s", "stat fresh/s", "stat of ten directories/s", "lookups anywhere/s"]
    columns += ["daemon", "its metadata", "inodes it knows", "up after kill -9"] if daemon else []
    row(*columns)
    row(*["---:"] * len(columns))
    fill = Fill(root)
    for size in arguments.sizes:
        filled = fill.grow(size)
        forget()
        if daemon:
            rest(daemon)
        with staying(arguments.loose):
            figures = [probe(root, f"probe-{size}-{number}", fill) for number in range(arguments.rounds)]
        medians = (statistics.median(column) for column in zip(*figures))
        cells = [f"{size:,}", *(f"{figure:,.0f}" for figure in (filled, *medians))]
        if daemon:
            cells += [*told(daemon.status()["memory"]), f"{restart_seconds(daemon, fill.path(0)):.1f} s"]
            fill.walk()
        row(*cells)


def one(arguments, daemon, root):
    """A row for each tenth of one directory."""
    print()
    row("names in one directory", "create/s", "stat/s", "daemon", "its metadata", "inodes it knows")
    row("---:", *["---:"] * 5)
    directory = os.path.join(root, "one")
    os.mkdir(directory)
    tenth = arguments.one // 10
    paths = []
    for part in range(10):
        new = [os.path.join(directory, f"a-name-of-usual-length-{number}") for number in range(part * tenth, (part + 1) * tenth)]
        paths += new
        with staying(arguments.loose):
            created = rate(create, new)
            rest(daemon)
            seen = statistics.median(stats_of_some(paths) for _ in range(arguments.rounds))
        memory = daemon.status()["memory"]
        row(f"{(part + 1) * tenth:,}", f"{created:,.0f}", f"{seen:,.0f}", *told(memory))
    start = time.perf_counter()
    listed = sum(1 for _ in os.scandir(directory))
    print(f"\nlisting it: {listed / (time.perf_counter() - start):,.0f} names/s")
    print(f"up after kill -9: {restart_seconds(daemon, directory):.1f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("dazzle", nargs="?")
    parser.add_argument("dir", nargs="?")
    parser.add_argument("mount", nargs="?")
    parser.add_argument("--plain", metavar="DIR")
    parser.add_argument("--sizes", default="10000,100000,1000000,5000000")
    parser.add_argument("--one", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--metadata", type=int, metavar="MIB")
    parser.add_argument("--loose", action="store_true")
    arguments = parser.parse_args()
    if (arguments.mount is None) == (arguments.plain is None) or arguments.plain and arguments.metadata:
        parser.error("give DAZZLE, DIR and MOUNT, or --plain DIR without --metadata")
    arguments.sizes = [int(size) for size in arguments.sizes.split(",") if size]
    daemon = None if arguments.plain else Daemon(arguments.dazzle, arguments.dir, arguments.mount)
    if arguments.metadata:
        daemon.restart_with(metadata=arguments.metadata)
    root = os.path.join(arguments.plain or arguments.mount, "size")
    os.mkdir(root)
    if arguments.sizes:
        many(arguments, daemon, root)
    if arguments.one and daemon:
        one(arguments, daemon, root)


if __name__ == "__main__":
    main()
