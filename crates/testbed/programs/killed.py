#!/usr/bin/env python3
"""Has files of a mount open, and one mapped, while its daemon is killed: of none anything can be read any more.

    killed.py DIRECTORY COMMAND

DIRECTORY lies on the mount; COMMAND kills the daemon. Others go on without it, so that whatever the kernel still has of these
files may be old.
"""

import mmap
import os
import signal
import subprocess
import sys
import threading
import time

FILES, READERS, PATIENCE = 100, 4, 5.0


def readable(files):
    """Those of which something can be read."""

    def is_readable(file):
        try:
            return os.pread(file, 1, 0) != b""
        except OSError:
            return False

    return [file for file in files if is_readable(file)]


def read_until_dead(files):
    """A page that is just being read is not dropped."""
    while readable(files):
        pass


class Mapper:
    """A process that has a file mapped, and touches it again when it is told to."""

    def __init__(self, path):
        (told, self.tell), (mapping, map_it) = os.pipe(), os.pipe()
        self.process = os.fork()
        if self.process == 0:
            os.close(self.tell)
            signal.alarm(60)
            file = os.open(path, os.O_RDONLY)
            mapped = mmap.mmap(file, 4096, prot=mmap.PROT_READ)
            assert mapped[0] == ord("x")
            os.write(map_it, b"!")
            os.read(told, 1)
            # What is mapped is taken out of memory a moment after the daemon has died.
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until:
                assert mapped[0] == ord("x")
            os._exit(0)
        os.close(told)
        os.close(map_it)
        assert os.read(mapping, 1) == b"!", "it is mapped before"

    def end(self):
        """By what it ended."""
        os.write(self.tell, b"!")
        _, status = os.waitpid(self.process, 0)
        return status


def main():
    directory, command = sys.argv[1:]
    paths = [os.path.join(directory, f"left-open-{number}") for number in range(FILES)]
    for path in paths:
        with open(path, "wb") as file:
            file.write(b"x" * 4096)
    mapper = Mapper(paths.pop())
    files = [os.open(path, os.O_RDONLY) for path in paths]
    assert readable(files) == files, "they are read before"
    readers = [threading.Thread(target=read_until_dead, args=(files,), daemon=True) for _ in range(READERS)]
    for reader in readers:
        reader.start()
    subprocess.run(command, shell=True, check=True)
    until = time.monotonic() + PATIENCE
    while left := readable(files):
        if time.monotonic() > until:
            sys.exit(f"killed: {len(left)} of {FILES} files can be read {PATIENCE:.0f} s after the daemon was killed")
        time.sleep(0.01)
    status = mapper.end()
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGBUS:
        sys.exit(f"killed: what is mapped can be read {PATIENCE:.0f} s after the daemon was killed (status {status})")
    print(f"of {FILES} files that were open or mapped none can be read any more")
    # Closing them would say that there is nobody.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
