#!/usr/bin/env python3
"""Measures several mounted file systems side by side and prints a table of medians.

    compare.py --measure BINARY --inputs DIR [--rounds N] [--scale F] [--raw FILE] NAME=DIR[=COLD-COMMAND] ...

Called by compare.sh, which mounts them. In each round every file system does every step, in an order that rotates, so
that what else the machine does falls on all alike. COLD-COMMAND empties a file system's caches outside of the kernel;
the kernel's are dropped for all. Ratios are to the column `passthrough`; more than 1 is better than it, always.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

FREE_ALL, FREE_NAMES = "3", "2"


class System:
    """One mounted file system under measurement."""

    def __init__(self, text, binary, inputs):
        self.name, self.directory, *cold = text.split("=", 2)
        self.cold_command = cold[0] if cold else ""
        self.binary, self.inputs = binary, inputs
        self.work = os.path.join(self.directory, "comparison")

    def begin(self):
        """An empty directory."""
        shutil.rmtree(self.work, ignore_errors=True)
        os.mkdir(self.work)

    def end(self):
        """Removes all, and lets the disk come to rest."""
        shutil.rmtree(self.work)
        os.sync()

    def forget(self, what):
        """Drops the kernel's caches (names and inodes, or bytes too) and the file system's own."""
        os.sync()
        if self.cold_command and what == FREE_ALL:
            subprocess.run(self.cold_command, shell=True, check=True, stdout=subprocess.DEVNULL)
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
            file.write(what)

    def measure(self, what, count, threads=1):
        """One figure by the measuring tool."""
        done = subprocess.run(
            [self.binary, what, self.work, str(count), str(threads)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{self.name}: {done.stderr.strip()}")
        return float(done.stdout)

    def seconds(self, *command):
        """How long a program takes."""
        start = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        took = time.perf_counter() - start
        if done.returncode != 0:
            raise RuntimeError(f"{self.name}: {' '.join(command)}: {done.stderr.strip()[-300:]}")
        return took


class Step:
    """One line of the table: what is measured, its unit, and how."""

    def __init__(self, title, unit, run):
        self.title, self.unit, self.run = title, unit, run
        self.less_is_better = unit in ("s", "µs")


def after(what, run):
    """The measurement `run`, with caches dropped before it."""

    def cold(system):
        system.forget(what)
        return run(system)

    return cold


def again(run):
    """The second of two runs, when all caches are warm."""

    def warm(system):
        run(system)
        return run(system)

    return warm


def untar(system):
    """Unpacks a source tree."""
    os.mkdir(f"{system.work}/untarred")
    return system.seconds("tar", "-C", f"{system.work}/untarred", "-xf", f"{system.inputs}/tree.tar")


def clone(system):
    """Clones a repository that lies on the local disk."""
    return system.seconds("git", "clone", "-q", f"file://{system.inputs}/repository", f"{system.work}/clone")


def steps(scale):
    """All measurements, in the order in which each leaves what the next ones need."""
    mib, files, crowd = int(512 * scale), int(10000 * scale), int(8000 * scale) // 8 * 8
    reads, writes, appends = int(4000 * scale), int(16384 * scale), int(200 * scale)
    names = f"{files} names"
    return [
        Step("untar a source tree", "s", untar),
        Step("git clone of it", "s", clone),
        Step("append 4 KiB + fsync, median", "µs", lambda system: system.measure("append-fsync", appends)),
        Step("the same to 2 files at once", "µs", lambda system: system.measure("append-fsync", appends, 2)),
        Step("create 1 KiB files, 1 thread", "/s", lambda system: system.measure("create", files)),
        Step("create 1 KiB files, 8 threads", "/s", lambda system: system.measure("create", crowd, 8)),
        Step("stat, first time", "/s", after(FREE_NAMES, lambda system: system.measure("stat", files))),
        Step("stat, again", "/s", again(lambda system: system.measure("stat", files))),
        Step("stat, first time, 8 threads", "/s", after(FREE_NAMES, lambda system: system.measure("stat", crowd, 8))),
        Step(f"readdir of {names}", "/s", after(FREE_NAMES, lambda system: system.measure("list", files))),
        Step(
            f"ls -l of {names}",
            "s",
            after(FREE_NAMES, lambda system: system.seconds("ls", "-l", f"{system.work}/small-1-0")),
        ),
        Step("read 1 KiB files, cold", "/s", after(FREE_ALL, lambda system: system.measure("read-small", files))),
        Step("rename", "/s", lambda system: system.measure("rename", files)),
        Step("unlink", "/s", lambda system: system.measure("unlink", files)),
        Step(f"write {mib} MiB + fsync", "MB/s", lambda system: system.measure("write", mib)),
        Step("read it, warm", "MB/s", again(lambda system: system.measure("read", mib))),
        Step("read it, cold", "MB/s", after(FREE_ALL, lambda system: system.measure("read", mib))),
        Step("random 4 KiB reads, cold", "/s", after(FREE_ALL, lambda system: system.measure("random-read", reads))),
        Step(
            "random 4 KiB reads, cold, 8 threads",
            "/s",
            after(FREE_ALL, lambda system: system.measure("random-read", reads * 2, 8)),
        ),
        Step("random 4 KiB writes + fsync at the end", "/s", lambda system: system.measure("random-write", writes)),
    ]


def one_round(systems, plan, figures, number):
    """Every system does every step; a step that fails leaves a gap and says so."""
    for place in range(len(systems)):
        system = systems[(place + number) % len(systems)]
        system.begin()
        # The programs themselves are in memory for all.
        subprocess.run(["git", "ls-remote", "-q", f"file://{system.inputs}/repository"], capture_output=True, check=True)
        for step in plan:
            try:
                figure = step.run(system)
                figures[step.title][system.name].append(figure)
            except (RuntimeError, OSError) as trouble:
                print(f"  {step.title}: {trouble}", file=sys.stderr)
            os.sync()
        system.end()
        print(f"round {number + 1}: {system.name} done", file=sys.stderr, flush=True)


def written(figure, unit):
    """A figure with three digits that matter."""
    if figure >= 100_000:
        return f"{figure / 1000:.0f} k{unit}" if unit == "/s" else f"{figure:.0f} {unit}"
    digits = 0 if figure >= 100 else 1 if figure >= 10 else 2
    return f"{figure:.{digits}f} {unit}".replace(" /s", "/s")


def table(systems, plan, figures):
    """The markdown table of medians, with ratios to passthrough where there is one."""
    names = [system.name for system in systems]
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for step in plan:
        medians = {name: statistics.median(values) for name, values in figures[step.title].items() if values}
        base = medians.get("passthrough")
        cells = []
        for name in names:
            if name not in medians:
                cells.append("—")
                continue
            cell = written(medians[name], step.unit)
            if base and name != "passthrough":
                ratio = base / medians[name] if step.less_is_better else medians[name] / base
                cell += f" (×{ratio:.2f})"
            cells.append(cell)
        lines.append(f"| {step.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="+", metavar="NAME=DIR[=COLD-COMMAND]")
    parser.add_argument("--measure", required=True)
    parser.add_argument("--inputs", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--raw")
    arguments = parser.parse_args()
    systems = [System(text, arguments.measure, arguments.inputs) for text in arguments.systems]
    plan = steps(arguments.scale)
    figures = {step.title: {system.name: [] for system in systems} for step in plan}
    for number in range(arguments.rounds):
        one_round(systems, plan, figures, number)
    if arguments.raw:
        with open(arguments.raw, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1, ensure_ascii=False)
    print(table(systems, plan, figures))


if __name__ == "__main__":
    main()
