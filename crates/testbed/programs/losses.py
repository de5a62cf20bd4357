#!/usr/bin/env python3
"""Kills several hosts of a laboratory at once under load, and then all of them, and looks whether anything is lost.

    losses.py DAZZLE LAB --lost M [--rounds N] [--away SECONDS] [--seed S]

LAB is the directory of a laboratory that is up and keeps M fragments of parity in every stripe. On every host workers write,
append, overwrite, rename and remove, and note what fsync acknowledged. In every round M hosts are killed within moments of each
other: on the others no call may fail and work must go on, and every acknowledged byte must be read there, also what workers
on the killed hosts were told. They are started again, at once or after SECONDS, in which the others work and rest in turns, and
redundancy must come back by itself. In the end all hosts are killed and started again: every acknowledged byte must be there, on every mount. The seed and the rounds are printed.
"""

import argparse
import random
import sys
import time

from daemon import Broken
from hosts import DEAD, HEALTHY, Crew, Lab, callers_of, forget_longest, take_longest, told, verify_through, wait_for_all


# Seconds between two turns of work while hosts stay away.
REST = 120.0


class Load:
    """Crews on all mounts, and what they were promised so far."""

    def __init__(self, lab, seed):
        self.lab, self.seed, self.dice = lab, seed, random.Random(seed)
        self.promised, self.operations, self.crews = {}, 0, []

    def begin(self, without=(), when="before any host is killed"):
        mounts = {host: mount for host, mount in self.lab.mounted().items() if host not in without}
        self.crews = [Crew(self.seed, host, mount, self.dice, self.promised) for host, mount in mounts.items()]
        time.sleep(HEALTHY)
        self.work_goes_on(self.crews, when)
        pulses, workers = callers_of(self.crews)
        take_longest((pulses, []), when, HEALTHY)
        forget_longest(([], workers))

    @staticmethod
    def work_goes_on(crews, when):
        wait_for_all(crews, [crew.counts() for crew in crews], when)

    def end(self, dead):
        """Everybody stops; on hosts that were not killed nothing may have failed."""
        for crew in self.crews:
            crew.end()
            if crew.host not in dead:
                crew.look(f"with {dead} killed")
        self.operations += sum(sum(crew.counts()) for crew in self.crews)

    def verify(self, mounts):
        """Every promise, as each of the mounts shows it."""
        for crew in self.crews:
            for mount in mounts:
                verify_through(mount, crew)

    def keep(self):
        """What the next round builds on."""
        for crew in self.crews:
            for worker in crew.workers:
                worker.verify()
            self.promised.update({(crew.host, n): worker.promised for n, worker in enumerate(crew.workers)})


def work_and_rest(load, victims, seconds):
    """Those that live work and rest in turns for so long; what was promised to the dead is not forgotten."""
    dead = [crew for crew in load.crews if crew.host in victims]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        load.crews = [crew for crew in load.crews if crew.host not in victims]
        load.keep()
        load.begin(victims, f"with {victims} away")
        load.end(victims)
        load.crews += dead
        load.verify(crew.mount for crew in load.crews if crew.host not in victims)
        print(f"    {max(0, until - time.monotonic()):.0f} s more without {victims}; {load.operations} operations", flush=True)
        time.sleep(min(REST, max(0, until - time.monotonic())))


def lose_some(lab, load, victims, away, most):
    """Kills hosts at once, for `away` seconds more than it takes to look; the longest calls of the others."""
    load.begin()
    for victim in victims:
        lab.act("kill", victim)
    living = [crew for crew in load.crews if crew.host not in victims]
    until = time.monotonic() + DEAD
    while time.monotonic() < until:
        for crew in living:
            crew.look(f"with {victims} killed")
        time.sleep(0.05)
    load.work_goes_on(living, f"with {victims} killed")
    longest = take_longest(callers_of(living), f"with {victims} killed", most)
    load.end(victims)
    load.verify(crew.mount for crew in living)
    work_and_rest(load, victims, away)
    for victim in victims:
        lab.act("start", victim)
        lab.wait_until_mounted(victim)
    lab.wait_until_safe(victims[0])
    load.verify(lab.mounted().values())
    load.keep()
    return longest


def lose_all(lab, load):
    """Kills all hosts and starts them; how long it took until all were mounted, and until all was safe."""
    load.begin()
    everyone = [crew.host for crew in load.crews]
    for host in everyone:
        lab.act("kill", host)
    load.end(everyone)
    began = time.monotonic()
    done = lab.give("lab", "up", lab.directory)
    if done.returncode != 0:
        raise Broken(f"dazzle lab up: {done.stdout}{done.stderr}")
    for host in everyone:
        lab.wait_until_mounted(host)
    mounted = time.monotonic() - began
    load.verify(lab.mounted().values())
    lab.wait_until_safe(everyone[0])
    safe = time.monotonic() - began
    load.verify(lab.mounted().values())
    load.keep()
    return mounted, safe


def rounds(arguments):
    lab = Lab(arguments.dazzle, arguments.lab)
    load = Load(lab, arguments.seed)
    everyone = [host["host"] for host in lab.hosts()]
    lab.wait_until_shared()
    for number in range(arguments.rounds):
        victims = sorted(load.dice.sample(everyone, arguments.lost))
        longest = lose_some(lab, load, victims, arguments.away, arguments.most)
        print(
            f"round {number + 1} of {arguments.rounds}: hosts {victims} of {len(everyone)} killed; longest call elsewhere "
            f"{told(longest)}; {load.operations} operations so far",
            flush=True,
        )
    mounted, safe = lose_all(lab, load)
    print(
        f"all {len(everyone)} hosts killed: all mounted again after {mounted:.1f} s, redundancy whole after {safe:.1f} s; "
        f"{load.operations} operations, seed {arguments.seed}, every promise kept",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("dazzle")
    parser.add_argument("lab")
    parser.add_argument("--lost", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--away", type=float, default=0.0, help="seconds for which killed hosts stay dead at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=float, default=8.0)
    arguments = parser.parse_args()
    try:
        rounds(arguments)
    except Broken as broken:
        sys.exit(f"losses: seed {arguments.seed}: {broken}")


if __name__ == "__main__":
    main()
