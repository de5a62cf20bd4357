#!/usr/bin/env python3
"""maildir: several deliverers and a reader, as a mail server works.

    maildir.py DIR [--messages N]

A deliverer writes tmp/NAME, syncs it, links it to new/NAME (or renames it), removes tmp/NAME and syncs the directory; only
then is the message accepted. A reader lists new/ all the while, moves what it finds to cur/NAME:2,S and reads it. The
danger: a message seen twice, never, half, or empty.
"""

import argparse
import hashlib
import multiprocessing
import os
import random

import workbench

DELIVERERS = 4


def sync_directory(path):
    """A name is durable when its directory is."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)


def deliver(box, deliverer, messages):
    """Delivers its messages; each begins with the digest of the rest."""
    chance = random.Random(deliverer)
    for number in range(messages):
        body = chance.randbytes(chance.choice([300, 2000, 9000, 70000]))
        name = f"{deliverer}.{number}.zebra"
        temporary, new = f"{box}/tmp/{name}", f"{box}/new/{name}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.sha256(body).hexdigest().encode())
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        if number % 2:
            os.link(temporary, new)
            os.unlink(temporary)
        else:
            os.rename(temporary, new)
        sync_directory(f"{box}/new")


def read_message(path):
    """A message as it was delivered, or a failure."""
    with open(path, "rb") as file:
        text = file.read()
    workbench.must(len(text) > 64, f"{path} is visible with {len(text)} bytes")
    workbench.must(hashlib.sha256(text[64:]).hexdigest().encode() == text[:64], f"{path} holds other bytes")


def collect(box, expected, deliverers):
    """The reader: moves every message to cur/, once."""
    seen = set()
    while len(seen) < expected:
        alive = any(deliverer.is_alive() for deliverer in deliverers)
        found = os.listdir(f"{box}/new")
        for name in found:
            workbench.must(name not in seen, f"{name} was delivered twice")
            seen.add(name)
            os.rename(f"{box}/new/{name}", f"{box}/cur/{name}:2,S")
            read_message(f"{box}/cur/{name}:2,S")
        workbench.must(alive or found, f"{expected - len(seen)} messages were accepted and are not in new/")
    return seen


def test(work, arguments):
    """Delivers and reads at once, then counts."""
    for part in ["tmp", "new", "cur"]:
        os.mkdir(f"{work}/{part}")
    each = arguments.messages // DELIVERERS
    deliverers = [multiprocessing.Process(target=deliver, args=(work, who, each)) for who in range(DELIVERERS)]
    for deliverer in deliverers:
        deliverer.start()
    try:
        seen = collect(work, each * DELIVERERS, deliverers)
    finally:
        for deliverer in deliverers:
            deliverer.join()
    workbench.must(all(deliverer.exitcode == 0 for deliverer in deliverers), "a deliverer failed")
    workbench.must(not os.listdir(f"{work}/tmp") and not os.listdir(f"{work}/new"), "tmp/ or new/ is not empty")
    held = sorted(os.listdir(f"{work}/cur"))
    workbench.must(held == sorted(f"{name}:2,S" for name in seen), "cur/ lists other messages than were moved there")
    for name in held:
        about = os.stat(f"{work}/cur/{name}")
        workbench.must(about.st_nlink == 1, f"{name} has {about.st_nlink} links")
        read_message(f"{work}/cur/{name}")
    return f"{len(held)} messages by {DELIVERERS} deliverers, each synced, moved and read once"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2000)
    workbench.run(test, parser)
