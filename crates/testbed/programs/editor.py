#!/usr/bin/env python3
"""editor: saves files the ways editors do, while others read them.

    editor.py DIR [--saves N]

vim renames the file to a backup and writes a new one, or copies it and writes in place, keeps mode, owner, ACL and
attributes, and syncs; others write a temporary file and rename it over the old one. The danger: a reader that finds
no file or half of one, a mode or a link that is lost, an inode that changes where it must not.
"""

import argparse
import multiprocessing
import os
import shutil
import stat

import workbench

ATTRIBUTE = "user.charset"


def text(version):
    """What version N of the file holds: as long as its number says, so that old and new never look alike."""
    line = f"version {version} of a file about zebras\n"
    return (line * (50 + version * 37 % 400)).encode()


def version_of(content):
    """Which version these bytes are; fails when they are none."""
    workbench.must(content, "the file was empty")
    version = int(content.split(b" ", 2)[1])
    workbench.must(content == text(version), f"a mixture of versions: {len(content)} bytes, starting with {version}")
    return version


def write_synced(path, content, flags, mode=0o600):
    """Writes and syncs, as an editor does before it believes in a file."""
    descriptor = os.open(path, flags, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def save_by_backup_rename(path, content):
    """vim, `backupcopy=no`: the old file becomes the backup, a new one is written under the name."""
    about = os.stat(path)
    attribute = os.getxattr(path, ATTRIBUTE)
    os.rename(path, path + "~")
    write_synced(path, content, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.chmod(path, stat.S_IMODE(about.st_mode))
    os.chown(path, about.st_uid, about.st_gid)
    os.setxattr(path, ATTRIBUTE, attribute)
    os.unlink(path + "~")


def save_by_backup_copy(path, content):
    """vim, `backupcopy=yes`: the old bytes are copied away, the file is truncated and written in place."""
    inode = os.stat(path).st_ino
    shutil.copy2(path, path + "~")
    write_synced(path, content, os.O_WRONLY | os.O_TRUNC)
    workbench.must(os.stat(path).st_ino == inode, "writing in place changed the inode")
    os.unlink(path + "~")


def save_by_rename_over(path, content):
    """Most others: a temporary file is synced, given the mode, renamed over the old one; the directory is synced."""
    about = os.stat(path)
    temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.swp")
    write_synced(temporary, content, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.chmod(temporary, stat.S_IMODE(about.st_mode))
    os.chown(temporary, about.st_uid, about.st_gid)
    os.setxattr(temporary, ATTRIBUTE, os.getxattr(path, ATTRIBUTE))
    os.rename(temporary, path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def probe_writable(directory):
    """vim creates and removes a file called 4913 to see whether the directory can be written."""
    path = os.path.join(directory, "4913")
    write_synced(path, b"", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o100644)
    os.unlink(path)


def watch(path, stop):
    """Reads all the while: with rename-over there is always a whole file, and versions never go back."""
    newest = 0
    while not stop.is_set():
        with open(path, "rb") as file:
            version = version_of(file.read())
        workbench.must(version >= newest, f"version {version} was read after {newest}")
        newest = version


def save_many(path, save, saves):
    """Saves versions 1 to `saves` and checks each."""
    write_synced(path, text(0), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.chmod(path, 0o751)
    os.setxattr(path, ATTRIBUTE, b"utf-8")
    for version in range(1, saves + 1):
        probe_writable(os.path.dirname(path))
        held = open(path, "rb")
        save(path, text(version))
        with open(path, "rb") as file:
            workbench.must(version_of(file.read()) == version, f"{save.__name__}: the saved version is not there")
        if save is not save_by_backup_copy:
            workbench.must(version_of(held.read()) == version - 1, f"{save.__name__}: an open old file changed")
        held.close()
        workbench.must(stat.S_IMODE(os.stat(path).st_mode) == 0o751, f"{save.__name__}: the mode is lost")
        workbench.must(os.getxattr(path, ATTRIBUTE) == b"utf-8", f"{save.__name__}: the attribute is lost")
    left = os.listdir(os.path.dirname(path))
    workbench.must(left == [os.path.basename(path)], f"{save.__name__}: left behind {left}")


def test(work, arguments):
    """Each way in a directory of its own; the atomic one under the eyes of readers."""
    ways = [save_by_backup_rename, save_by_backup_copy, save_by_rename_over]
    for way in ways:
        directory = os.path.join(work, way.__name__)
        os.mkdir(directory)
        save_many(os.path.join(directory, "stripes.txt"), way, arguments.saves)
    path = os.path.join(work, "watched.txt")
    write_synced(path, text(0), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.setxattr(path, ATTRIBUTE, b"utf-8")
    stop = multiprocessing.Event()
    readers = [multiprocessing.Process(target=watch, args=(path, stop)) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for version in range(1, arguments.saves + 1):
            save_by_rename_over(path, text(version))
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    workbench.must(all(reader.exitcode == 0 for reader in readers), "a reader saw no file, half of one, or an old one")
    return f"{arguments.saves} saves in each of {len(ways)} ways, and as many under two readers"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saves", type=int, default=150)
    workbench.run(test, parser)
