#!/usr/bin/env python3
"""sqlite: the mixed load of a speed test in each journal mode, then two processes at once, then integrity_check.

    sqlite.py DIR [--rows N]

SQLite locks byte ranges with fcntl, deletes, truncates or overwrites its rollback journal to commit, maps the index of
its write-ahead log into the memory of every process, and checksums what it reads from it. Each commit is an fsync.
"""

import argparse
import hashlib
import multiprocessing
import os
import random
import sqlite3

import workbench

MODES = ["wal", "delete", "truncate", "persist"]


def connect(path, mode, synchronous):
    """Opens the database in `mode`, checking that SQLite accepted it: it falls back where mmap or locks do not work."""
    base = sqlite3.connect(path, timeout=60, isolation_level=None)
    taken = base.execute(f"pragma journal_mode={mode}").fetchone()[0]
    workbench.must(taken == mode, f"SQLite refused journal mode {mode} and took {taken}")
    base.execute(f"pragma synchronous={synchronous}")
    base.execute("pragma mmap_size=67108864" if mode == "wal" else "pragma mmap_size=0")
    return base


def load(base, rows, chance):
    """Inserts, indexes, updates, deletes, rolls back: what a speed test does, in transactions small and large."""
    base.execute("create table stripe(id integer primary key, number integer, name text, body blob)")
    base.execute("begin")
    for number in range(rows):
        body = chance.randbytes(chance.randrange(0, 400))
        base.execute("insert into stripe values(?,?,?,?)", (number, chance.randrange(rows), f"name {number}", body))
    base.execute("commit")
    base.execute("create index by_number on stripe(number)")
    base.execute("create unique index by_name on stripe(name)")
    for number in range(rows // 100):  # one commit, and so one fsync or more, each
        base.execute("insert into stripe values(?,?,?,?)", (rows + number, number, f"single {number}", b"x" * 3000))
    base.execute("begin")
    for _ in range(rows // 4):
        base.execute("update stripe set body=? where id=?", (chance.randbytes(200), chance.randrange(rows)))
    base.execute("commit")
    base.execute("begin")
    base.execute("delete from stripe")
    base.execute("rollback")
    base.execute("delete from stripe where number % 7 = 3")
    base.execute("update stripe set body=zeroblob(60000) where id % 500 = 0")
    for _ in range(rows // 4):
        base.execute("select body from stripe where number=?", (chance.randrange(rows),)).fetchall()


def fingerprint(base):
    """A digest of every row."""
    digest = hashlib.sha256()
    for row in base.execute("select * from stripe order by id"):
        digest.update(repr(row).encode())
    return digest.hexdigest()


def check(path):
    """Opens the database afresh, lets SQLite check all of it and returns the digest of its rows."""
    base = sqlite3.connect(path, isolation_level=None)
    verdict = base.execute("pragma integrity_check").fetchall()
    workbench.must(verdict == [("ok",)], f"integrity_check of {path}: {verdict[:3]}")
    digest = fingerprint(base)
    base.close()
    workbench.must(not os.path.exists(path + "-wal"), "the last to close left its write-ahead log behind")
    return digest


def increment(path, mode, times):
    """One of several processes that count together: every increment must be kept."""
    base = connect(path, mode, "normal")
    for _ in range(times):
        base.execute("begin immediate")
        value = base.execute("select value from counter").fetchone()[0]
        base.execute("update counter set value=?", (value + 1,))
        base.execute("commit")
    base.close()


def count_together(path, mode, processes, times):
    """Several processes increment one number under SQLite's locks."""
    base = connect(path, mode, "normal")
    base.execute("create table counter(value integer)")
    base.execute("insert into counter values(0)")
    base.close()
    crew = [multiprocessing.Process(target=increment, args=(path, mode, times)) for _ in range(processes)]
    for member in crew:
        member.start()
    for member in crew:
        member.join()
        workbench.must(member.exitcode == 0, f"a process that counted in mode {mode} ended with {member.exitcode}")
    base = connect(path, mode, "normal")
    value = base.execute("select value from counter").fetchone()[0]
    verdict = base.execute("pragma integrity_check").fetchone()[0]
    base.close()
    workbench.must(verdict == "ok", f"integrity_check of {path}: {verdict}")
    workbench.must(value == processes * times, f"{processes}×{times} increments in mode {mode} made {value}")


def test(work, arguments):
    """Every mode gives the same rows as a database in memory."""
    memory = sqlite3.connect(":memory:", isolation_level=None)
    load(memory, arguments.rows, random.Random(5))
    expected = fingerprint(memory)
    for mode in MODES:
        path = os.path.join(work, f"{mode}.db")
        base = connect(path, mode, "full")
        load(base, arguments.rows, random.Random(5))
        workbench.must(fingerprint(base) == expected, f"rows differ in mode {mode}")
        base.execute("vacuum")
        workbench.must(fingerprint(base) == expected, f"rows differ in mode {mode} after vacuum")
        base.close()
        workbench.must(check(path) == expected, f"rows differ in mode {mode} when opened again")
        shared = os.path.join(work, f"{mode}-shared.db")
        count_together(shared, mode, 3, 60)
    return f"{len(MODES)} journal modes of {arguments.rows} rows, 3 processes counting in each, integrity_check ok"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20000)
    workbench.run(test, parser)
