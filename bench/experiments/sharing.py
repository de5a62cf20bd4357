"""Small files that another machine made: milliseconds for each call, by one program after the other.

Host 1 makes files of 1,000 bytes in ten directories; hosts 2 and 3 read and look at them, host 2 writes them anew and makes
more beside them, and host 1 reads those; in the end host 1 removes what host 3 read a while ago. Links carry what --rate
says, with no delay of their own: what is counted is round trips and what managers and clients do for each, as between
machines in one room. No paper has a figure of this; an NFS client takes two or three calls to read such a file (LOOKUP or
OPEN, READ, CLOSE).
"""

import os
import time

from experiments.laboratory import Laboratory
from experiments.report import median

CONTENT = os.urandom(1000)
DIRECTORIES = 10
# Seconds. Files that others may use are kept for half a minute after their last use, and when they were read is told after
# as long, which is a use.
SOON = 5
LONG = 75


def add(subparsers):
    parser = subparsers.add_parser("sharing", help="small files that another machine made")
    parser.add_argument("--files", type=int, default=1000)
    return parser


class Tree:
    """Files of one tree, as one host finds them."""

    def __init__(self, lab, host, name, count):
        self.top = os.path.join(lab.mount(host), name)
        self.paths = [os.path.join(self.top, str(number % DIRECTORIES), str(number)) for number in range(count)]

    def make_directories(self):
        for number in range(DIRECTORIES):
            os.makedirs(os.path.join(self.top, str(number)))

    def make(self):
        for path in self.paths:
            with open(path, "xb") as file:
                file.write(CONTENT)

    def read(self):
        for path in self.paths:
            with open(path, "rb") as file:
                assert len(file.read()) == len(CONTENT)

    def rewrite(self):
        for path in self.paths:
            with open(path, "r+b") as file:
                file.write(CONTENT)

    def stat(self):
        for path in self.paths:
            assert os.stat(path).st_size == len(CONTENT)

    def unlink(self):
        for path in self.paths:
            os.unlink(path)


def measure(lab, count, name):
    """Milliseconds for each file, by what was done."""
    first, second, third = (Tree(lab, host, f"{name}-made-by-1", count) for host in (1, 2, 3))
    mine, theirs = (Tree(lab, host, f"{name}-made-by-2", count) for host in (2, 1))
    old, used = (Tree(lab, host, f"{name}-left-alone", count) for host in (1, 3))
    for tree in (first, theirs, old):
        tree.make_directories()
    figures = {}
    old.make()
    used.read()
    steps = [
        (0, "1 makes", first.make),
        (0, "2 reads", second.read),
        (0, "2 reads again", second.read),
        (0, "2 stats", second.stat),
        (SOON, "2 reads again soon", second.read),
        (0, "3 reads", third.read),
        (0, "2 writes anew", second.rewrite),
        (0, "1 reads those", first.read),
        (0, "2 makes more", mine.make),
        (0, "1 reads more", theirs.read),
        (0, "2 removes all", lambda: (second.unlink(), mine.unlink())),
        (LONG, "1 removes old ones", old.unlink),
    ]
    for pause, what, step in steps:
        time.sleep(pause)
        start = time.monotonic()
        step()
        figures[what] = (time.monotonic() - start) * 1e3 / count
    figures["2 removes all"] /= 2
    return figures


def run(arguments, report):
    figures = []
    with Laboratory(arguments, 3) as lab:
        lab.wait_until_placed()
        for number in range(arguments.repeat):
            figures.append(measure(lab, arguments.files, f"tree-{number}"))
            report.note(repetition=number, files=arguments.files, **figures[-1])
    report.head("what", "ms for each file")
    for what in figures[0]:
        report.row(what, f"{median(figures, what):.3f}")
