"""Processes that begin at one moment, each working through one host's mount.

The process that starts them has no file of any mount open: who forks would have to close it, and could hang there.
"""

import contextlib
import multiprocessing
import threading
import time
import traceback

from daemon import Broken

MIB = 1 << 20


class Outcome:
    """What came of a work: when it began and ended, and what it returned."""

    def __init__(self, start, end, value):
        self.start, self.end, self.value = start, end, value


def together(works, gauge=None):
    """Starts a process for each work, and lets all go on at once when each is ready.

    A work is a function that prepares, and returns the function that is measured. Where this returns a function, that is called
    when all have ended, for its value. Their outcomes, and the seconds from the first start to the last end; the gauge takes
    in just these.
    """
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(len(works) + 1)
    children = [Child(context, barrier, work) for work in works]
    with contextlib.suppress(threading.BrokenBarrierError):
        barrier.wait()
    if gauge:
        gauge.begin()
    times = [child.told() for child in children]
    if gauge:
        gauge.end()
    if any(isinstance(when, str) for when in times):
        barrier.abort()
    with contextlib.suppress(threading.BrokenBarrierError):
        barrier.wait()
    values = [when if isinstance(when, str) else child.told() for when, child in zip(times, children)]
    for child in children:
        child.process.join()
    # Who only found that another one will not come says nothing about why.
    told = [it for it in [*times, *values] if isinstance(it, str)]
    if failures := sorted(told, key=lambda text: "BrokenBarrierError" in text):
        raise Broken(failures[0])
    outcomes = [Outcome(*when, value) for when, (value,) in zip(times, values)]
    return outcomes, max(it.end for it in outcomes) - min(it.start for it in outcomes)


class Child:
    """One process of those."""

    def __init__(self, context, barrier, work):
        self.pipe, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=carry_out, args=(barrier, work, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def told(self):
        """When it began and ended, and then, by itself, what came of it; or why nothing did."""
        try:
            return self.pipe.recv()
        except EOFError:
            return "a process ended without a word"


def carry_out(barrier, work, pipe):
    """What a process does."""
    try:
        run = work()
        barrier.wait()
        start = time.monotonic()
        value = run()
        pipe.send((start, time.monotonic()))
        barrier.wait()
        pipe.send((value() if callable(value) else value,))
    except BaseException:  # pylint: disable=broad-except
        # Nobody waits for who will not come.
        barrier.abort()
        pipe.send(traceback.format_exc())
