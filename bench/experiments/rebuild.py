"""How fast a lost target is made again on the others.

Hosts write random bytes, with links as fast as memory, until each target has --gigabytes; then the links are shaped, and one
host is killed and removed for good (`dazzle node remove`). It is over when `dazzle status` calls what is stored healthy: as
safe as before. `rebuild` in dazzle.toml, which bounds the rate to 64 MiB/s unless set, is set to --rebuild, out of the way.

* rate   bytes that the lost target had stored, over the seconds from the command to that status
* limit  what the links of all that live would allow, together (limits.py); and of one host that does it all alone

To reach: 0.7 of the first.
"""

import os
import time

from experiments import limits
from experiments.laboratory import Gauge, Laboratory, link_bytes
from experiments.report import megabytes, percent, ratio
from experiments.scaling import writer
from experiments.together import together

PART = 100 * 10**6


def add(subparsers):
    parser = subparsers.add_parser("rebuild", help="a lost target is made again on the others")
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="how much each target has")
    parser.add_argument("--rebuild", default="4 GiB", help="the setting: bytes a second")
    parser.add_argument("--patience", type=float, default=3600, help="seconds after which it has failed")
    return parser


def fill(lab, user_bytes):
    """All hosts write as much as that together, in files of at most some size."""
    lab.shape_links(None)
    share = int(user_bytes / lab.count)
    roots = [os.path.join(lab.mount(host), f"fill-{host}") for host in lab.numbers()]
    for root in roots:
        os.mkdir(root)
    count = -(-share // PART)
    for number in range(count):
        together([lambda root=root, number=number: writer(os.path.join(root, str(number)), share // count) for root in roots])
    lab.shape_links(lab.rate)


def stored(status):
    """What each target has, by its number."""
    return {target["id"]: target["stored"] for target in status["targets"]}


def watch(lab, report, start, patience):
    """Until redundancy is back; and the seconds."""
    told = [time.monotonic()]

    def is_healthy(status):
        if time.monotonic() > told[0] + 30:
            told[0] = time.monotonic()
            exposed = sum(some["bytes"] for some in status["redundancy"]["exposed"])
            report.say(f"  {told[0] - start:.0f} s: {exposed / 1e6:,.0f} MB are less safe than they were")
        return status["health"].startswith("healthy, ")

    status = lab.wait_until("healthy", is_healthy, patience=patience)
    return status, time.monotonic() - start


def measure(lab, arguments, report):
    """One loss."""
    shape, link, victim = lab.stripes(), link_bytes(lab.rate), lab.count
    fill(lab, arguments.gigabytes * 1e9 * lab.count * shape.data / shape.width)
    before = stored(lab.status())
    lab.act("kill", victim)
    status = lab.wait_until_missed(victim, 1)
    [lost] = [target["id"] for target in status["targets"] if target["state"] != "whole"]
    gauge, start = Gauge(lab), time.monotonic()
    lab.execute(1, "node", "remove", lab.home(1), f"host-{victim}")
    removed = time.monotonic() - start
    status, seconds = watch(lab, report, start, arguments.patience)
    written = sum(target["written"] for target in status["targets"])
    return {
        "lost": before[lost], "seconds": seconds, "removed_s": removed, "rate": before[lost] / seconds, "written": written,
        "limit": limits.rebuild(shape, link), "formula": limits.REBUILD, "by_one": limits.rebuild_by_one(shape, link),
        "formula_by_one": limits.REBUILD_BY_ONE, "data": shape.data, "parity": shape.parity, **gauge.read(seconds),
    }


def run(arguments, report):
    report.say(f"{arguments.hosts} hosts, links of {arguments.rate}, `rebuild` set to {arguments.rebuild}\n")
    report.head("lost", "stripes", "seconds", "rate", "limit", "of it", "limit of one host", "fullest link", "cores busy")
    for number in range(arguments.repeat):
        with Laboratory(arguments, arguments.hosts) as lab:
            lab.set("rebuild", arguments.rebuild)
            figure = measure(lab, arguments, report)
        report.note(repetition=number, **figure)
        cells = [megabytes(figure["rate"]), megabytes(figure["limit"]), ratio(figure["rate"], figure["limit"])]
        cells += [megabytes(figure["by_one"]), percent(figure["link_full"]), percent(figure["cores_full"])]
        stripes = f"{figure['data']}+{figure['parity']}"
        report.row(f"{figure['lost'] / 1e6:,.0f} MB", stripes, f"{figure['seconds']:.0f}", *cells)
