"""A cluster in network namespaces with shaped links, and how full its links and the machine's cores were."""

import json
import os
import re
import shutil
import time

from daemon import Broken
from hosts import Lab

from experiments.limits import Shape

# The upper bits of an inode's number are its slot.
SLOT_SHIFT = 52

UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}

# How long a host may take to be missed, or a status to change, before something is wrong.
PATIENCE = 120.0


def link_bytes(rate):
    """Bytes a second of what tc calls "100mbit"."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if found is None:
        raise SystemExit(f"{rate} is no rate; one reads 100mbit")
    return float(found[1]) * UNITS[found[2]] / 8


class Laboratory(Lab):
    """A laboratory that is up while it is used as a context, and removed afterwards."""

    def __init__(self, arguments, hosts, **more):
        super().__init__(arguments.dazzle, os.path.join(arguments.dir, f"lab-{hosts}"))
        self.count, self.rate, self.keep = hosts, arguments.rate, arguments.keep
        self.words = ["--hosts", str(hosts), "--rate", self.rate]
        self.words += [word for name, value in more.items() for word in (f"--{name}", str(value))]
        self.known = []

    def __enter__(self):
        if os.path.exists(self.directory):
            raise SystemExit(f"{self.directory} is there already: take it down and remove it first")
        os.makedirs(os.path.dirname(self.directory), exist_ok=True)
        try:
            self.up()
        except BaseException:
            self.keep_logs()
            self.end()
            raise
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.keep_logs()
        self.end()

    def up(self):
        self.must("lab", "up", self.directory, *self.words)
        self.known = self.hosts()
        self.wait_until_shared()

    def end(self):
        """Takes it down, and removes it unless it is to be kept."""
        if not self.keep:
            # What they still had to store nobody will read; and who stops last finds nobody to agree with, and waits.
            for host in self.hosts():
                if host["runs"]:
                    self.give("lab", "kill", self.directory, str(host["host"]))
        down = self.give("lab", "down", self.directory)
        self.hand.terminate()
        if down.returncode != 0:
            print(f"{self.directory} is left as it is: {down.stderr}", flush=True)
        elif not self.keep:
            shutil.rmtree(self.directory, ignore_errors=True)

    def keep_logs(self):
        """What the daemons said, where something failed."""
        place = os.path.join(os.path.dirname(self.directory), "failed")
        os.makedirs(place, exist_ok=True)
        for host in self.hosts():
            log = os.path.join(host["directory"], "dazzle.log")
            if os.path.exists(log):
                shutil.copy(log, os.path.join(place, f"host-{host['host']}.log"))
        print(f"the daemons' logs are in {place}", flush=True)

    def must(self, *words):
        """Gives a command that may not fail."""
        done = self.give(*words)
        if done.returncode != 0:
            raise Broken(f"dazzle {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def set(self, name, value):
        """Changes a setting of all hosts, which stop for that and start again."""
        self.must("lab", "down", self.directory)
        for host in self.known:
            path = os.path.join(host["directory"], "dazzle.toml")
            with open(path, encoding="utf-8") as file:
                text, count = re.subn(rf"(?m)^{name} = .*$", f"{name} = {json.dumps(value)}", file.read())
            if count != 1:
                raise Broken(f"{path} has no setting {name}")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        self.up()

    def shape_links(self, rate):
        """Lets all links carry so much, or as much as they can."""
        for host in self.known:
            self.must("lab", "rate", self.directory, str(host["host"]), *([rate] if rate else []))

    def mount(self, host):
        return next(entry["mount"] for entry in self.known if entry["host"] == host)

    def home(self, host):
        return next(entry["directory"] for entry in self.known if entry["host"] == host)

    def numbers(self):
        """Of all hosts."""
        return [entry["host"] for entry in self.known]

    def status(self, host=1):
        return json.loads(self.ask(host, "status", "--json"))

    def stripes(self):
        """How stripes lie over the hosts now."""
        groups = [group for group in self.status()["groups"] if group["current"]]
        targets = {target for group in groups for target in group["targets"]}
        return Shape(len(targets), groups[0]["data"], groups[0]["parity"])

    def owners(self, host=1):
        """The host that manages each slot, as one tells."""
        status, found = self.status(host), {}
        names = {node["id"]: node["name"] for node in status["nodes"]}
        for slots in status["slots"]:
            number = int(names[slots["node"]].removeprefix("host-"))
            found.update(dict.fromkeys(range(slots["first"], slots["last"] + 1), number))
        return found

    def wait_until_placed(self):
        """Until directories that a host makes come to lie with itself.

        Where slots came or went, a manager knows for about a second of nobody's but its own, and keeps what others make.
        """
        owners, deadline = self.owners(), time.monotonic() + PATIENCE
        for host in sorted(set(owners.values())):
            path = os.path.join(self.mount(host), f"probe-{host}")
            while True:
                os.mkdir(path)
                slot = os.stat(path).st_ino >> SLOT_SHIFT
                os.rmdir(path)
                if owners[slot] == host:
                    break
                if time.monotonic() > deadline:
                    raise Broken(f"directories that host {host} makes come to lie with host {owners[slot]}")
                time.sleep(0.1)

    def wait_until(self, what, holds, host=1, patience=PATIENCE):
        """Until a status is such; that status."""
        deadline = time.monotonic() + patience
        while not holds(status := self.status(host)):
            if time.monotonic() > deadline:
                raise Broken(f"after {patience:.0f} s still not: {what}; {status['health']}")
            time.sleep(0.2)
        return status

    def wait_until_missed(self, victim, host):
        """Until the others know that a host is gone."""
        name = f"host-{victim}"

        def is_missed(status):
            return not next(node for node in status["nodes"] if node["name"] == name)["runs"]

        return self.wait_until(f"{name} is missed", is_missed, host)

    def processes(self):
        """The daemons that run, by host."""
        found = {}
        for entry in self.known:
            try:
                with open(os.path.join(entry["directory"], "lock"), encoding="ascii") as lock:
                    process = int(lock.read())
                if os.path.exists(f"/proc/{process}/stat"):
                    found[entry["host"]] = process
            except (OSError, ValueError):
                pass
        return found


class Gauge:
    """How full links and cores are, from when it is made or begins until it ends or is read."""

    def __init__(self, lab):
        self.lab, self.processes = lab, lab.processes()
        self.begin()

    def begin(self):
        self.begun, self.ended = self.look(), None

    def end(self):
        self.ended = self.look()

    def look(self):
        found = {}
        for host, process in self.processes.items():
            try:
                found[host] = (processor_seconds(process), *link_counts(process))
            except OSError:
                pass
        return time.monotonic(), machine_seconds(), found

    def read(self, seconds=None):
        """Processor seconds of all daemons and of the whole machine; which part of its cores was busy, and of the fullest
        link in its fuller direction, over so many seconds or all that time; bytes that crossed links, in all and by
        host. Daemons that were killed meanwhile are left out."""
        (begin, machine, before), (end, machine_now, now) = self.begun, self.ended or self.look()
        moved = [[now - then for then, now in zip(before[host], counts)] for host, counts in now.items()]
        wall = end - begin
        return {
            "daemons_cpu": sum(processor for processor, *_ in moved),
            "machine_cpu": machine_now - machine,
            "cores_full": (machine_now - machine) / (wall * os.cpu_count()),
            "link_full": max(max(ways) for _, *ways in moved) / ((seconds or wall) * link_bytes(self.lab.rate)),
            "crossed": sum(sent for *_, sent in moved),
            "received_by_host": {host: received for host, (_, received, _) in zip(now, moved)},
            "sent_by_host": {host: sent for host, (_, _, sent) in zip(now, moved)},
        }


def processor_seconds(process):
    """Of a process: utime and stime."""
    with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_seconds():
    """Of the whole machine: everything but idle and waiting for a disk."""
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def link_counts(process):
    """Bytes received and sent by the link of the host on which a process runs."""
    with open(f"/proc/{process}/net/dev", encoding="ascii") as file:
        fields = next(line.split() for line in file if line.strip().startswith("eth0:"))
    return int(fields[1]), int(fields[9])
