#!/usr/bin/env python3
"""The daemon's memory stays within its settings when there is much more metadata than they allow.

    memory.py DAZZLE DIR MOUNT [--files N]

DIR is the directory of a fresh file system that is up on MOUNT. It is killed and started again with little memory; then two processes
make files with long names, attributes and a little content, without a pause: metadata several times the size of its
setting. All the while, and while all of it is looked up again, the daemon may take what its settings allow and BESIDE. In
the end every file must be as it was made.
"""

import argparse
import os
import signal
import sys
import time

from daemon import Broken, Daemon

MIB = 1 << 20
# The least that settings may say, in MiB.
CACHE, DIRTY, METADATA = 48, 32, 16
# What docs/limits.md says that the daemon takes beside its settings.
BESIDE = 128 * MIB
PER_DIRECTORY = 200
# Lives in the inode, as an attribute of this size does.
CONTENT_SIZE, ATTRIBUTE_SIZE = 400, 1500


def path(root, number):
    directory, name = divmod(number, PER_DIRECTORY)
    return os.path.join(root, str(directory), f"{name}-" + "long" * 40)


def content(number, size):
    return (f"{number} " * size)[:size].encode()


def make(root, numbers):
    for number in numbers:
        if number % PER_DIRECTORY == 0:
            os.mkdir(os.path.dirname(path(root, number)))
        descriptor = os.open(path(root, number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(descriptor, content(number, CONTENT_SIZE))
        os.setxattr(descriptor, "user.what", content(number, ATTRIBUTE_SIZE))
        os.close(descriptor)


def look(root, numbers):
    for number in numbers:
        if os.getxattr(path(root, number), "user.what") != content(number, ATTRIBUTE_SIZE):
            raise Broken(f"file {number} has another attribute")
        with open(path(root, number), "rb") as file:
            if file.read() != content(number, CONTENT_SIZE):
                raise Broken(f"file {number} has other content")


class Watch:
    """The most memory that the daemon was seen to take."""

    def __init__(self, daemon):
        self.daemon, self.most = daemon, {"process": 0}

    def look(self):
        memory = self.daemon.status()["memory"]
        self.most = max(self.most, memory, key=lambda memory: memory["process"])
        if memory["process"] > (CACHE + METADATA) * MIB + BESIDE:
            told = ", ".join(f"{name} {size if name == 'inodes' else f'{size // MIB} MiB'}" for name, size in memory.items())
            raise Broken(f"the daemon takes more memory than its settings and {BESIDE // MIB} MiB: {told}")


def in_two(work, root, files, watch):
    """Two processes do half of the work each, directory by directory; the daemon is watched meanwhile."""
    directories = range(0, files, PER_DIRECTORY)
    children = set()
    for share in (0, 1):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for first in directories[share::2]:
                    work(root, range(first, min(first + PER_DIRECTORY, files)))
                status = 0
            finally:
                os._exit(status)
        children.add(child)
    failed = False
    while children:
        try:
            watch.look()
        except Broken:
            for child in children:
                os.kill(child, signal.SIGKILL)
            raise
        time.sleep(0.2)
        for child in list(children):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                children.remove(child)
                failed |= status != 0
    if failed:
        raise Broken("a process that uses the file system failed; see above")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("dazzle")
    parser.add_argument("dir")
    parser.add_argument("mount")
    parser.add_argument("--files", type=int, default=40_000)
    arguments = parser.parse_args()
    daemon = Daemon(arguments.dazzle, arguments.dir, arguments.mount)
    daemon.restart_with(cache=CACHE, dirty=DIRTY, metadata=METADATA)
    root = os.path.join(arguments.mount, "memory")
    os.mkdir(root)
    watch = Watch(daemon)
    try:
        for work in (make, look):
            in_two(work, root, arguments.files, watch)
            # The kernel forgets what it knows, so that the daemon is asked.
            with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
                file.write("2")
    except Broken as broken:
        sys.exit(str(broken))
    print(f"memory: {arguments.files} files, the daemon took {watch.most['process'] // MIB} MiB at most, of which metadata "
          f"{watch.most['metadata'] // MIB} MiB and dirty {watch.most['dirty'] // MIB} MiB")


if __name__ == "__main__":
    main()
