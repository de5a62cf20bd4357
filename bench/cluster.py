#!/usr/bin/env python3
"""Measures a cluster on one machine: hosts in network namespaces with shaped links, made by `dazzle lab`.

    cluster.py DAZZLE DIR EXPERIMENT [--rate 100mbit] [--repeat 3] [--json FILE] [--keep] ...

EXPERIMENT is one of bench/experiments/, whose heads say what each measures, in which units, against what and after which
figure of which paper; `cluster.py DAZZLE DIR EXPERIMENT --help` lists the rest of its options. Laboratories are made in DIR
and removed. Prints markdown tables of medians; --json takes the figures of every repetition. Needs root. How full the
machine's cores were stands beside each rate: a machine of few cores may be the limit, and not the links.
"""

import argparse
import os
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path[:0] = [HERE, os.path.join(HERE, "../crates/testbed/programs")]
from daemon import Broken  # noqa: E402
from experiments import creates, drain, rebuild, scaling, sharing, start, takeover  # noqa: E402
from experiments.report import Report  # noqa: E402

EXPERIMENTS = {
    "start": start,
    "scaling": scaling,
    "creates": creates,
    "sharing": sharing,
    "takeover": takeover,
    "rebuild": rebuild,
    "drain": drain,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dazzle")
    parser.add_argument("dir")
    subparsers = parser.add_subparsers(dest="experiment", required=True)
    for module in EXPERIMENTS.values():
        own = module.add(subparsers)
        own.description, own.formatter_class = module.__doc__, argparse.RawDescriptionHelpFormatter
        own.add_argument("--rate", default="100mbit", help="what each link carries in each direction")
        own.add_argument("--repeat", type=int, default=3)
        own.add_argument("--json", help="a file for the raw figures")
        own.add_argument("--keep", action="store_true", help="leave what the hosts stored and logged in DIR")
    arguments = parser.parse_args()
    arguments.dazzle, arguments.dir = os.path.abspath(arguments.dazzle), os.path.abspath(arguments.dir)
    # Whoever ends it wants its hosts to be taken away, too. Its processes just end.
    leader = os.getpid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended") if os.getpid() == leader else os._exit(1))
    try:
        EXPERIMENTS[arguments.experiment].run(arguments, Report(arguments.experiment, arguments, arguments.json))
    except Broken as broken:
        sys.exit(f"{arguments.experiment}: {broken}")


if __name__ == "__main__":
    main()
