"""N clients each write, and each read, a private file on N hosts: the rate of all together against what links allow.

As xFS figures 8 and 9 and Zebra figures 6-6 and 6-7. Each host is storage, manager and client; random bytes, different in
each file. All clients of a phase begin at a barrier; it is over when the last has ended, writers with an fsync.

* write        each to a new file through its own mount
* read         each reads what the next host wrote, which its own host never saw; one host alone is started anew instead
* dead         the same of other files, after the last host was killed and is missed; by the hosts that live
* no parity    the writes again, in a laboratory without parity

To reach: writes and reads 0.85 of the limit (limits.py); a reader with a host dead 0.7 of a healthy one; with parity no less
than k/(k+m) - 0.03 of the rate without (Zebra 6.2: parity costs what is written for it, and no more). What was read is
compared by checksum. How full the fullest link and the cores were is told: where the cores are full, they are the limit.
"""

import os
import zlib

from daemon import Broken
from experiments import limits
from experiments.laboratory import Gauge, Laboratory, link_bytes
from experiments.report import median, megabytes, percent, ratio
from experiments.together import MIB, together


def add(subparsers):
    parser = subparsers.add_parser("scaling", help="N clients write and read private files on N hosts")
    parser.add_argument("--hosts", default="1,2,4,8,12", help="how many, one laboratory after the other")
    parser.add_argument("--megabytes", type=int, default=50, help="the size of each file")
    return parser


def writer(path, size):
    """Writes a file of random bytes; its checksum."""
    content = memoryview(os.urandom(size))
    checksum = zlib.crc32(content)

    def run():
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        for start in range(0, size, MIB):
            os.write(file, content[start : start + MIB])
        os.fsync(file)
        os.close(file)
        return checksum

    return run


def reader(path, size):
    """Reads a file of so many bytes; its checksum."""
    # Written to, for memory that nobody has touched would be waited for.
    content = memoryview(bytearray(b"-") * size)

    def run():
        file = os.open(path, os.O_RDONLY)
        have = 0
        while have < size and (read := os.readv(file, [content[have : have + MIB]])):
            have += read
        os.close(file)
        return lambda: zlib.crc32(content[:have])

    return run


class Phase:
    """Clients at work at once, and their rate against a limit."""

    def __init__(self, report, lab, size):
        self.report, self.lab, self.size = report, lab, size
        self.stripes, self.link = lab.stripes(), link_bytes(lab.rate)

    def measure(self, name, works, limit, **more):
        gauge = Gauge(self.lab)
        outcomes, seconds = together(works, gauge)
        figure = {
            "phase": name, "hosts": self.lab.count, "clients": len(works), "data": self.stripes.data,
            "parity": self.stripes.parity, "seconds": seconds, "rate": len(works) * self.size / seconds, "limit": limit, **more,
            "each": [outcome.end - outcome.start for outcome in outcomes],
            **gauge.read(seconds),
        }
        for cpu in ("daemons_cpu", "machine_cpu"):
            figure[f"{cpu}_ms_per_mb"] = figure[cpu] * 1e9 / (len(works) * self.size)
        self.report.note(**figure)
        return figure, [outcome.value for outcome in outcomes]

    def write(self, directory, name="write"):
        """All hosts write; a figure, and checksums by host."""
        hosts = self.lab.numbers()
        os.mkdir(os.path.join(self.lab.mount(1), directory))
        for host in hosts:
            os.mkdir(os.path.dirname(self.path(host, directory, host)))
        works = [lambda path=self.path(host, directory, host): writer(path, self.size) for host in hosts]
        figure, checksums = self.measure(name, works, limits.write(self.stripes, self.link), formula=limits.WRITE)
        return figure, dict(zip(hosts, checksums))

    def read(self, directory, checksums, readers, name):
        """Each reader reads what the host after it wrote."""
        hosts = self.lab.numbers()
        sources = [hosts[(hosts.index(host) + 1) % len(hosts)] for host in readers]
        paths = [self.path(host, directory, source) for host, source in zip(readers, sources)]
        without = name == "dead"
        limit = (limits.read_without_one if without else limits.read)(self.stripes, self.link)
        formula = limits.READ_WITHOUT_ONE if without else limits.READ
        works = [lambda path=path: reader(path, self.size) for path in paths]
        figure, found = self.measure(name, works, limit, formula=formula)
        if found != [checksums[source] for source in sources]:
            raise Broken(f"{name}: other bytes were read than were written")
        return figure

    def path(self, through, directory, host):
        return os.path.join(self.lab.mount(through), directory, f"of-{host}", "file")


def with_parity(arguments, report, count):
    """Figures of all phases but the last, by phase."""
    found = {"write": [], "read": [], "dead": []}
    with Laboratory(arguments, count) as lab:
        phase = Phase(report, lab, arguments.megabytes * 10**6)
        unread = []
        for number in range(arguments.repeat):
            figure, checksums = phase.write(f"private-{number}")
            found["write"].append(figure)
            if count == 1:
                lab.act("stop", 1)
                lab.act("start", 1)
            found["read"].append(phase.read(f"private-{number}", checksums, lab.numbers(), "read"))
            if count > 2:
                # What was read once is in the reader's memory.
                unread.append((f"unread-{number}", phase.write(f"unread-{number}", "write again")[1]))
        if unread:
            lab.act("kill", count)
            lab.wait_until_missed(count, 1)
        for directory, checksums in unread:
            found["dead"].append(phase.read(directory, checksums, lab.numbers()[:-1], "dead"))
    return found


def without_parity(arguments, report, count):
    """Figures of writes alone."""
    with Laboratory(arguments, count, parity=0) as lab:
        phase = Phase(report, lab, arguments.megabytes * 10**6)
        return [phase.write(f"private-{number}", "no parity")[0] for number in range(arguments.repeat)]


def run(arguments, report):
    report.say(f"{arguments.megabytes} MB by each client, links of {arguments.rate}, medians of {arguments.repeat}\n")
    report.head("hosts", "stripes", "", "all together", "limit", "of it", "fullest link", "cores busy", "daemons' cpu/MB")
    ends = []
    for count in [int(count) for count in arguments.hosts.split(",")]:
        found = with_parity(arguments, report, count)
        found["no parity"] = without_parity(arguments, report, count) if count > 1 else []
        for name, figures in found.items():
            if figures:
                tell(report, count, name, figures)
        ends.append(conclude(count, found))
    report.say("")
    report.head("hosts", "a reader, a host dead / healthy", "to reach", "with parity / without", "to reach")
    for cells in ends:
        report.row(*cells)


def tell(report, count, name, figures):
    """A row of the first table."""
    first, (rate, full) = figures[0], (median(figures, "rate"), median(figures, "link_full"))
    cells = [megabytes(rate), megabytes(first["limit"]), ratio(rate, first["limit"]), percent(full) if count > 1 else "—"]
    cpu = f"{median(figures, 'daemons_cpu_ms_per_mb'):.1f} ms"
    report.row(count, f"{first['data']}+{first['parity']}", name, *cells, percent(median(figures, "cores_full")), cpu)


def conclude(count, found):
    """Cells of the second table."""
    cells = [count, "—", "—", "—", "—"]
    if found["dead"]:
        dead = median(found["dead"], "rate") / (count - 1)
        cells[1:3] = ratio(dead, median(found["read"], "rate") / count), "0.70"
    if found["no parity"]:
        first = found["write"][0]
        least = first["data"] / (first["data"] + first["parity"]) - 0.03
        cells[3:5] = ratio(median(found["write"], "rate"), median(found["no parity"], "rate")), f"{least:.2f}"
    return cells
