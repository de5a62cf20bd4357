#!/usr/bin/env python3
"""Restarts the daemons of a laboratory one after the other under load and looks whether any program notices.

    restarts.py DAZZLE LAB [--rounds N] [--seed S] [--most SECONDS]
    restarts.py hold DIRECTORY        what a program may hold, until it is told to let go

LAB is the directory of a laboratory that is up. On every host workers write, append, overwrite, rename and remove, and a pulse makes
small calls, as in hosts.py; a program holds files open, one of them without a name, one mapped and written through the mapping, a working
directory that was removed, a flock and a range of a file, and another one waits for the flock. On the host that is restarted
somebody reads what another host writes. No call may fail, on no host, none may take longer than --most, no lock may
change hands, nothing read may be old; and in the end every acknowledged byte must be there, seen through every mount.
"""

import argparse
import fcntl
import json
import mmap
import os
import random
import subprocess
import sys
import time

from daemon import Broken
from hosts import Crew, Lab, Watch, callers_of, take_longest, told, verify_through, wait_for_all

# How long everything works before a daemon is restarted, and how long a program may take to begin or to let go.
HEALTHY, PATIENCE = 1.0, 30.0
BLOCK = b"held" * 25_000


def hold(directory):
    """Holds all sorts of things; says so; waits for a line; looks at them, and lets go."""
    kept = open(os.path.join(directory, "kept"), "w+b")
    kept.write(BLOCK)
    kept.flush()
    nameless = open(os.path.join(directory, "nameless"), "w+b")
    nameless.write(BLOCK)
    nameless.flush()
    os.unlink(nameless.name)
    mapped = mmap.mmap(kept.fileno(), len(BLOCK))
    removed = os.path.join(directory, "removed")
    os.mkdir(removed)
    os.chdir(removed)
    os.rmdir(removed)
    flock, ranges = (open(os.path.join(directory, name), "w+b") for name in ("flock", "ranges"))
    fcntl.flock(flock, fcntl.LOCK_EX)
    fcntl.lockf(ranges, fcntl.LOCK_EX, 100, 50)
    waiter = os.fork()
    if waiter == 0:
        with open(flock.name, "r+b") as own:
            # Another process opens the file anew: closing what it got with the fork gives up nothing.
            fcntl.flock(own, fcntl.LOCK_EX)
        os._exit(0)
    print("held", flush=True)
    sys.stdin.readline()
    check(os.waitpid(waiter, os.WNOHANG) == (0, 0), "somebody else got the flock")
    tries = os.fork()
    if tries == 0:
        with open(ranges.name, "r+b") as own:
            try:
                fcntl.lockf(own, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 60)
            except OSError:
                os._exit(0)
            os._exit(1)
    check(os.waitpid(tries, 0)[1] == 0, "somebody else got the range")
    mapped[:4] = b"MINE"
    mapped.flush()
    kept.seek(0)
    check(kept.read() == b"MINE" + BLOCK[4:], "the file that was mapped is another")
    nameless.write(BLOCK)
    os.fsync(nameless.fileno())
    nameless.seek(0)
    check(nameless.read() == 2 * BLOCK, "the file without a name is another")
    check(os.stat(".").st_nlink == 0, "the working directory is back")
    fcntl.flock(flock, fcntl.LOCK_UN)
    check(os.waitpid(waiter, 0)[1] == 0, "who waited for the flock failed")
    print("all held", flush=True)


def check(holds, problem):
    if not holds:
        sys.exit(problem)


class Keeper:
    """A program that holds things, on one host."""

    def __init__(self, mount, run):
        directory = os.path.join(mount, f"holds-{run}-{os.path.basename(mount)}")
        os.mkdir(directory)
        words = [sys.executable, os.path.abspath(__file__), "hold", directory]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.mount = mount
        if self.process.stdout.readline() != "held\n":
            raise Broken(f"nothing can be held on {mount}")

    def let_go(self):
        said, _ = self.process.communicate("go\n", timeout=PATIENCE)
        if said != "all held\n":
            raise Broken(f"what was held on {self.mount} was lost: {said}")


def restart(lab, host, crews):
    """Restarts one daemon under load; how long that took."""
    begun = time.monotonic()
    told = json.loads(lab.ask(host, "restart", "--json"))
    took = time.monotonic() - begun
    if not told["kept"]:
        raise Broken(f"host {host} began anew, and what programs had open is lost")
    wait_for_all(crews, [crew.counts() for crew in crews], f"host {host} was restarted")
    return took


def rounds(arguments):
    lab = Lab(arguments.dazzle, arguments.lab)
    dice = random.Random(arguments.seed)
    lab.wait_until_shared()
    mounts = lab.mounted()
    crews = [Crew(arguments.seed, host, mount, dice, {}) for host, mount in mounts.items()]
    stalls, restarts = [], []
    for number in range(arguments.rounds):
        keepers = [Keeper(mount, f"{arguments.seed}-{number}") for mount in mounts.values()]
        for host in mounts:
            watch = Watch(f"{arguments.seed}-{number}", mounts, host)
            time.sleep(HEALTHY)
            take_longest(callers_of(crews), "before a restart", arguments.most)
            restarts.append(restart(lab, host, crews))
            stalls.append(take_longest(callers_of(crews), f"while host {host} was restarted", arguments.most))
            looks = watch.end()
            for watcher in watch.watchers:
                if watcher.error is not None:
                    raise Broken(f"a reader on host {host}: {watcher.error!r}")
            print(
                f"host {host} restarted in {restarts[-1]:.2f} s; longest call {told(stalls[-1])}; "
                f"{looks} looks at what another host writes",
                flush=True,
            )
        for keeper in keepers:
            keeper.let_go()
    for crew in crews:
        crew.end()
        crew.look("at the end")
    lab.wait_until_safe(next(iter(mounts)))
    for crew in crews:
        for mount in mounts.values():
            verify_through(mount, crew)
    operations = sum(sum(crew.counts()) for crew in crews)
    print(
        f"restarts: {len(restarts)} of {len(mounts)} daemons, {operations} operations, seed {arguments.seed}, nobody noticed but by "
        f"waiting; longest call {told(map(max, zip(*stalls)))}; longest restart {max(restarts):.2f} s"
    )


def main():
    if sys.argv[1:2] == ["hold"]:
        hold(sys.argv[2])
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("dazzle")
    parser.add_argument("lab")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=float, default=5.0)
    arguments = parser.parse_args()
    try:
        rounds(arguments)
    except Broken as broken:
        sys.exit(f"restarts: seed {arguments.seed}: {broken}")


if __name__ == "__main__":
    main()
