"""Each client makes 2,048 files of 1 KiB in a directory of its own: few or many of them in one cluster, on N hosts each with
its own, and with few or many managers.

As xFS figures 10 and 13. All begin at a barrier; each ends with an fsync of its last file, which makes durable all that its
host logged before, and of its directory.

* clients       one cluster, of whose hosts ever more have a client that makes files: xFS figure 10, where 32 machines store and
                manage however many clients there are
* hosts         clusters of ever more hosts, each with a client. One host alone has nobody to send anything to

* first writer  each host makes its directory itself: so it lies in a slot that this host manages (xFS 3.2.4)
* switching     a host picked by a hash of the name makes it: so it is managed anywhere (Slice 3.2, with probability 1). The
                product chooses so for machines that manage nothing; for those that do, the order of making is how it is had
* managers      as many machines in all, of which only so many store and manage, and the others only mount

Files are opened by their path, so that each create looks up the directories above, the root among them, which another host
manages; or with --relative only in the open directory. A create counts as local when the slot of the file that it made (the
upper 12 bits of its inode number) is managed by the host that made it, whatever its path cost. To reach: the rate of N
clients is 0.8 N of that of one until the cores are full. From then on processor time for each create is what tells: where it
stays as it was with one client, more cores would give more creates.
"""

import os
import random

from experiments.laboratory import SLOT_SHIFT, Gauge, Laboratory
from experiments.report import median, percent
from experiments.together import together

CONTENT = os.urandom(1024)


def add(subparsers):
    parser = subparsers.add_parser("creates", help="small files by clients of one cluster, of N hosts, with few managers")
    parser.add_argument("--clients", default="1,2,4,8", help="on as many hosts as the last of these; empty: not")
    parser.add_argument("--hosts", default="1,2,4,8,12", help="how many, one laboratory after the other")
    parser.add_argument("--managers", default="1,2,4,8,12", help="of as many machines as the last of these; empty: not")
    parser.add_argument("--files", type=int, default=2048, help="by each client")
    parser.add_argument("--relative", action="store_true", help="in the open directory: no path is looked up each time")
    return parser


def maker(directory, count, relative=False):
    """Makes files in a directory: by path, or relative to the open directory."""

    def run():
        names = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        for number in range(count):
            path, at = (str(number), names) if relative else (os.path.join(directory, str(number)), None)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=at)
            os.write(file, CONTENT)
            if number + 1 == count:
                os.fsync(file)
            os.close(file)
        os.fsync(names)
        os.close(names)

    return run


def local_part(lab, paths):
    """Which part of what lies in these directories, one for each host, is managed by that host."""
    owners = lab.owners()
    local, total = 0, 0
    for host, path in paths.items():
        with os.scandir(path) as entries:
            found = [owners[entry.inode() >> SLOT_SHIFT] for entry in entries]
        local += found.count(host)
        total += len(found)
    return local / total


def measure(lab, name, policy, arguments, clients=None):
    """One repetition, with so many clients, or one on each host."""
    hosts = lab.numbers()[:clients]
    pick = random.Random(name).choice
    os.mkdir(os.path.join(lab.mount(1), name))
    for host in hosts:
        by = host if policy == "first writer" else pick(hosts)
        os.mkdir(os.path.join(lab.mount(by), name, f"of-{host}"))
    paths = {host: os.path.join(lab.mount(host), name, f"of-{host}") for host in hosts}
    gauge, count = Gauge(lab), arguments.files
    _, seconds = together([lambda path=path: maker(path, count, arguments.relative) for path in paths.values()], gauge)
    figure = {"seconds": seconds, "rate": len(hosts) * count / seconds, **gauge.read(seconds)}
    made = len(hosts) * count
    figure["daemons_us"], figure["machine_us"] = (figure[cpu] * 1e6 / made for cpu in ("daemons_cpu", "machine_cpu"))
    figure["local"] = local_part(lab, paths)
    return figure


def several(arguments, report, lab, policy, clients=None, **more):
    """All repetitions."""
    figures = []
    lab.wait_until_placed()
    for number in range(arguments.repeat):
        name = f"creates-{policy.replace(' ', '-')}-{clients or 'all'}-{number}"
        figures.append(measure(lab, name, policy, arguments, clients))
        report.note(policy=policy, repetition=number, machines=len(lab.numbers()), clients=clients, **more, **figures[-1])
    return figures


def cells(figures, one):
    """What all tables tell; `one` is the rate and the processor time with one host."""
    rate, cpu = median(figures, "rate"), median(figures, "machine_us")
    return [
        f"{rate:,.0f}/s", f"{rate / one[0]:.2f}", percent(median(figures, "cores_full")),
        f"{median(figures, 'daemons_us'):.0f} µs", f"{cpu:.0f} µs", f"{cpu / one[1]:.2f}", percent(median(figures, "local")),
    ]


HEAD = ["all together", "× the first", "cores busy", "daemons' cpu each", "machine's cpu each", "× the first", "local"]


def grow(arguments, report):
    """One cluster, and ever more clients in it."""
    counts = [int(count) for count in arguments.clients.split(",") if count]
    if not counts:
        return
    report.head(f"clients on {max(counts)} hosts", *HEAD)
    first = None
    with Laboratory(arguments, max(counts)) as lab:
        for count in counts:
            figures = several(arguments, report, lab, "first writer", clients=count)
            first = first or (median(figures, "rate"), median(figures, "machine_us"))
            report.row(count, *cells(figures, first))
    report.say("")


def scale(arguments, report):
    """On N hosts, by either policy."""
    if not arguments.hosts:
        return
    report.head("hosts", "directories by", *HEAD)
    first = {}
    for count in [int(count) for count in arguments.hosts.split(",") if count]:
        with Laboratory(arguments, count) as lab:
            for policy in ["first writer", "switching"][: 1 if count == 1 else 2]:
                figures = several(arguments, report, lab, policy, hosts=count)
                first = first or (median(figures, "rate"), median(figures, "machine_us"))
                report.row(count, policy, *cells(figures, first))


def spread(arguments, report):
    """As many machines always, and ever more of them managers."""
    counts = [int(count) for count in arguments.managers.split(",") if count]
    if not counts:
        return
    report.say("")
    report.head(f"managers of {max(counts)} machines", *HEAD)
    first = None
    for count in counts:
        with Laboratory(arguments, count, clients=max(counts) - count) as lab:
            figures = several(arguments, report, lab, "first writer", managers=count)
        first = first or (median(figures, "rate"), median(figures, "machine_us"))
        report.row(count, *cells(figures, first))


def run(arguments, report):
    how = "relative to the directory" if arguments.relative else "by path"
    report.say(f"{arguments.files} files by each client, {how}, links of {arguments.rate}, medians of {arguments.repeat}\n")
    grow(arguments, report)
    scale(arguments, report)
    spread(arguments, report)
