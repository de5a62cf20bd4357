"""What draining a host moves, whether it keeps to its plan, and what programs on another host notice.

Hosts write random bytes, with links as fast as memory; then links are shaped, and while a program on host 1 makes small
calls, some milliseconds between two rounds of them, the last host is drained. `dazzle node drain --plan` says beforehand
what moves and how long that takes.

* moved     data bytes laid anew, as all hosts that live count them (`laid_anew`), over what the plan says must move: the
            data of all stripes that lie over the host. To reach: 1.1. What lay on the host itself is told beside it
* written   bytes that all targets wrote meanwhile, over what those need that must move, with parity; less what they wrote
            for the program, at its rate before: journals and images are among it
* seconds   over the plan's. To reach: 0.75 to 1.25. The plan goes by `rebuild` in dazzle.toml, 64 MiB a second unless set, or by
            what links carry, where that takes longer: --rebuild sets it to something that they can
* calls     p50, p99 and the longest, before and meanwhile: a write of 4 KiB, an fsync, a read, and open, stat, create,
            rename, unlink, list. To reach: p99 within --budget
"""

import json
import os
import threading
import time

from experiments.laboratory import Gauge, Laboratory
from experiments.rebuild import fill
from experiments.report import percent, percentile, ratio

HEALTHY = 10.0


def add(subparsers):
    parser = subparsers.add_parser("drain", help="a host is drained while another works")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--gigabytes", type=float, default=3.0, help="user data in all")
    parser.add_argument("--rebuild", default="4 MiB", help="the setting: bytes a second")
    parser.add_argument("--budget", type=float, default=100.0, help="milliseconds that p99 of the calls may take")
    return parser


class Program(threading.Thread):
    """Makes small calls all the time, and notes when each was made and how long it took."""

    def __init__(self, root):
        super().__init__(daemon=True)
        self.path, self.page = os.path.join(root, "small"), os.urandom(4096)
        self.calls, self.error, self.ending = [], None, False

    def call(self, name, function, *arguments):
        start = time.monotonic()
        result = function(*arguments)
        self.calls.append((start, time.monotonic() - start, name))
        return result

    def run(self):
        try:
            while not self.ending:
                self.round()
                time.sleep(0.01)
        except OSError as error:
            self.error = error

    def round(self):
        file = self.call("create", os.open, self.path, os.O_RDWR | os.O_CREAT, 0o644)
        self.call("write", os.pwrite, file, self.page, 0)
        self.call("fsync", os.fsync, file)
        self.call("read", os.pread, file, len(self.page), 0)
        self.call("close", os.close, file)
        self.call("stat", os.stat, self.path)
        self.call("list", os.listdir, os.path.dirname(self.path))
        self.call("rename", os.rename, self.path, self.path + ".old")
        self.call("unlink", os.unlink, self.path + ".old")

    def between(self, begin, end):
        """What its calls took that began then."""
        took = [(seconds, name) for start, seconds, name in list(self.calls) if begin <= start < end]
        times = [seconds for seconds, _ in took]
        longest, name = max(took)
        return {"calls": len(took), "p50": percentile(times, 0.5), "p99": percentile(times, 0.99), "max": longest, "call": name}


def counts(lab):
    """Bytes that all targets wrote, and data bytes laid anew by all hosts."""
    written = sum(target["written"] for target in lab.status()["targets"])
    return written, sum(lab.status(host)["redundancy"]["laid_anew"] for host in lab.numbers())


def measure(lab, report):
    """One drain."""
    name = f"host-{lab.count}"
    program = Program(lab.mount(1))
    program.start()
    rested, begun = counts(lab)[0], time.monotonic()
    time.sleep(HEALTHY)
    plan = json.loads(lab.ask_plan(name))
    (written, laid), start = counts(lab), time.monotonic()
    own_rate = (written - rested) / (start - begun)
    gauge = Gauge(lab)
    report.say(f"  the plan: {plan['bytes_to_move'] / 1e6:,.0f} MB in {plan['seconds']} s")
    lab.execute(1, "node", "drain", lab.home(1), name)
    end = time.monotonic()
    gauged = gauge.read()
    program.ending = True
    program.join()
    if program.error is not None:
        raise program.error
    (written_now, laid_now), shape, seconds = counts(lab), lab.stripes(), end - start
    must = plan["bytes_to_move"]
    needed = must * shape.width / shape.data
    return {
        "plan": plan, "seconds": seconds, "moved": laid_now - laid, "moved_ratio": (laid_now - laid) / must,
        "written": written_now - written, "written_for_program": own_rate * seconds,
        "written_ratio": (written_now - written - own_rate * seconds) / needed, "own_ratio": plan["bytes_there"] / must,
        "time_ratio": seconds / plan["seconds"], "before": program.between(begun, start), "during": program.between(start, end),
        **gauged,
    }


class Drained(Laboratory):
    """A laboratory of which a host is to be drained."""

    def ask_plan(self, name):
        return self.execute(1, "node", "drain", "--plan", "--json", self.home(1), name)


def milliseconds(calls):
    """Cells about calls."""
    return " / ".join(f"{1000 * calls[name]:.1f}" for name in ("p50", "p99", "max"))


def run(arguments, report):
    report.say(f"{arguments.hosts} hosts, links of {arguments.rate}, `rebuild` set to {arguments.rebuild}\n")
    report.head(
        "on the host", "must move", "moved", "written", "seconds", "of the plan", "calls before, ms", "meanwhile",
        f"p99 ≤ {arguments.budget:.0f}", "fullest link", "cores busy",
    )
    for number in range(arguments.repeat):
        with Drained(arguments, arguments.hosts) as lab:
            lab.set("rebuild", arguments.rebuild)
            fill(lab, arguments.gigabytes * 1e9)
            figure = measure(lab, report)
        report.note(repetition=number, **figure)
        plan, meets = figure["plan"], 1000 * figure["during"]["p99"] <= arguments.budget
        cells = [f"{plan[name] / 1e6:,.0f} MB" for name in ("bytes_there", "bytes_to_move")]
        cells += [f"× {figure[name]:.2f}" for name in ("moved_ratio", "written_ratio")]
        cells += [f"{figure['seconds']:.0f}", ratio(figure["seconds"], plan["seconds"])]
        cells += [milliseconds(figure["before"]), milliseconds(figure["during"]), "yes" if meets else "no"]
        report.row(*cells, percent(figure["link_full"]), percent(figure["cores_full"]))
