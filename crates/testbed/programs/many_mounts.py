#!/usr/bin/env python3
"""What programs on several machines see of one file system, mounted on each of them.

    many_mounts.py MOUNT MOUNT [MOUNT...]

Every mount shows the same file system. Each check changes something on one and looks on all, at once: through names that
were looked up before, through descriptors that were open before, and through mappings.
"""
import ctypes
import fcntl
import mmap
import multiprocessing
import os
import shutil
import signal
import struct
import sys
import time

SIDE = "many-mounts"
SECONDS = float(os.environ.get("SECONDS_EACH", "4"))


class Machine:
    """One mount, and short ways to work on it."""

    def __init__(self, number, mount):
        self.number, self.top = number, os.path.join(mount, SIDE)

    def path(self, name):
        return os.path.join(self.top, name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def write(self, name, content, mode="wb"):
        with open(self.path(name), mode) as file:
            file.write(content)


def same(told, expected, what):
    if isinstance(told, list) and told != expected:
        told, expected = [it for it in told if it not in expected], [it for it in expected if it not in told]
        raise AssertionError(f"{what}: {len(told)} too many, {told[:9]!r:.300}; {len(expected)} missing, {expected[:9]!r:.300}")
    assert told == expected, f"{what}: {told!r:.80} instead of {expected!r:.80}"


def each_pair(machines):
    return [(one, other) for one in machines for other in machines if one is not other]


# ---- one thing after the other ----


def written_files_are_read(machines):
    for step in range(10):
        for one, other in each_pair(machines):
            content = b"%d of %d for %d\n" % (step, one.number, other.number) * (1 + 300 * step)
            one.write("written", content)
            same(other.read("written"), content, f"written on {one.number}, read on {other.number}")


def appended_and_cut(machines):
    expected = b""
    for step in range(10):
        for one in machines:
            line = b"line %d of %d\n" % (step, one.number)
            one.write("appended", line, "ab")
            expected += line
            for other in machines:
                same(other.read("appended"), expected, f"appended on {one.number}, read on {other.number}")
    for one in machines:
        expected = expected[: len(expected) // 2]
        os.truncate(one.path("appended"), len(expected))
        for other in machines:
            same(os.stat(other.path("appended")).st_size, len(expected), f"size, cut on {one.number}")
            same(other.read("appended"), expected, f"cut on {one.number}, read on {other.number}")


def names_come_and_go(machines):
    for step in range(5):
        for one, other in each_pair(machines):
            old, new, directory = f"old-{step}", f"new-{step}", f"directory-{step}"
            for machine in machines:
                # What is not there is remembered, too.
                assert not os.path.exists(machine.path(old)) and not os.path.exists(machine.path(directory))
            one.write(old, b"x")
            os.mkdir(one.path(directory))
            assert os.path.exists(other.path(old)), f"made on {one.number}, not found on {other.number}"
            assert os.path.isdir(other.path(directory)) and directory in os.listdir(other.top)
            os.rename(other.path(old), other.path(f"{directory}/{new}"))
            assert not os.path.exists(one.path(old)), f"renamed on {other.number}, still found on {one.number}"
            same(one.read(f"{directory}/{new}"), b"x", "renamed")
            same(os.listdir(one.path(directory)), [new], "listed")
            os.chmod(one.path(f"{directory}/{new}"), 0o600)
            same(os.stat(other.path(f"{directory}/{new}")).st_mode & 0o777, 0o600, "mode")
            os.unlink(other.path(f"{directory}/{new}"))
            assert not os.path.exists(one.path(f"{directory}/{new}")), f"removed on {other.number}, found"
            os.rmdir(one.path(directory))
            assert not os.path.exists(other.path(directory)) and directory not in os.listdir(other.top)


# Names of a directory are given to kernels for a moment once so many were looked up, and for long when nobody has changed it
# for so many seconds (fuse/src/face/kept_names.rs).
LOOKS, QUIET = 40, 5.2


class Kept:
    """A directory that all look into before one changes it: a new one, for one that was changed by several is not kept."""

    def __init__(self, machines, one, other, name):
        self.machines, self.one, self.name, self.there = machines, one, name, other.path(name)
        os.mkdir(one.path(name))
        other.write(f"{name}/old", b"x")

    def look(self, times):
        for machine in self.machines * times:
            assert not os.path.exists(machine.path(f"{self.name}/new")), "it is not there yet"
            assert os.path.exists(machine.path(f"{self.name}/old")), "it is there"
            same(os.stat(machine.path(self.name)).st_mode & 0o777, 0o755, "mode")

    def change(self, how):
        here = self.one.path(self.name)
        change = [
            lambda: os.rename(f"{here}/old", f"{here}/new"),
            lambda: os.symlink("old", f"{here}/new"),
            lambda: os.unlink(f"{here}/old"),
            lambda: os.chmod(here, 0o700),
            lambda: os.rename(here, here + "-moved"),
        ][how % 5]
        change()

    def check(self):
        """All see the same."""
        machines = self.machines
        moved = [os.path.exists(machine.path(self.name + "-moved")) for machine in machines]
        same(len(set(moved)), 1, "moved on some machines only")
        base = self.name + "-moved" * moved[0]
        assert not (moved[0] and os.path.exists(self.there)), "it is found under its old name"
        for name in ("old", "new"):
            found = [os.path.lexists(machine.path(f"{base}/{name}")) for machine in machines]
            same(len(set(found)), 1, f"{base}/{name} is found on some machines only, changed on {self.one.number}")
        same(len({os.stat(machine.path(base)).st_mode for machine in machines}), 1, "modes")
        same(len({os.stat(machine.path(base)).st_mtime_ns for machine in machines}), 1, "times")


def kept_names_are_given_up(machines):
    for step in range(8):
        for one, other in each_pair(machines):
            directory = Kept(machines, one, other, f"kept-{step}-{one.number}-{other.number}")
            directory.look(LOOKS if step == 1 else 3)
            directory.change(step + one.number)
            directory.check()


def names_that_were_kept_for_long_are_given_up(machines):
    steps = [(step, one, other) for step in range(5) for one, other in each_pair(machines)]
    directories = [Kept(machines, one, other, f"long-{step}-{one.number}-{other.number}") for step, one, other in steps]
    for directory in directories:
        directory.look(3)
    time.sleep(QUIET)
    for directory, (step, one, _) in zip(directories, steps):
        directory.look(3)
        directory.change(step + one.number)
        directory.check()


def open_descriptors_see_it(machines):
    machines[0].write("open", b"0" * 10000)
    files = [os.open(machine.path("open"), os.O_RDWR) for machine in machines]
    for step in range(1, 10):
        for one, file in zip(machines, files):
            content = b"%d" % step * (10000 + 100 * step + one.number)
            os.pwrite(file, content, 0)
            for other, its in zip(machines, files):
                told = os.pread(its, 1 << 20, 0)
                same(told, content, f"descriptor of {other.number}, written on {one.number}")
                same(os.fstat(its).st_size, len(content), f"size at {other.number}, written on {one.number}")
            os.ftruncate(file, 5)
            same([os.pread(its, 99, 0) for its in files], [content[:5]] * len(files), "cut short")
    for file in files:
        os.close(file)


def mappings_see_it(machines):
    size = 1 << 20
    machines[0].write("mapped", b"." * size)
    files = [open(machine.path("mapped"), "r+b") for machine in machines]
    maps = [mmap.mmap(file.fileno(), size) for file in files]
    for step in range(1, 10):
        for one, file, own in zip(machines, files, maps):
            word = struct.pack("<II", step, one.number)
            for place in (0, 4096 * step, size - 8):
                os.pwrite(file.fileno(), word, place)
                told = [its[place : place + 8] for its in maps]
                same(told, [word] * len(maps), f"written on {one.number}, seen through mappings")
            word = struct.pack("<II", one.number, step)
            own[64:72] = word
            own.flush()
            told = [its[64:72] for its in maps] + [os.pread(its.fileno(), 8, 64) for its in files]
            same(told, [word] * 2 * len(maps), f"stored through a mapping of {one.number}")
    for own, file in zip(maps, files):
        own.close()
        file.close()


def appenders_with_open_files_read_the_truth(machines):
    machines[0].write("grown", b"")
    files = [os.open(machine.path("grown"), os.O_RDWR | os.O_APPEND) for machine in machines]
    expected = b""
    for step in range(40):
        for one, file in zip(machines, files):
            line = b"%d of %d " % (step, one.number) * (1 + step * one.number * 7)
            os.write(file, line)
            expected += line
            if step % 3 == one.number % 3:
                told = [os.pread(its, 1 << 20, 0) for its in files]
                same([it == expected for it in told], [True] * len(files), f"appended on {one.number}")
        told = [os.pread(its, len(expected), 0) for its in files]
        same([it == expected for it in told], [True] * len(files), "appended by all")
    for file in files:
        os.close(file)


def listings_are_fresh(machines):
    os.mkdir(machines[-1].path("listed"))
    expected = set()
    for step in range(20):
        for one in machines:
            for other in machines:
                same(set(os.listdir(other.path("listed"))), expected, f"listed on {other.number}")
            one.write(f"listed/{step}-{one.number}", b"")
            expected.add(f"{step}-{one.number}")
            for other in machines:
                same(set(os.listdir(other.path("listed"))), expected, f"listed on {other.number}, made on {one.number}")
        gone = expected.pop()
        os.unlink(machines[step % len(machines)].path(f"listed/{gone}"))


def rewound(directory):
    """What an open directory has, from the beginning: nothing has the kernel look at it first, as fdopendir would."""
    os.lseek(directory, 0, os.SEEK_SET)
    names, buffer = [], ctypes.create_string_buffer(4096)
    while (count := ctypes.CDLL(None).getdents64(directory, buffer, len(buffer))) > 0:
        at = 0
        while at < count:
            (size,) = struct.unpack_from("<H", buffer, at + 16)
            names.append(buffer.raw[at + 19 : at + size].split(b"\0")[0].decode())
            at += size
    same(count, 0, "listed to the end")
    return sorted(set(names) - {".", ".."})


def rewound_listings_are_fresh(machines):
    for step in range(3):
        for one, other in each_pair(machines):
            name, expected = f"rewound-{step}-{one.number}-{other.number}", []
            os.mkdir(one.path(name))
            held = os.open(other.path(name), os.O_RDONLY)
            for number in range(4):
                same(rewound(held), expected, f"listed on {other.number}")
                if step == 1:
                    # So that its names are kept.
                    os.stat(other.path(name))
                one.write(f"{name}/{number}", b"")
                expected.append(str(number))
                for _ in range(2):
                    same(rewound(held), expected, f"listed on {other.number}, made on {one.number}")
                    time.sleep(0.1 * (step == 2))
            times = os.stat(one.path(name))
            one.write(f"{name}/late", b"")
            os.utime(one.path(name), ns=(times.st_atime_ns, times.st_mtime_ns))
            same(sorted(os.listdir(other.path(name))), expected + ["late"], "where the time was set back")
            os.close(held)


def sizes_are_true_while_somebody_writes(machines):
    machines[0].write("size", b"")
    for one, other in each_pair(machines):
        with open(one.path("size"), "wb", buffering=0) as file:
            for step in range(1, 30):
                file.write(b"x" * 1000)
                same(os.stat(other.path("size")).st_size, 1000 * step, f"size on {other.number}, written on {one.number}")


def removed_files_stay_open(machines):
    for one, other in each_pair(machines):
        one.write("doomed", b"still here")
        file = os.open(other.path("doomed"), os.O_RDONLY)
        os.unlink(one.path("doomed"))
        same(os.pread(file, 99, 0), b"still here", f"open on {other.number}, removed on {one.number}")
        os.close(file)


def locks_hold(machines):
    machines[0].write("locked", b"x" * 100)
    files = [open(machine.path("locked"), "r+b") for machine in machines]
    for (one, file), (other, its) in each_pair(list(zip(machines, files))):
        for lock, unlock in (
            (lambda it: fcntl.flock(it, fcntl.LOCK_EX | fcntl.LOCK_NB), lambda it: fcntl.flock(it, fcntl.LOCK_UN)),
            (lambda it: fcntl.lockf(it, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5), lambda it: fcntl.lockf(it, fcntl.LOCK_UN)),
        ):
            lock(file)
            try:
                lock(its)
                raise AssertionError(f"locked on {one.number}, and on {other.number}")
            except BlockingIOError:
                pass
            unlock(file)
            lock(its)
            unlock(its)
    for file in files:
        file.close()


# ---- all at once ----


def at_once(works):
    """Runs functions as processes; all must end well."""
    running = [multiprocessing.Process(target=work, args=arguments) for work, *arguments in works]
    for process in running:
        process.start()
    for process in running:
        process.join()
    same([process.exitcode for process in running], [0] * len(running), "programs that ran at once")


def change_times(machine, until):
    number = 0
    while time.monotonic() < until:
        number += 1
        os.utime(machine.path("cut"), (number, number))


def pread(file, size):
    """As C has it: os.pread would try again where a call is interrupted."""
    buffer = ctypes.create_string_buffer(size)
    count = ctypes.CDLL(None, use_errno=True).pread(file, buffer, ctypes.c_size_t(size), ctypes.c_long(0))
    assert count >= 0, f"pread: {os.strerror(ctypes.get_errno())}"
    return buffer.raw[:count]


def cut_and_look(machines, until):
    files = [os.open(machine.path("cut"), os.O_RDWR) for machine in machines]
    step = 0
    while time.monotonic() < until:
        step += 1
        for one, file in zip(machines, files):
            content = b"%d" % (step % 10) * (10000 if step % 2 else 9000)
            os.pwrite(file, content, 0)
            same([pread(its, 1 << 16) == content for its in files], [True] * len(files), f"written on {one.number}")
            os.ftruncate(file, 5)
            same([pread(its, 99) for its in files], [content[:5]] * len(files), f"cut on {one.number}, step {step}")
    assert step > 10, f"only {step} steps"


def cuts_are_seen_while_times_change(machines):
    """The pages of a file are called back all the time, in the middle of reads."""
    machines[0].write("cut", b"")
    until = time.monotonic() + SECONDS
    at_once([(change_times, machines[-1], until), (cut_and_look, machines[:-1], until)])


def append_lines(machine, count):
    file = os.open(machine.path("lines"), os.O_WRONLY | os.O_APPEND)
    for number in range(count):
        line = b"%d %d %s\n" % (machine.number, number, b"x" * (number % 200))
        same(os.write(file, line), len(line), "a short write")
    os.close(file)


def appends_at_once_lose_nothing(machines):
    count = 300
    machines[0].write("lines", b"")
    at_once([(append_lines, machine, count) for machine in machines])
    expected = sorted(b"%d %d %s" % (it.number, n, b"x" * (n % 200)) for it in machines for n in range(count))
    for machine in machines:
        same(sorted(machine.read("lines").splitlines()), expected, f"lines on {machine.number}")


def count_up(machine, times):
    with open(machine.path("counter"), "r+b", buffering=0) as file:
        for _ in range(times):
            fcntl.lockf(file, fcntl.LOCK_EX)
            number = int(os.pread(file.fileno(), 20, 0))
            os.pwrite(file.fileno(), b"%020d" % (number + 1), 0)
            fcntl.lockf(file, fcntl.LOCK_UN)


def locked_counting_is_exact(machines):
    machines[0].write("counter", b"%020d" % 0)
    at_once([(count_up, machine, 50) for machine in machines])
    for machine in machines:
        same(int(machine.read("counter")), 50 * len(machines), f"counter on {machine.number}")


def write_numbers(machine, newest, until):
    file = os.open(machine.path("numbers"), os.O_WRONLY)
    number = 0
    while time.monotonic() < until:
        number += 1
        os.pwrite(file, struct.pack("<Q", number) * 1024, 0)
        newest.value = number
    os.close(file)


def read_numbers(machine, newest, until, how):
    """A number: by a page that is mapped, by one that the kernel has, or past these."""
    flags = os.O_RDONLY | (os.O_DIRECT if how == "direct" else 0)
    file, page = os.open(machine.path("numbers"), flags), mmap.mmap(-1, 4096)
    mapped = mmap.mmap(file, 8192, prot=mmap.PROT_READ) if how == "mapped" else None
    looks = 0
    while time.monotonic() < until or looks == 0:
        least = newest.value
        if mapped:
            page[:] = mapped[4096:]
        else:
            assert os.preadv(file, [page], 4096) == 4096
        (number,) = struct.unpack("<Q", page[4088:] if mapped else page[:8])
        assert number >= least, f"{number} was read on {machine.number} ({how}) after {least} was written"
        looks += 1


def readers_never_see_the_past(machines):
    machines[0].write("numbers", bytes(8192))
    newest = multiprocessing.Value("Q", 0)
    until = time.monotonic() + SECONDS
    readers = [(read_numbers, it, newest, until, how) for it in machines for how in ("mapped", "read", "direct")]
    at_once([(write_numbers, machines[0], newest, until)] + readers)
    assert newest.value > 10, f"only {newest.value} writes got through"
    print(f"     {newest.value} writes in {SECONDS:.0f} s", flush=True)


CHECKS = [
    written_files_are_read,
    appended_and_cut,
    names_come_and_go,
    kept_names_are_given_up,
    names_that_were_kept_for_long_are_given_up,
    open_descriptors_see_it,
    mappings_see_it,
    appenders_with_open_files_read_the_truth,
    listings_are_fresh,
    rewound_listings_are_fresh,
    sizes_are_true_while_somebody_writes,
    removed_files_stay_open,
    locks_hold,
    cuts_are_seen_while_times_change,
    appends_at_once_lose_nothing,
    locked_counting_is_exact,
    readers_never_see_the_past,
]


def main():
    machines = [Machine(number, mount) for number, mount in enumerate(sys.argv[1:], 1)]
    if len(machines) < 2:
        sys.exit(__doc__)
    shutil.rmtree(machines[0].top, ignore_errors=True)
    os.makedirs(machines[0].top)
    chosen = os.environ.get("CHECKS", "").split()
    failed = 0
    for check in CHECKS:
        if chosen and check.__name__ not in chosen:
            continue
        began = time.monotonic()
        # No call may hang for ever.
        signal.alarm(180)
        try:
            check(machines)
            print(f"ok   {check.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
        except (AssertionError, OSError, ValueError) as error:
            failed += 1
            print(f"FAIL {check.__name__}: {error}", flush=True)
        signal.alarm(0)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
