#!/usr/bin/env python3
"""Kills, freezes or cuts off the hosts of a laboratory one after the other under load and looks whether the others notice.

    hosts.py DAZZLE LAB [--blows kill,freeze,cut,part] [--rounds N] [--seed S] [--most SECONDS] [--guests fsx.sh,git.sh,fio.sh]
    hosts.py DAZZLE LAB --shared        only waits until all hosts manage as many slots

LAB is the directory of a laboratory that is up. On every host that mounts the file system, workers write, append,
overwrite, rename and remove, and note what fsync acknowledged; beside them a pulse makes small calls all the time and
notes the longest; so do they. In every round one host's daemon is killed, or stopped by a signal, or its links are cut; or
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
import tempfile
import threading
import time
import traceback

from crash import Worker
from daemon import Broken
from guests import SIZES, Guests

# How long everything works before a host is struck, while it is away, and until it is seen to work again.
HEALTHY, DEAD, PATIENCE = 2.0, 8.0, 60.0

# How long writers wait behind each write whom the struck host watches.
PAUSES = [0.001, 0.3, 0.5]

# The same behind a change of a name: where nobody else changes names for some seconds the kernel keeps them for long.
RENAME_PAUSE = 5.0

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


class Calls:
    """The functions of `os`, and how long the longest call took since that was asked last."""

    def __init__(self):
        self.longest = (0.0, "none")

    def __getattr__(self, name):
        function = getattr(os, name)

        def timed(*arguments):
            start = time.monotonic()
            try:
                return function(*arguments)
            finally:
                self.longest = max(self.longest, (time.monotonic() - start, name))

        return timed

    def take_longest(self):
        longest, self.longest = self.longest, (0.0, "none")
        return longest


class Pulse(threading.Thread):
    """Makes small calls all the time, on a file of its own and in its directory."""

    def __init__(self, root, host):
        super().__init__(daemon=True)
        self.path, self.host, self.os = os.path.join(root, f"pulse-{host}"), host, Calls()
        self.beats, self.error, self.ending = 0, None, False

    def run(self):
        try:
            while not self.ending:
                self.beat()
                self.beats += 1
                time.sleep(0.005)
        except OSError as error:
            self.error = error

    def beat(self):
        file = self.os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self.os.pwrite(file, b"%d" % self.beats, 0)
            self.os.fsync(file)
            self.os.pread(file, 20, 0)
        finally:
            self.os.close(file)
        self.os.stat(self.path)
        self.os.listdir(os.path.dirname(self.path))
        self.os.rename(self.path, self.path + ".old")
        self.os.unlink(self.path + ".old")


class Patient(Worker):
    """A worker whose host lives: no call of it may fail."""

    def __init__(self, root, number, seed):
        super().__init__(root, number, seed)
        self.os, self.error, self.ending = Calls(), None, False

    def run(self):
        try:
            while not self.ending:
                self.random.choice([self.append, self.overwrite, self.replace, self.litter, self.remove])()
                self.done += 1
        except OSError as error:
            self.error = error


class Writer(threading.Thread):
    """Counts up in a file, with a pause behind each; `written` is on every machine, and on disk."""

    def __init__(self, mount, name, pause):
        super().__init__(daemon=True)
        self.pause, self.os = pause, Calls()
        self.file = os.open(os.path.join(mount, name), os.O_RDWR | os.O_CREAT, 0o644)
        self.written, self.error, self.ending = -1, None, False
        self.count()

    def count(self):
        self.os.pwrite(self.file, b"%020d" % (self.written + 1), 0)
        self.os.fsync(self.file)
        self.written += 1

    def run(self):
        try:
            while not self.ending:
                self.count()
                time.sleep(self.pause)
        except OSError as error:
            self.error = error


class Renamer(Writer):
    """Counts up in the name of a file."""

    def __init__(self, mount, name, pause):
        self.directory = tempfile.mkdtemp(prefix=name, dir=mount)
        super().__init__(self.directory, "-1", pause)

    def count(self):
        old, new = (os.path.join(self.directory, str(self.written + more)) for more in [0, 1])
        self.os.rename(old, new)
        self.written += 1


class Watcher(threading.Thread):
    """Reads what the writer counts, on a host that is going to be struck, until its mount fails."""

    def __init__(self, mount, name, writer, keeps_open):
        super().__init__(daemon=True)
        self.path, self.writer, self.keeps_open = os.path.join(mount, name), writer, keeps_open
        self.reads, self.stale, self.error = 0, None, None

    def read(self, file):
        written, begun = self.writer.written, time.monotonic()
        seen = int(os.pread(file, 20, 0))
        if seen < written and self.stale is None:
            which = f"{os.path.basename(self.path)}, {'held open' if self.keeps_open else 'opened anew'}"
            self.stale = begun, f"{which}: read {seen}, and {written} was written before it began to read"
        self.reads += 1

    def run(self):
        try:
            file = os.open(self.path, os.O_RDONLY)
            while not self.writer.ending and self.stale is None:
                if not self.keeps_open:
                    os.close(file)
                    file = os.open(self.path, os.O_RDONLY)
                self.read(file)
                time.sleep(0.0005)
        except OSError as error:
            self.error = error


class Looker(Watcher):
    """Looks what the renamer counts."""

    def read(self, file):
        written, begun = self.writer.written, time.monotonic()
        if os.path.exists(os.path.join(self.path, str(written - 1))) and self.stale is None:
            self.stale = begun, f"found the name {written - 1}, and it was renamed to {written} before it looked"
        os.path.exists(os.path.join(self.path, str(written)))
        self.reads += 1


class Watch:
    """Writers on one host, and watchers on another that is to be struck."""

    def __init__(self, run, mounts, victim):
        self.victim, self.struck = victim, None
        other = next(mount for host, mount in mounts.items() if host != victim)
        # What is written all the time the kernel of a watcher seldom has a page of; of the others it has one when it is struck.
        pauses = {f"watched-{run}-{victim}-{number}": pause for number, pause in enumerate(PAUSES)}
        self.writers = [Writer(other, name, pause) for name, pause in pauses.items()]
        pairs = zip(pauses, self.writers)
        self.watchers = [Watcher(mounts[victim], name, writer, keeps) for name, writer in pairs for keeps in [False, True]]
        renamer = Renamer(other, f"watched-{run}-{victim}-", RENAME_PAUSE)
        self.writers.append(renamer)
        self.watchers.append(Looker(mounts[victim], os.path.basename(renamer.directory), renamer, keeps_open=True))
        for thread in [*self.writers, *self.watchers]:
            thread.start()

    def look(self):
        for writer in self.writers:
            if writer.error is not None:
                raise Broken(f"the writer that host {self.victim} watches: {writer.error!r}")
        for watcher in self.watchers:
            if watcher.stale is not None:
                (begun, stale), struck = watcher.stale, self.struck
                when = "it was not struck" if struck is None else f"{begun - struck:.3f} s after the blow began"
                raise Broken(f"host {self.victim} saw the past: {stale}; {when}")

    def end(self):
        """How often was looked."""
        for writer in self.writers:
            writer.ending = True
        for thread in [*self.writers, *self.watchers]:
            thread.join(timeout=PATIENCE)
            if thread.is_alive():
                raise Broken(f"host {self.victim}: a read hangs for {PATIENCE:.0f} s")
        self.look()
        for writer in self.writers:
            os.close(writer.file)
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


def strike(lab, blow, victim, crews, watch, guests, most):
    """Strikes a host under load and has it come back; the longest calls of the others until then, and while it gets slots."""
    living = [crew for crew in crews if crew.host != victim or blow == "part"]
    callers = callers_of(living, *watch.writers)
    forget_longest(callers)
    begin, end = BLOWS[blow]
    other = next(crew.host for crew in reversed(crews) if crew.host != victim)
    act = functools.partial(lab.act_between, other=other) if blow == "part" else lab.act
    watch.struck = time.monotonic()
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
    longest = take_longest(callers, f"with host {victim} {DONE[blow]}", most)
    lab.wait_until_shared()
    wait_for_all(living, [crew.counts() for crew in living], f"host {victim} has its slots")
    return longest, take_longest(callers, f"while host {victim} got slots", most)


def callers_of(crews, *more):
    """Whose calls are timed: the pulses, and those who work."""
    return [crew.pulse for crew in crews], [*more, *(worker for crew in crews for worker in crew.workers)]


def forget_longest(callers):
    """What they waited for until now is nobody's stall."""
    for caller in [*callers[0], *callers[1]]:
        caller.os.take_longest()


def take_longest(callers, when, most):
    """The longest calls since this was asked last: of pulses, and of those who work."""
    pulses, others = [max((caller.os.take_longest() for caller in some), default=(0.0, "none")) for some in callers]
    seconds, name = max(pulses, others)
    if seconds > most:
        raise Broken(f"{when}, a {name} took {seconds:.2f} s, more than {most} s")
    return pulses, others


def told(longest):
    """The longest calls as words."""
    pulse, other = (f"{seconds:.2f} s ({name})" for seconds, name in longest)
    return f"{pulse} of a pulse, {other} of a worker"


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
        watch = Watch(arguments.seed, mounts, victim)
        guests.start({host: mount for host, mount in mounts.items() if host != victim})
        time.sleep(HEALTHY)
        wait_for_all(crews, [crew.counts() for crew in crews], "before any host is killed")
        healthy = max(crew.pulse.os.longest for crew in crews)
        stall, move = strike(lab, blow, victim, crews, watch, guests, arguments.most)
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
        print(
            f"round {number + 1} of {arguments.rounds}: host {victim} {DONE[blow]}; longest call elsewhere {told(stall)}, "
            f"before {healthy[0]:.2f} s, while it got slots {told(move)}; it looked {looks} times; {operations} operations",
            flush=True,
        )
    print(
        f"hosts: {arguments.rounds} blows, {operations} operations{guests.told()}, seed {arguments.seed}, every promise kept; "
        f"longest call {told(map(max, zip(*stalls)))}, while slots were handed over {told(map(max, zip(*moves)))}"
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
