"""Three hosts, from bare to mounted on all: how many commands, and how long.

In the laboratory that is one command. It has ended when each mount shows a file that was made through each other one. To
reach: 4 commands and 20 s (DESIGN 13, promise 7).
"""

import os
import time

from experiments.laboratory import Laboratory
from experiments.report import median


def add(subparsers):
    parser = subparsers.add_parser("start", help="hosts, from bare to mounted on all")
    parser.add_argument("--hosts", type=int, default=3)
    return parser


class Bare(Laboratory):
    """One that is only just made: nobody waits until it has shared out its slots."""

    def up(self):
        self.must("lab", "up", self.directory, *self.words)
        self.known = self.hosts()


def see_each_other(lab):
    """Whether each mount shows what was made through each other one."""
    for host in lab.numbers():
        with open(os.path.join(lab.mount(host), f"made-by-{host}"), "xb") as file:
            file.write(b"%d" % host)
    for reader in lab.numbers():
        for host in lab.numbers():
            with open(os.path.join(lab.mount(reader), f"made-by-{host}"), "rb") as file:
                assert file.read() == b"%d" % host


def run(arguments, report):
    figures = []
    for number in range(arguments.repeat):
        start = time.monotonic()
        with Bare(arguments, arguments.hosts) as lab:
            up = time.monotonic() - start
            see_each_other(lab)
            figures.append({"commands": 1, "command_s": up, "seconds": time.monotonic() - start})
        report.note(repetition=number, hosts=arguments.hosts, **figures[-1])
    report.head("hosts", "commands", "the command took", "until each sees what each other wrote", "to reach")
    took = (f"{median(figures, name):.1f} s" for name in ("command_s", "seconds"))
    report.row(arguments.hosts, 1, *took, "4 commands, 20 s")
