"""Processes that begin at one moment, each working through one host's mount.

The process that starts them has no file of any mount open: who forks would have to close it, and could hang there.
"""

import multiprocessing
import time
import traceback

from daemon import Broken

MIB = 1 << 20


class Outcome:
    """What came of a work: when it began and ended, and what it returned."""

    def __init__(self, start, end, value):
        self.start, self.end, self.value = start, end, value


def together(works):
    """Starts a process for each work, and lets all go on at once when each is ready.

    A work is a function that prepares, and returns the function that is measured. Their outcomes, and the seconds from the
    first start to the last end.
    """
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(len(works))
    children = [Child(context, barrier, work) for work in works]
    told = [child.told() for child in children]
    # Who only found that another one will not come says nothing about why.
    if failures := sorted((it for it in told if isinstance(it, str)), key=lambda text: "BrokenBarrierError" in text):
        raise Broken(failures[0])
    outcomes = [Outcome(*it) for it in told]
    return outcomes, max(it.end for it in outcomes) - min(it.start for it in outcomes)


class Child:
    """One process of those."""

    def __init__(self, context, barrier, work):
        self.pipe, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=carry_out, args=(barrier, work, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def told(self):
        """When it began, when it ended and what came of it; or why nothing did."""
        try:
            told = self.pipe.recv()
        except EOFError:
            told = "a process ended without a word"
        self.process.join()
        return told


def carry_out(barrier, work, pipe):
    """What a process does."""
    try:
        run = work()
        barrier.wait()
        start = time.monotonic()
        value = run()
        pipe.send((start, time.monotonic(), value))
    except BaseException:  # pylint: disable=broad-except
        # Nobody waits for who will not come.
        barrier.abort()
        pipe.send(traceback.format_exc())
