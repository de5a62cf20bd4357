"""How long calls wait when a manager dies that has its share of a million files.

All hosts make files in parallel, 1,000 to a directory, each in directories of its own, so that each manages what it made.
Files are empty and made by mknod: one call each, the quickest that gives an inode and a name. Then one host's daemon is
killed, in each repetition another. On all others two processes work on what it managed, each with a thread for every slot of
its that has files: one stats files that its host never saw, so that no cache answers; the other makes files. Each notes how
long its calls took.

* longest call  of those that ended after the kill
* all answer    from the kill until each thread on each host had an answer

To reach: no more than the lease, 3 s, and 2 s (DESIGN 9; xFS has no figure of it). No call may fail. The dead host is started
again, and gets its slots back, before the next one is killed.

With --full each host that lives writes all the time, as much as its link carries: what is to be read for the take-over, and
all that is said for it, has to get through. What these writers wrote is told; their own calls are not counted.
"""

import os
import random
import subprocess
import threading
import time

from daemon import Broken
from experiments.laboratory import SLOT_SHIFT, Gauge, Laboratory
from experiments.report import megabytes, percent
from experiments.together import MIB, together

PER_DIRECTORY, FILLERS = 1000, 4
LEASE, REST = 3.0, 2.0

# How large a file gets that is written to fill links.
STUFFED = 256 * MIB

# A thread pauses so long between two calls, at most: what it waits for is seldom its own load.
PAUSE = 0.2

# How long everything works before the kill, and how long it is watched afterwards.
HEALTHY, WATCHED = 3.0, 15.0
# The same where links are full.
HEALTHY_FULL, WATCHED_FULL = 8.0, 40.0


def add(subparsers):
    parser = subparsers.add_parser("takeover", help="the longest call when a manager of many files dies")
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--files", type=int, default=10**6)
    parser.add_argument("--full", action="store_true", help="all hosts that live write meanwhile, so that links are full")
    return parser


def filler(root, directories, who, report):
    """Makes directories full of files; the slot of each."""

    def run():
        slots, told = {}, time.monotonic()
        for number in range(directories):
            path = os.path.join(root, str(number))
            os.mkdir(path)
            slots[number] = os.stat(path).st_ino >> SLOT_SHIFT
            for name in range(PER_DIRECTORY):
                os.mknod(os.path.join(path, str(name)), 0o644)
            if time.monotonic() > told + 30:
                told = time.monotonic()
                report.say(f"  {who} has made {(number + 1) * PER_DIRECTORY:,} files of {directories * PER_DIRECTORY:,}")
        return slots

    return run


def fill(arguments, lab, report):
    """Directories by slot. Makes files by several processes on each host, so that they share the journal's flushes."""
    lab.wait_until_placed()
    roots = [(host, os.path.join("many", str(host), str(number))) for host in lab.numbers() for number in range(FILLERS)]
    directories = -(-arguments.files // (PER_DIRECTORY * len(roots)))
    works = []
    for host, root in roots:
        path = os.path.join(lab.mount(host), root)
        os.makedirs(path)
        works.append(lambda path=path, root=root: filler(path, directories, root, report))
    gauge = Gauge(lab)
    outcomes, seconds = together(works, gauge)
    count, gauged = directories * PER_DIRECTORY * len(roots), gauge.read(seconds)
    report.note(filled=count, seconds=seconds, **gauged)
    report.say(f"{count:,} files in {seconds:.0f} s, {count / seconds:,.0f}/s, cores {percent(gauged['cores_full'])} busy\n")
    found = {}
    for (_, root), outcome in zip(roots, outcomes):
        for number, slot in outcome.value.items():
            found.setdefault(slot, []).append(os.path.join(root, str(number)))
    return found


class Prober(threading.Thread):
    """Calls on what lies in one slot, and how long they took."""

    def __init__(self, kind, mount, slot, paths, dice):
        super().__init__(daemon=True)
        self.kind, self.mount, self.slot, self.paths = kind, mount, slot, paths
        self.name_part, self.dice = dice, random.Random(dice)
        self.calls, self.error, self.ending = [], None, False

    def run(self):
        try:
            while not self.ending:
                work = self.next()
                start = time.monotonic()
                work()
                self.calls.append((start, time.monotonic()))
                time.sleep(self.dice.random() * PAUSE)
        except OSError as error:
            self.error = f"{self.kind} in slot {self.slot}, {time.monotonic() - start:.1f} s after it began: {error!r}"

    def next(self):
        """The next call: of a stat each time another file, picked from all."""
        directory = os.path.join(self.mount, self.dice.choice(self.paths))
        if self.kind == "stat":
            path = os.path.join(directory, str(self.dice.randrange(PER_DIRECTORY)))
            return lambda: os.stat(path)
        path = os.path.join(directory, f"new-{self.name_part}-{len(self.calls)}")
        return lambda: os.mknod(path, 0o644)


def prober(kind, mount, slots, dice, seconds):
    """Threads for all slots, for so long; the calls of each."""

    def run():
        threads = [Prober(kind, mount, slot, paths, f"{dice}-{slot}") for slot, paths in slots.items()]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        for thread in threads:
            thread.ending = True
        for thread in threads:
            thread.join(timeout=60)
        return [(thread.calls, "it hangs" if thread.is_alive() else thread.error) for thread in threads]

    return run


def stuffer(path, seconds):
    """Writes for so long, over and over again to one file; how many bytes."""
    part = os.urandom(MIB)

    def run():
        end, written = time.monotonic() + seconds, 0
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        while time.monotonic() < end:
            written += os.pwrite(file, part, written % STUFFED)
        os.close(file)
        return written

    return run


def killer(lab, victim, healthy):
    """Kills a daemon after a while; when that was asked for."""
    command = [lab.dazzle, "lab", "kill", lab.directory, str(victim)]

    def run():
        time.sleep(healthy)
        moment = time.monotonic()
        subprocess.run(command, check=True)
        return moment

    return lambda: run


def kill_one(arguments, lab, report, victim, directories):
    """A figure of one kill."""
    living = [host for host in lab.numbers() if host != victim]
    owners = lab.owners(living[0])
    slots = {slot: paths for slot, paths in directories.items() if owners[slot] == victim}
    if not slots:
        raise Broken(f"host {victim} manages none of the files")
    healthy, watched = (HEALTHY_FULL, WATCHED_FULL) if arguments.full else (HEALTHY, WATCHED)
    probers = [(host, kind) for host in living for kind in ("stat", "create")]
    works = [
        lambda host=host, kind=kind: prober(kind, lab.mount(host), slots, f"{victim}-{host}", healthy + watched)
        for host, kind in probers
    ]
    paths = [os.path.join(lab.mount(host), f"stuffed-{host}") for host in living] if arguments.full else []
    stuffers = [lambda path=path: stuffer(path, healthy + watched) for path in paths]
    gauge = Gauge(lab)
    outcomes, seconds = together([*works, killer(lab, victim, healthy), *stuffers], gauge)
    values = [outcome.value for outcome in outcomes]
    told, killed, written = values[: len(works)], values[len(works)], values[len(works) + 1 :]
    files = sum(len(paths) for paths in slots.values()) * PER_DIRECTORY
    figure = {"victim": victim, "files_managed": files, "slots": len(slots), "stuffed": sum(written) / seconds, **gauge.read()}
    figure.update(judge(probers, told, killed))
    report.note(**figure)
    return figure


def judge(probers, told, killed):
    """What the probers' calls say of a kill at some moment."""
    longest, before, answered, calls = (0.0, "none"), 0.0, 0.0, 0
    for (host, kind), threads in zip(probers, told):
        for made, error in threads:
            if error is not None:
                raise Broken(f"on host {host}: {error}")
            before = max([before, *(end - start for start, end in made if end < killed)])
            after = [(start, end) for start, end in made if start >= killed]
            waited = [(end - start, f"{kind} on host {host}") for start, end in made if end >= killed]
            longest = max([longest, *waited])
            # Who waited through the kill has its answer then, and who began later, its first one.
            first = min((end for _, end in made if end >= killed), default=None)
            if first is None or not after:
                raise Broken(f"on host {host} a {kind} had no answer after the kill")
            answered, calls = max(answered, first - killed), calls + len(made)
    return {"longest": longest[0], "call": longest[1], "before": before, "all_answer": answered, "calls": calls}


def run(arguments, report):
    with Laboratory(arguments, arguments.hosts) as lab:
        directories = fill(arguments, lab, report)
        columns = ["longest call", "which", "before the kill", "all answer", "cores busy", "fullest link", "written"]
        report.head("killed", "it managed", *columns, "to reach")
        for number in range(arguments.repeat):
            victim = lab.numbers()[number % arguments.hosts]
            figure = kill_one(arguments, lab, report, victim, directories)
            took = [f"{figure[name]:.2f} s" for name in ("longest", "before", "all_answer")]
            managed = f"{figure['files_managed']:,} files, {figure['slots']} slots"
            full = [percent(figure["cores_full"]), percent(figure["link_full"]), megabytes(figure["stuffed"])]
            report.row(f"host {victim}", managed, took[0], figure["call"], *took[1:], *full, f"{LEASE + REST:.0f} s")
            if number + 1 < arguments.repeat:
                lab.act("start", victim)
                lab.wait_until_mounted(victim)
                lab.wait_until_shared()
