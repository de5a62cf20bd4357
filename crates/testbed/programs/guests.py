"""Programs that go on, over and over, on hosts that live while another one is struck: what `hosts.py --guests` is given.

Each is a test of this folder, `NAME DIR [size]`, which ends with a status other than zero when a byte is wrong or a call
fails. They are run by processes that have no file open: whoever has one on a mount that hangs hangs with it.
"""

import itertools
import multiprocessing
import os
import subprocess
import tempfile

from daemon import Broken

PROGRAMS = os.path.dirname(os.path.abspath(__file__))

# How much each does in one run: some seconds of work.
SIZES = {"fsx.sh": "5000", "git.sh": "10", "fio.sh": "1m"}
# How long a run may take, and how much of what it says is shown when it fails.
PATIENCE, LINES = 600.0, 40

# Set in each process of the pool.
ending = None


def begin(event):
    """Makes the sign to end known to a process."""
    global ending
    ending = event


def run(name, directory):
    """Runs a program once; what it said if it failed."""
    words = [os.path.join(PROGRAMS, name), directory, SIZES[name]]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return "\n".join((done.stdout + done.stderr).splitlines()[-LINES:]) if done.returncode != 0 else None


def repeat(name, directory):
    """Runs a program until the sign to end; how often, and what it said if it failed."""
    for runs in itertools.count(1):
        said = run(name, directory)
        if said is not None or ending.is_set():
            return runs, said


class Guests:
    """Some programs, each on one of the hosts that live. Made before any file of a mount is opened."""

    def __init__(self, names):
        self.names, self.working, self.runs = names, [], dict.fromkeys(names, 0)
        if names:
            context = multiprocessing.get_context("fork")
            self.sign = context.Event()
            self.pool = context.Pool(len(names), begin, (self.sign,))
            self.try_locally()

    def try_locally(self):
        """Each once on a local disk: what it lacks is fetched and built, and what is wrong with it is nobody else's fault."""
        for name in self.names:
            with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
                if (said := self.pool.apply(run, (name, directory))) is not None:
                    raise Broken(f"{name} fails on a local disk:\n{said}")

    def start(self, mounts):
        """Deals them out to these mounts, by host."""
        for name, (host, mount) in zip(self.names, itertools.cycle(mounts.items())):
            self.working.append((name, host, self.pool.apply_async(repeat, (name, mount))))

    def look(self):
        """None of them has failed."""
        for name, host, work in self.working:
            if work.ready():
                raise Broken(f"{name} on host {host}:\n{work.get()[1]}")

    def end(self):
        """Lets each come to its end."""
        if not self.working:
            return
        self.sign.set()
        for name, host, work in self.working:
            try:
                runs, said = work.get(PATIENCE)
            except multiprocessing.TimeoutError as error:
                raise Broken(f"{name} on host {host} hangs for {PATIENCE:.0f} s") from error
            if said is not None:
                raise Broken(f"{name} on host {host}:\n{said}")
            self.runs[name] += runs
        self.working = []
        self.sign.clear()

    def told(self):
        """How often each ran."""
        return "".join(f", {name} {runs} times" for name, runs in self.runs.items())
