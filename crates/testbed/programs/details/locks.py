"""Locks: fcntl ranges, open file description locks, flock; waiting, and that who waits stops nobody else."""

import errno
import fcntl
import os
import signal
import struct
import threading
import time

from .bench import check, children_succeed, equal, in_child, must, refused, write

WAITERS = 20
F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38


def record(kind, start, length, owner=0):
    """struct flock."""
    return struct.pack("=hhiqqi4x", kind, os.SEEK_SET, 0, start, length, owner)


def conflict(descriptor, kind, start, length, command=fcntl.F_GETLK):
    """The lock that stands in the way: (kind, start, length, process)."""
    answer = struct.unpack("=hhiqqi4x", fcntl.fcntl(descriptor, command, record(kind, start, length)))
    return answer[0], answer[3], answer[4], answer[5]


def try_lock(descriptor, kind, start, length, command=fcntl.F_SETLK):
    """Locks at once or not at all."""
    fcntl.fcntl(descriptor, command, record(kind, start, length))


class Gate:
    """Two processes that wait for each other through a pipe."""

    def __init__(self):
        self.outlet, self.inlet = os.pipe()

    def open(self):
        """Lets one waiter through."""
        os.write(self.inlet, b"x")

    def wait(self):
        """Waits to be let through."""
        os.read(self.outlet, 1)


def blocked_in_a_lock(child):
    """Waits until `child` sleeps in the kernel for a lock."""
    for _ in range(2000):
        with open(f"/proc/{child}/stat", encoding="ascii") as stat:
            state = stat.read().rsplit(")", 1)[1].split()[0]
        with open(f"/proc/{child}/syscall", encoding="ascii") as call:
            number = call.read().split()[0]
        if state in "SD" and number in ("72", "73"):  # fcntl, flock
            return
        time.sleep(0.005)
    raise AssertionError(f"process {child} never came to wait for its lock")


@check
def ranges_conflict_where_they_overlap(work):
    path = write(f"{work}/file", b"x" * 100)
    descriptor = os.open(path, os.O_RDWR)
    try_lock(descriptor, fcntl.F_WRLCK, 10, 10)
    try_lock(descriptor, fcntl.F_RDLCK, 50, 0)  # to the end, wherever that will be
    owner = os.getpid()

    def other():
        mine = os.open(path, os.O_RDWR)
        equal(conflict(mine, fcntl.F_WRLCK, 0, 100), (fcntl.F_WRLCK, 10, 10, owner))
        equal(conflict(mine, fcntl.F_WRLCK, 10**9, 1)[:2], (fcntl.F_RDLCK, 50))
        equal(conflict(mine, fcntl.F_RDLCK, 60, 1)[0], fcntl.F_UNLCK)
        refused((errno.EAGAIN, errno.EACCES), try_lock, mine, fcntl.F_RDLCK, 19, 1)
        refused((errno.EAGAIN, errno.EACCES), try_lock, mine, fcntl.F_WRLCK, 5, 6)
        try_lock(mine, fcntl.F_WRLCK, 0, 10)
        try_lock(mine, fcntl.F_WRLCK, 20, 30)
        try_lock(mine, fcntl.F_RDLCK, 50, 10)

    children_succeed([in_child(other)])
    os.close(descriptor)


@check
def unlocking_the_middle_leaves_both_ends(work):
    path = write(f"{work}/file", b"x" * 100)
    descriptor = os.open(path, os.O_RDWR)
    try_lock(descriptor, fcntl.F_WRLCK, 0, 100)
    try_lock(descriptor, fcntl.F_UNLCK, 40, 20)
    try_lock(descriptor, fcntl.F_RDLCK, 80, 20)

    def other():
        mine = os.open(path, os.O_RDWR)
        equal(conflict(mine, fcntl.F_WRLCK, 0, 100)[:3], (fcntl.F_WRLCK, 0, 40))
        equal(conflict(mine, fcntl.F_WRLCK, 40, 20)[0], fcntl.F_UNLCK)
        equal(conflict(mine, fcntl.F_WRLCK, 41, 59)[:3], (fcntl.F_WRLCK, 60, 20))
        try_lock(mine, fcntl.F_RDLCK, 80, 20)

    children_succeed([in_child(other)])
    os.close(descriptor)


@check
def closing_any_descriptor_drops_the_locks_of_the_process(work):
    path = write(f"{work}/file")
    one, two = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    try_lock(one, fcntl.F_WRLCK, 0, 10)
    os.close(two)

    def other():
        try_lock(os.open(path, os.O_RDWR), fcntl.F_WRLCK, 0, 10)

    children_succeed([in_child(other)])
    os.close(one)


@check
def the_end_of_a_process_drops_its_locks(work):
    path = write(f"{work}/file")
    ready = Gate()

    def hold():
        descriptor = os.open(path, os.O_RDWR)
        try_lock(descriptor, fcntl.F_WRLCK, 0, 0)
        fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX)
        ready.open()
        signal.pause()

    child = in_child(hold)
    ready.wait()
    descriptor = os.open(path, os.O_RDWR)
    refused((errno.EAGAIN, errno.EACCES), try_lock, descriptor, fcntl.F_WRLCK, 0, 1)
    refused(errno.EAGAIN, fcntl.flock, descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    fcntl.fcntl(descriptor, fcntl.F_SETLKW, record(fcntl.F_WRLCK, 0, 0))
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.close(descriptor)


@check
def a_waiter_gets_the_lock_when_it_is_free(work):
    path = write(f"{work}/file", b"first")
    descriptor = os.open(path, os.O_RDWR)
    try_lock(descriptor, fcntl.F_WRLCK, 0, 0)

    def wait():
        mine = os.open(path, os.O_RDWR)
        fcntl.fcntl(mine, fcntl.F_SETLKW, record(fcntl.F_WRLCK, 0, 0))
        equal(os.pread(mine, 10, 0), b"second", "the holder wrote before it let go")

    child = in_child(wait)
    blocked_in_a_lock(child)
    os.pwrite(descriptor, b"second", 0)
    try_lock(descriptor, fcntl.F_UNLCK, 0, 0)
    children_succeed([child])
    os.close(descriptor)


@check
def a_lock_that_came_behind_a_close_goes_with_the_next(work):
    """One thread waits for the lock when another one closes a descriptor of the file, which drops what the process has then."""
    path = write(f"{work}/file")
    descriptor = os.open(path, os.O_RDWR)
    try_lock(descriptor, fcntl.F_WRLCK, 0, 0)
    close, closed, granted, release, released, end = (Gate() for _ in range(6))

    def two_threads():
        one, two = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)

        def close_one():
            close.wait()
            os.close(two)
            closed.open()

        threading.Thread(target=close_one).start()
        fcntl.fcntl(one, fcntl.F_SETLKW, record(fcntl.F_WRLCK, 0, 0))
        granted.open()
        release.wait()
        os.close(one)
        released.open()
        end.wait()

    child = in_child(two_threads)
    blocked_in_a_lock(child)
    close.open()
    closed.wait()
    try_lock(descriptor, fcntl.F_UNLCK, 0, 0)
    granted.wait()
    equal(conflict(descriptor, fcntl.F_WRLCK, 0, 0)[0], fcntl.F_WRLCK, "it was granted behind the close")
    release.open()
    released.wait()
    equal(conflict(descriptor, fcntl.F_WRLCK, 0, 0)[0], fcntl.F_UNLCK, "the process has closed the file")
    end.open()
    children_succeed([child])
    os.close(descriptor)


@check
def a_circle_of_waiters_is_noticed(work):
    path = write(f"{work}/file")
    descriptor = os.open(path, os.O_RDWR)
    try_lock(descriptor, fcntl.F_WRLCK, 0, 1)
    ready = Gate()

    def other():
        mine = os.open(path, os.O_RDWR)
        try_lock(mine, fcntl.F_WRLCK, 1, 1)
        ready.open()
        fcntl.fcntl(mine, fcntl.F_SETLKW, record(fcntl.F_WRLCK, 0, 1))

    child = in_child(other)
    ready.wait()
    blocked_in_a_lock(child)
    refused(errno.EDEADLK, fcntl.fcntl, descriptor, fcntl.F_SETLKW, record(fcntl.F_WRLCK, 1, 1))
    os.close(descriptor)
    children_succeed([child])


@check
def a_signal_ends_the_waiting(work):
    path = write(f"{work}/file")
    held, held_whole = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    fcntl.flock(held_whole, fcntl.LOCK_EX)
    try_lock(held, fcntl.F_WRLCK, 0, 0)

    def interrupted(wait):
        class Interrupted(Exception):
            """Raised by the signal."""

        def stop(_number, _frame):
            raise Interrupted

        signal.signal(signal.SIGUSR1, stop)
        try:
            wait(os.open(path, os.O_RDWR))
        except Interrupted:
            return
        raise AssertionError("the lock was given")

    waits = [
        lambda mine: fcntl.flock(mine, fcntl.LOCK_EX),
        lambda mine: fcntl.fcntl(mine, fcntl.F_SETLKW, record(fcntl.F_WRLCK, 0, 0)),
    ]
    for wait in waits:
        child = in_child(lambda wait=wait: interrupted(wait))
        blocked_in_a_lock(child)
        os.kill(child, signal.SIGUSR1)
        children_succeed([child])
    os.close(held)
    os.close(held_whole)


@check
def flock_belongs_to_the_open_file(work):
    path = write(f"{work}/file")
    one, two = os.open(path, os.O_RDWR), os.open(path, os.O_RDONLY)
    fcntl.flock(one, fcntl.LOCK_EX)
    refused(errno.EAGAIN, fcntl.flock, two, fcntl.LOCK_SH | fcntl.LOCK_NB)
    again = os.dup(one)
    os.close(one)
    refused(errno.EAGAIN, fcntl.flock, two, fcntl.LOCK_SH | fcntl.LOCK_NB)
    fcntl.flock(again, fcntl.LOCK_SH)
    fcntl.flock(two, fcntl.LOCK_SH | fcntl.LOCK_NB)
    refused(errno.EAGAIN, fcntl.flock, again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(again)
    fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(two)


@check
def flock_and_fcntl_do_not_meet(work):
    path = write(f"{work}/file")
    one = os.open(path, os.O_RDWR)
    fcntl.flock(one, fcntl.LOCK_EX)

    def other():
        try_lock(os.open(path, os.O_RDWR), fcntl.F_WRLCK, 0, 0)

    children_succeed([in_child(other)])
    os.close(one)


@check
def directories_can_be_flocked(work):
    one, two = os.open(work, os.O_RDONLY), os.open(work, os.O_RDONLY)
    fcntl.flock(one, fcntl.LOCK_EX)
    refused(errno.EAGAIN, fcntl.flock, two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(one)
    fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(two)


@check
def open_file_description_locks_work(work):
    path = write(f"{work}/file")
    one, two = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    try_lock(one, fcntl.F_WRLCK, 0, 10, F_OFD_SETLK)
    refused(errno.EAGAIN, try_lock, two, fcntl.F_WRLCK, 5, 1, F_OFD_SETLK)
    refused((errno.EAGAIN, errno.EACCES), try_lock, two, fcntl.F_WRLCK, 5, 1)
    equal(conflict(two, fcntl.F_WRLCK, 0, 0, F_OFD_GETLK)[:3], (fcntl.F_WRLCK, 0, 10))
    os.close(os.open(path, os.O_RDWR))
    refused(errno.EAGAIN, try_lock, two, fcntl.F_WRLCK, 5, 1, F_OFD_SETLK)
    os.close(one)
    try_lock(two, fcntl.F_WRLCK, 5, 1, F_OFD_SETLK)
    os.close(two)


@check
def locks_need_the_file_open_for_it(work):
    path = write(f"{work}/file")
    reading, writing = os.open(path, os.O_RDONLY), os.open(path, os.O_WRONLY)
    refused(errno.EBADF, try_lock, reading, fcntl.F_WRLCK, 0, 1)
    refused(errno.EBADF, try_lock, writing, fcntl.F_RDLCK, 0, 1)
    os.close(reading)
    os.close(writing)


def many_waiters(work, wait, count=WAITERS):
    """While so many processes wait for one lock, everybody else's calls go through; then all get it, one by one."""
    path = write(f"{work}/file", b"0")
    holder = os.open(path, os.O_RDWR)
    wait(holder)

    def waiter():
        os.close(holder)  # a flock is held as long as any copy of its descriptor
        mine = os.open(path, os.O_RDWR)
        wait(mine)
        os.pwrite(mine, str(int(os.pread(mine, 10, 0)) + 1).encode(), 0)
        os.close(mine)

    waiters = [in_child(waiter) for _ in range(count)]
    for each in waiters:
        blocked_in_a_lock(each)
    start = time.monotonic()
    for number in range(200):
        write(f"{work}/{number}", b"x" * 5000)
        os.rename(f"{work}/{number}", f"{work}/r{number}")
        with open(f"{work}/r{number}", "rb") as file:
            equal(len(file.read()), 5000)
        os.stat(path)
    equal(os.pread(holder, 10, 0), b"0", "the locked file, while the others wait")
    os.fsync(holder)
    must(time.monotonic() - start < 30, "other calls took", time.monotonic() - start, "s while", count, "wait")
    os.close(holder)
    children_succeed(waiters)
    with open(path, "rb") as file:
        equal(int(file.read()), count, "each had the lock alone")


@check
def twenty_flock_waiters_stop_nobody(work):
    many_waiters(work, lambda descriptor: fcntl.flock(descriptor, fcntl.LOCK_EX))


@check
def a_hundred_waiters_on_one_processor_stop_nobody_there(work):
    """The kernel has a queue of requests for each processor, which all of them wait in, and so do all other calls."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        many_waiters(work, lambda descriptor: fcntl.flock(descriptor, fcntl.LOCK_EX), 100)
    finally:
        os.sched_setaffinity(0, before)


@check
def twenty_fcntl_waiters_stop_nobody(work):
    def wait(descriptor):
        fcntl.fcntl(descriptor, fcntl.F_SETLKW, record(fcntl.F_WRLCK, 0, 0))

    many_waiters(work, wait)


@check
def twenty_waiters_for_different_ranges_all_get_theirs(work):
    path = write(f"{work}/file", b"x" * 100)
    holder = os.open(path, os.O_RDWR)
    try_lock(holder, fcntl.F_WRLCK, 0, WAITERS)

    def wait(who):
        fcntl.fcntl(os.open(path, os.O_RDWR), fcntl.F_SETLKW, record(fcntl.F_WRLCK, who, 1))

    waiters = [in_child(lambda who=who: wait(who)) for who in range(WAITERS)]
    for each in waiters:
        blocked_in_a_lock(each)
    for who in range(WAITERS):  # one range at a time becomes free
        try_lock(holder, fcntl.F_UNLCK, who, 1)
        children_succeed([waiters[who]])
    os.close(holder)
