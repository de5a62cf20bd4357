#!/usr/bin/env python3
"""Kills the hosts of a laboratory one after the other under load and looks whether the others notice.

    hosts.py DAZZLE LAB [--rounds N] [--seed S] [--most SECONDS]
    hosts.py DAZZLE LAB --shared        only waits until all hosts manage as many slots

LAB is the directory of a laboratory that is up. On every host that mounts the file system, workers write, append,
overwrite, rename and remove, and note what fsync acknowledged; beside them a pulse makes small calls all the time and
notes the longest. In every round one host's daemon is killed. On the others no call may fail, none may take longer than
--most, and work must go on. Then the host is started again and gets its share of the slots, while the others work on;
redundancy must come back by itself, and every acknowledged byte be there, seen through every mount. The seed, the rounds
and the longest calls are printed.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
import traceback

from crash import Worker
from daemon import Broken

# How long everything works before a host is killed, while it is dead, and until it is seen to work again.
HEALTHY, DEAD, PATIENCE = 2.0, 8.0, 60.0


class Lab:
    """The laboratory under test."""

    def __init__(self, dazzle, directory):
        self.dazzle, self.directory = dazzle, directory

    def hosts(self):
        done = subprocess.run([self.dazzle, "lab", "status", "--json", self.directory], capture_output=True, check=True)
        return json.loads(done.stdout)["hosts"]

    def mounted(self):
        """The mount of every host that has one."""
        return {host["host"]: host["mount"] for host in self.hosts() if os.path.ismount(host["mount"])}

    def act(self, act, host):
        done = subprocess.run([self.dazzle, "lab", act, self.directory, str(host)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Broken(f"dazzle lab {act} {host}: {done.stdout}{done.stderr}")

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
            shares = dict.fromkeys((host["host"] for host in self.hosts()), 0)
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
        words = [self.dazzle, "lab", "exec", self.directory, str(host), "--", self.dazzle, *words, directory]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
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


def kill_one(lab, victim, crews, most):
    """Kills a host under load and brings it back; the longest call of the others until then, and while slots go back to it."""
    living = [crew for crew in crews if crew.host != victim]
    lab.act("kill", victim)
    until = time.monotonic() + DEAD
    while time.monotonic() < until:
        for crew in living:
            crew.look(f"while host {victim} is dead")
        time.sleep(0.05)
    wait_for_all(living, [crew.counts() for crew in living], f"host {victim} is dead")
    lab.act("start", victim)
    wait_for_all(living, [crew.counts() for crew in living], f"host {victim} is back")
    longest = take_longest(living, f"with host {victim} dead", most)
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
    lab = Lab(arguments.dazzle, arguments.lab)
    dice = random.Random(arguments.seed)
    everyone = [host["host"] for host in lab.hosts()]
    promised, operations, stalls, moves = {}, 0, [], []
    lab.wait_until_shared()
    for number in range(arguments.rounds):
        victim = everyone[number % len(everyone)]
        crews = [Crew(arguments.seed, host, mount, dice, promised) for host, mount in lab.mounted().items()]
        time.sleep(HEALTHY)
        wait_for_all(crews, [crew.counts() for crew in crews], "before any host is killed")
        healthy = max(crew.pulse.longest for crew in crews)
        stall, move = kill_one(lab, victim, crews, arguments.most)
        stalls.append(stall)
        moves.append(move)
        for crew in crews:
            crew.end()
            if crew.host != victim:
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
            f"round {number + 1} of {arguments.rounds}: host {victim} killed; longest call elsewhere {seconds:.2f} s ({name}), "
            f"before {calm:.2f} s, while it got slots {move[0]:.2f} s ({move[1]}); {operations} operations so far",
            flush=True,
        )
    longest = max(stalls)
    print(
        f"hosts: {arguments.rounds} kills, {operations} operations, seed {arguments.seed}, every promise kept; "
        f"longest call {longest[0]:.2f} s ({longest[1]}), {max(moves)[0]:.2f} s while slots were handed over"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("dazzle")
    parser.add_argument("lab")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=float, default=5.0)
    parser.add_argument("--shared", action="store_true")
    arguments = parser.parse_args()
    try:
        if arguments.shared:
            print(f"slots by host: {Lab(arguments.dazzle, arguments.lab).wait_until_shared()}")
        else:
            rounds(arguments)
    except Broken as broken:
        sys.exit(f"hosts: seed {arguments.seed}: {broken}")


if __name__ == "__main__":
    main()
