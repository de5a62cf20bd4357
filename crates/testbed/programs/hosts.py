#!/usr/bin/env python3
"""Kills, freezes or cuts off the hosts of a laboratory one after the other under load and looks whether the others notice.

    hosts.py DAZZLE LAB [--blows kill,freeze,cut,part] [--rounds N] [--seed S] [--most SECONDS] [--guests fsx.sh,git.sh,fio.sh]
    hosts.py DAZZLE LAB --shared        only waits until all hosts manage as many slots

LAB is the directory of a laboratory that is up. On every host that mounts the file system, workers write, append,
overwrite, rename and remove, and note what fsync acknowledged; beside them a pulse makes small calls all the time and
notes the longest. In every round one host's daemon is killed, or stopped by a signal, or its links are cut; or
only that to one other host is, which nobody may notice, itself neither. On the others
no call may fail, and none may take longer than --most; and work must go on. Then a killed host is started again; a frozen or a cut one goes on by
itself, and must mount again. It gets its share of the slots, while the others work on; redundancy must come back by itself,
and every acknowledged byte be there, seen through every mount. On the host that is struck a watcher reads all the time what
another host writes, and must never see anything older than what was written when it began to read. Guests are tests of this
folder, dealt out to the other hosts, which run over and over meanwhile and must not fail. The seed, the rounds and the longest
calls are printed.
"""

import argparse
import functools
import json
import multiprocessing
import os
import random
import subprocess
import sys
import threading
import time
import traceback

from crash import Worker
from daemon import Broken
from guests import SIZES, Guests

# How long everything works before a host is struck, while it is away, and until it is seen to work again.
HEALTHY, DEAD, PATIENCE = 2.0, 8.0, 60.0

# What is done to a host's daemon, and what ends that.
BLOWS = {"kill": ("kill", "start"), "freeze": ("freeze", "thaw"), "cut": ("cut", "heal"), "part": ("cut", "heal")}
DONE = {"kill": "killed", "freeze": "frozen", "cut": "cut off", "part": "cut off from one other"}


def run_command(words):
    """Runs a program; in the process that has no file open."""
    return subprocess.run(words, capture_output=True, text=True, check=False)


class Lab:
    """The laboratory under test."""

    def __init__(self, dazzle, directory):
        self.dazzle, self.directory = dazzle, directory
        # A child begins by closing the files that its parent has open, and hangs where their mount does: commands are given
        # by a process that has none open.
        self.hand = multiprocessing.get_context("fork").Pool(1)

    def give(self, *words):
        """Gives a command, and its outcome."""
        return self.hand.apply(run_command, ([self.dazzle, *words],))

    def hosts(self):
        return json.loads(self.give("lab", "status", "--json", self.directory).stdout)["hosts"]

    def mounted(self):
        """The mount of every host that has one."""
        return {host["host"]: host["mount"] for host in self.hosts() if os.path.ismount(host["mount"])}

    def act(self, act, host, *more):
        done = self.give("lab", act, self.directory, str(host), *more)
        if done.returncode != 0:
            raise Broken(f"dazzle lab {act} {host} {' '.join(more)}: {done.stdout}{done.stderr}")

    def act_between(self, act, one, other):
        """Something about the link between two hosts alone."""
        for to, source in [(one, other), (other, one)]:
            self.act(act, to, "--from", str(source))

    def wait_until_mounted(self, host):
        """Until a host has joined again and its mount answers."""
        mount = next(entry["mount"] for entry in self.hosts() if entry["host"] == host)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.ask(host, "status", "--json")
                if os.path.ismount(mount) and os.listdir(mount):
                    return
            except (Broken, OSError) as error:
                if time.monotonic() > deadline:
                    raise Broken(f"host {host} is not mounted again after {PATIENCE:.0f} s: {error}") from error
            time.sleep(0.1)

    def wait_until_safe(self, host):
        """Until what is stored is as safe as before: nobody gives a command for it."""
        deadline = time.monotonic() + PATIENCE
        # "healthy without" a target is less than it was.
        while not (health := json.loads(self.ask(host, "status", "--json"))["health"]).startswith("healthy, "):
            if time.monotonic() > deadline:
                raise Broken(f"redundancy is not back after {PATIENCE:.0f} s: {health}")
            time.sleep(0.2)

    def wait_until_shared(self):
        """Until all hosts manage as many slots, one more or less, and none is on its way."""
        deadline, shares = time.monotonic() + PATIENCE, None
        host = next(iter(self.mounted()))
        while True:
            status = json.loads(self.ask(host, "status", "--json"))
            shares = dict.fromkeys((host["host"] for host in self.hosts() if host["stores"]), 0)
            for run in status["slots"]:
                shares[run["node"]] = shares.get(run["node"], 0) + run["last"] - run["first"] + 1
            if not status["slots_moving"] and max(shares.values()) - min(shares.values()) <= 1:
                return shares
            if time.monotonic() > deadline:
                raise Broken(f"slots are not shared out after {PATIENCE:.0f} s: {shares}, {status['slots_moving']}")
            time.sleep(0.1)

    def ask(self, host, *words):
        """A command about a host's own part of the file system."""
        directory = next(entry["directory"] for entry in self.hosts() if entry["host"] == host)
        return self.execute(host, *words, directory)

    def execute(self, host, *words):
        """A command on a host; what it printed."""
        done = self.give("lab", "exec", self.directory, str(host), "--", self.dazzle, *words)
        if done.returncode != 0:
            raise Broken(f"dazzle {' '.join(words)} on host {host}: {done.stdout}{done.stderr}")
        return done.stdout


class Pulse(threading.Thread):
    """Makes small calls all the time, on a file of its own and in its directory, and notes how long each took."""

    def __init__(self, root, host):
        super().__init__(daemon=True)
        self.path, self.host = os.path.join(root, f"pulse-{host}"), host
        self.beats, self.longest, self.error, self.ending = 0, (0.0, "none"), None, False

    def call(self, name, function, *arguments):
        start = time.monotonic()
        result = function(*arguments)
        self.longest = max(self.longest, (time.monotonic() - start, name))
        return result

    def run(self):
        try:
            while not self.ending:
                self.beat()
                self.beats += 1
                time.sleep(0.005)
        except OSError as error:
            self.error = error

    def beat(self):
        file = self.call("open", os.open, self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self.call("write", os.pwrite, file, b"%d" % self.beats, 0)
            self.call("fsync", os.fsync, file)
            self.call("read", os.pread, file, 20, 0)
        finally:
            self.call("close", os.close, file)
        self.call("stat", os.stat, self.path)
        self.call("list", os.listdir, os.path.dirname(self.path))
        self.call("rename", os.rename, self.path, self.path + ".old")
        self.call("unlink", os.unlink, self.path + ".old")


class Patient(Worker):
    """A worker whose host lives: no call of it may fail."""

    def __init__(self, root, number, seed):
        super().__init__(root, number, seed)
        self.error, self.ending = None, False

    def run(self):
        try:
            while not self.ending:
                self.random.choice([self.append, self.overwrite, self.replace, self.litter, self.remove])()
                self.done += 1
        except OSError as error:
            self.error = error


class Writer(threading.Thread):
    """Counts up in a file; `written` is on every machine."""

    def __init__(self, mount, name):
        super().__init__(daemon=True)
        self.file = os.open(os.path.join(mount, name), os.O_RDWR | os.O_CREAT, 0o644)
        self.written, self.error, self.ending = -1, None, False
        self.count()

    def count(self):
        os.pwrite(self.file, b"%020d" % (self.written + 1), 0)
        self.written += 1

    def run(self):
        try:
            while not self.ending:
                self.count()
                time.sleep(0.001)
        except OSError as error:
            self.error = error


class Watcher(threading.Thread):
    """Reads what the writer counts, on a host that is going to be struck, until its mount fails."""

    def __init__(self, mount, name, writer, keeps_open):
        super().__init__(daemon=True)
        self.path, self.writer, self.keeps_open = os.path.join(mount, name), writer, keeps_open
        self.reads, self.stale, self.error = 0, None, None

    def read(self, file):
        written = self.writer.written
        seen = int(os.pread(file, 20, 0))
        if seen < written and self.stale is None:
            self.stale = f"read {seen}, and {written} was written before it began to read"
        self.reads += 1

    def run(self):
        try:
            file = os.open(self.path, os.O_RDONLY)
            while not self.writer.ending and self.stale is None:
                if not self.keeps_open:
                    os.close(file)
                    file = os.open(self.path, os.O_RDONLY)
                self.read(file)
        except OSError as error:
            self.error = error


class Watch:
    """A writer on one host, and watchers on another that is to be struck."""

    def __init__(self, run, mounts, victim, blow):
        name = f"watched-{run}-{victim}"
        self.victim = victim
        self.writer = Writer(next(mount for host, mount in mounts.items() if host != victim), name)
        # While a daemon alone is stopped, its kernel still answers from the pages of what is open.
        keeps = [False] if blow == "freeze" else [False, True]
        self.watchers = [Watcher(mounts[victim], name, self.writer, keeps_open) for keeps_open in keeps]
        for thread in [self.writer, *self.watchers]:
            thread.start()

    def look(self):
        if self.writer.error is not None:
            raise Broken(f"the writer that host {self.victim} watches: {self.writer.error!r}")
        for watcher in self.watchers:
            if watcher.stale is not None:
                raise Broken(f"host {self.victim} saw the past: {watcher.stale}")

    def end(self):
        """How often was looked."""
        self.writer.ending = True
        for thread in [self.writer, *self.watchers]:
            thread.join(timeout=PATIENCE)
            if thread.is_alive():
                raise Broken(f"host {self.victim}: a read hangs for {PATIENCE:.0f} s")
        self.look()
        os.close(self.writer.file)
        looks = sum(watcher.reads for watcher in self.watchers)
        if looks == 0:
            raise Broken(f"nobody on host {self.victim} ever got to read what is written")
        return looks


class Crew:
    """All that works on one host's mount."""

    def __init__(self, run, host, mount, dice, promised):
        root = os.path.join(mount, f"hosts-{run}", f"from-{host}")
        os.makedirs(root, exist_ok=True)
        self.host, self.mount = host, mount
        self.pulse = Pulse(root, host)
        self.workers = [Patient(root, number, dice.random()) for number in range(2)]
        for number, worker in enumerate(self.workers):
            worker.promised = promised.get((host, number), {})
        for thread in self.threads():
            thread.start()

    def threads(self):
        return [self.pulse, *self.workers]

    def counts(self):
        return [self.pulse.beats, *(worker.done for worker in self.workers)]

    def look(self, when):
        for thread in self.threads():
            if thread.error is not None:
                where = traceback.extract_tb(thread.error.__traceback__)[-2:]
                calls = ", ".join(f"{frame.name}: {frame.line}" for frame in where)
                raise Broken(f"host {self.host}, {when}: {thread.error!r} in {calls}")

    def end(self):
        for thread in self.threads():
            thread.ending = True
        for thread in self.threads():
            thread.join(timeout=PATIENCE)
            if thread.is_alive():
                raise Broken(f"host {self.host}: a call hangs for {PATIENCE:.0f} s")


def wait_for_all(crews, before, when):
    """Until everybody has done something more than `before`."""
    deadline = time.monotonic() + PATIENCE
    while not all(now > then for crew, counts in zip(crews, before) for now, then in zip(crew.counts(), counts)):
        for crew in crews:
            crew.look(when)
        if time.monotonic() > deadline:
            raise Broken(f"{when}: no work is done for {PATIENCE:.0f} s: {[crew.counts() for crew in crews]}")
        time.sleep(0.05)


def strike(lab, blow, victim, crews, guests, most):
    """Strikes a host under load and has it come back; the longest call of the others until then, and while slots go back to it."""
    living = [crew for crew in crews if crew.host != victim or blow == "part"]
    begin, end = BLOWS[blow]
    other = next(crew.host for crew in reversed(crews) if crew.host != victim)
    act = functools.partial(lab.act_between, other=other) if blow == "part" else lab.act
    act(begin, victim)
    until = time.monotonic() + DEAD
    while time.monotonic() < until:
        for crew in living:
            crew.look(f"while host {victim} is {DONE[blow]}")
        guests.look()
        time.sleep(0.05)
    wait_for_all(living, [crew.counts() for crew in living], f"host {victim} is {DONE[blow]}")
    act(end, victim)
    lab.wait_until_mounted(victim)
    wait_for_all(living, [crew.counts() for crew in living], f"host {victim} is back")
    longest = take_longest(living, f"with host {victim} {DONE[blow]}", most)
    lab.wait_until_shared()
    wait_for_all(living, [crew.counts() for crew in living], f"host {victim} has its slots")
    return longest, take_longest(living, f"while host {victim} got slots", most)


def take_longest(crews, when, most):
    """The longest call since this was asked last."""
    longest = max((crew.pulse.longest for crew in crews), default=(0.0, "none"))
    for crew in crews:
        crew.pulse.longest = (0.0, "none")
    if longest[0] > most:
        raise Broken(f"{when}, a {longest[1]} took {longest[0]:.2f} s, more than {most} s")
    return longest


def verify_through(mount, crew):
    """Whether another mount shows what was promised on a crew's own."""
    for worker in crew.workers:
        own, worker.root = worker.root, os.path.join(mount, os.path.relpath(worker.root, crew.mount))
        promised = worker.promised
        worker.promised = {os.path.join(worker.root, os.path.basename(path)): list(known) for path, known in promised.items()}
        worker.verify()
        worker.root, worker.promised = own, promised


def rounds(arguments):
    lab, guests = Lab(arguments.dazzle, arguments.lab), Guests(arguments.guests)
    dice = random.Random(arguments.seed)
    everyone = [host["host"] for host in lab.hosts()]
    promised, operations, stalls, moves = {}, 0, [], []
    lab.wait_until_shared()
    for number in range(arguments.rounds):
        victim = everyone[number % len(everyone)]
        blow = arguments.blows[number % len(arguments.blows)]
        mounts = lab.mounted()
        crews = [Crew(arguments.seed, host, mount, dice, promised) for host, mount in mounts.items()]
        watch = Watch(arguments.seed, mounts, victim, blow)
        guests.start({host: mount for host, mount in mounts.items() if host != victim})
        time.sleep(HEALTHY)
        wait_for_all(crews, [crew.counts() for crew in crews], "before any host is killed")
        healthy = max(crew.pulse.longest for crew in crews)
        stall, move = strike(lab, blow, victim, crews, guests, arguments.most)
        stalls.append(stall)
        moves.append(move)
        looks = watch.end()
        guests.end()
        for crew in crews:
            crew.end()
            if crew.host != victim or blow == "part":
                crew.look("at the end of the round")
        lab.wait_until_safe(victim)
        mounts = lab.mounted()
        for crew in crews:
            operations += sum(crew.counts())
            for worker in crew.workers:
                worker.verify()
            for mount in mounts.values():
                verify_through(mount, crew)
            promised.update({(crew.host, n): worker.promised for n, worker in enumerate(crew.workers)})
        (seconds, name), (calm, _) = stalls[-1], healthy
        print(
            f"round {number + 1} of {arguments.rounds}: host {victim} {DONE[blow]}; longest call elsewhere {seconds:.2f} s "
            f"({name}), before {calm:.2f} s, while it got slots {move[0]:.2f} s ({move[1]}); it looked {looks} times; "
            f"{operations} operations so far",
            flush=True,
        )
    longest = max(stalls)
    print(
        f"hosts: {arguments.rounds} blows, {operations} operations{guests.told()}, seed {arguments.seed}, every promise kept; "
        f"longest call {longest[0]:.2f} s ({longest[1]}), {max(moves)[0]:.2f} s while slots were handed over"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("dazzle")
    parser.add_argument("lab")
    parser.add_argument("--blows", type=lambda text: text.split(","), default=["kill"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=float, default=5.0)
    parser.add_argument("--guests", type=lambda text: text.split(",") if text else [], default=[])
    parser.add_argument("--shared", action="store_true")
    arguments = parser.parse_args()
    if unknown := set(arguments.blows) - set(BLOWS):
        parser.error(f"no such blow: {', '.join(sorted(unknown))}; there are {', '.join(BLOWS)}")
    if unknown := set(arguments.guests) - set(SIZES):
        parser.error(f"no such guest: {', '.join(sorted(unknown))}; there are {', '.join(SIZES)}")
    try:
        if arguments.shared:
            print(f"slots by host: {Lab(arguments.dazzle, arguments.lab).wait_until_shared()}")
        else:
            rounds(arguments)
    except Broken as broken:
        sys.exit(f"hosts: seed {arguments.seed}: {broken}")


if __name__ == "__main__":
    main()
