#!/usr/bin/env python3
"""A tree of files made from a seed: the same seed gives the same tree, to the byte and the nanosecond.

    tree.py make DIR --files N --seed S       makes it
    tree.py change DIR --seed S               changes a part of it, as a day of work does
"""

import argparse
import os
import random

# Most files are small and most bytes are in large ones, as in any source tree; one in twenty is empty.
SIZES = [(0, 0, 5), (1, 200, 20), (200, 4096, 45), (4096, 16384, 20), (16384, 65536, 8), (65536, 300000, 2)]
NAMES = ["with space", "ümläut", "日本", "semi;colon", "quote'", "new\nline", "-dash", ".hidden", "x" * 200]
DIRECTORY_FILES = 40
TIME_START_NS = 1_000_000_000_000_000_000


def content(chance):
    """Bytes of a file: half of them repetitive, as text is, half of them noise."""
    low, high, _ = chance.choices(SIZES, weights=[weight for _, _, weight in SIZES])[0]
    size = chance.randint(low, high)
    if chance.random() < 0.5:
        return chance.randbytes(size)
    line = chance.randbytes(chance.randint(10, 100))
    return (line * (size // len(line) + 1))[:size]


def write(path, chance):
    """Writes one file, with a mode and a time of its own."""
    with open(path, "wb") as file:
        file.write(content(chance))
    os.chmod(path, chance.choice([0o644, 0o644, 0o600, 0o755, 0o444, 0o640]))
    stamp(path, chance)


def stamp(path, chance):
    """Gives a file or directory times anywhere in twenty years."""
    moment = TIME_START_NS + chance.randrange(20 * 365 * 86400 * 10**9)
    os.utime(path, ns=(moment, moment), follow_symlinks=False)


def make(root, files, seed):
    """Makes the tree."""
    chance = random.Random(seed)
    os.makedirs(root)
    directories, made = [root], []
    for number in range(files):
        if number % DIRECTORY_FILES == 0:
            directory = os.path.join(chance.choice(directories[-30:]), f"d{number}")
            os.mkdir(directory)
            directories.append(directory)
        odd = chance.choice(NAMES) if number % 100 == 0 else f"file-{number}"
        path = os.path.join(chance.choice(directories[-3:]), f"{number}{odd}" if number % 100 == 0 else odd)
        kind = chance.random()
        if kind < 0.02 and made:
            os.link(chance.choice(made), path)
        elif kind < 0.04:
            os.symlink(chance.choice(["nowhere", "../" * 3 + "far", "file-1"]), path)
        else:
            write(path, chance)
            made.append(path)
    for directory in reversed(directories):
        stamp(directory, chance)


def change(root, seed):
    """Rewrites, appends to, renames and removes some of the files."""
    chance = random.Random(seed)
    paths = sorted(os.path.join(where, name) for where, _, names in os.walk(root) for name in names)
    for path in chance.sample(paths, max(1, len(paths) // 20)):
        deed = chance.random()
        if deed < 0.25 or os.path.islink(path):
            os.unlink(path)
        elif deed < 0.5:
            os.rename(path, path[:-3] + "-renamed")
        elif deed < 0.75:
            os.chmod(path, 0o644)
            with open(path, "ab") as file:
                file.write(content(chance))
            stamp(path, chance)
        else:
            os.unlink(path)
            write(path, chance)


def main():
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deed", choices=["make", "change"])
    parser.add_argument("directory")
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.deed == "make":
        make(arguments.directory, arguments.files, arguments.seed)
    else:
        change(arguments.directory, arguments.seed)


if __name__ == "__main__":
    main()
