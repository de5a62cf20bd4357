#!/usr/bin/env python3
"""once: every call takes effect once, though the daemon is restarted while calls are under way.

    once.py DAZZLE DIRECTORY [--restarts N] [--workers N]

DIRECTORY is what `dazzle up` was given. Workers append numbered records, make files that must be new, rename and remove them, all of
which shows if it is done twice, as fast as they can; the daemon is restarted again and again. A call that a process has
read and the kernel sends to the next one as well is done by both.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys

from daemon import Broken


def record(worker, number):
    """What a worker appends; of many sizes."""
    text = f"{worker}:{number};".encode()
    return text * (1 + number * 37 % 200)


def work(worker, directory, ending, counts):
    """Changes things until it is to end; what fails ends it."""
    log = os.open(os.path.join(directory, f"log-{worker}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    first, second = (os.path.join(directory, f"{name}-{worker}") for name in ("first", "second"))
    number = 0
    while not ending.is_set():
        wanted = record(worker, number)
        if os.write(log, wanted) != len(wanted):
            raise Broken("a short write")
        os.close(os.open(first, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        os.rename(first, second)
        os.unlink(second)
        number += 1
        counts[worker] = number
    os.close(log)


def verify(worker, directory, count):
    """All records are there, once, in order."""
    with open(os.path.join(directory, f"log-{worker}"), "rb") as file:
        found = file.read()
    at = 0
    for number in range(count):
        wanted = record(worker, number)
        if found[at : at + len(wanted)] != wanted:
            again = number > 0 and found[at:].startswith(record(worker, number - 1))
            raise Broken(f"worker {worker}: record {number} of {count} is not where it should be{', but the one before again' * again}")
        at += len(wanted)
    if at != len(found):
        raise Broken(f"worker {worker}: {len(found) - at} bytes behind its last record")


def test(arguments):
    status = subprocess.run([arguments.dazzle, "status", "--json", arguments.directory], capture_output=True, check=True)
    directory = os.path.join(json.loads(status.stdout)["mount"], "once")
    os.mkdir(directory)
    ending, counts = multiprocessing.Event(), multiprocessing.Array("Q", arguments.workers)
    workers = [multiprocessing.Process(target=work, args=(it, directory, ending, counts)) for it in range(arguments.workers)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(arguments.restarts):
            before = list(counts)
            told = subprocess.run([arguments.dazzle, "restart", "--json", arguments.directory], capture_output=True, check=True)
            if not json.loads(told.stdout)["kept"]:
                raise Broken("the daemon began anew")
            while any(count < 20 + past and worker.is_alive() for worker, count, past in zip(workers, counts, before)):
                pass
    finally:
        ending.set()
        for worker in workers:
            worker.join()
    if any(worker.exitcode for worker in workers):
        raise Broken("a call failed")
    for worker in range(arguments.workers):
        verify(worker, directory, counts[worker])
    print(f"{arguments.restarts} restarts beside {sum(counts)} rounds of {arguments.workers} workers: everything was done once")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("dazzle")
    parser.add_argument("directory")
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--workers", type=int, default=8)
    try:
        test(parser.parse_args())
    except Broken as broken:
        sys.exit(f"once: {broken}")


if __name__ == "__main__":
    main()
