"""Permissions: owners, groups, sticky and setgid directories, what writing takes away."""

import errno
import os
import stat

from .bench import as_user, check, equal, must, read, refused, write

USER, OTHER, GROUP = 12345, 12346, 54321


def mode(path):
    """The permission bits with set-id and sticky."""
    return oct(stat.S_IMODE(os.lstat(path).st_mode))


@check
def the_mode_decides_for_owner_group_and_others(work):
    path = write(f"{work}/file", b"content")
    for bits, owner, group, others in [(0o700, 7, 0, 0), (0o070, 0, 7, 0), (0o007, 0, 0, 7), (0o640, 6, 4, 0)]:
        def try_all(expected):
            for flag, need in [(os.O_RDONLY, 4), (os.O_WRONLY, 2)]:
                if expected & need:
                    os.close(os.open(path, flag))
                else:
                    refused(errno.EACCES, os.open, path, flag)
            equal(os.access(path, os.X_OK), bool(expected & 1))

        os.chown(path, USER, GROUP)
        os.chmod(path, bits)
        as_user(USER, USER, lambda expected=owner: try_all(expected))
        as_user(OTHER, GROUP, lambda expected=group: try_all(expected))
        as_user(OTHER, OTHER, lambda expected=group: try_all(expected), groups=[1, 2, GROUP])
        as_user(OTHER, OTHER, lambda expected=others: try_all(expected))


@check
def directories_ask_for_search_and_write(work):
    inside = f"{work}/inside"
    os.mkdir(inside)
    write(f"{inside}/file", b"content", 0o666)
    os.chmod(inside, 0o711)

    def search_only():
        equal(read(f"{inside}/file"), b"content")
        refused(errno.EACCES, os.listdir, inside)
        refused(errno.EACCES, write, f"{inside}/new")
        refused(errno.EACCES, os.unlink, f"{inside}/file")
        refused(errno.EACCES, os.rename, f"{inside}/file", f"{inside}/other")

    as_user(USER, USER, search_only)
    os.chmod(inside, 0o744)

    def read_only():
        equal(os.listdir(inside), ["file"])
        refused(errno.EACCES, os.stat, f"{inside}/file")
        refused(errno.EACCES, read, f"{inside}/file")

    as_user(USER, USER, read_only)
    os.chmod(inside, 0o777)
    as_user(USER, USER, lambda: os.unlink(f"{inside}/file"))


@check
def sticky_directories_let_owners_only_remove(work):
    shared = f"{work}/shared"
    os.mkdir(shared)
    os.chmod(shared, 0o1777)
    as_user(USER, USER, lambda: write(f"{shared}/file"))
    as_user(USER, USER, lambda: os.mkdir(f"{shared}/directory"))

    def another():
        refused((errno.EPERM, errno.EACCES), os.unlink, f"{shared}/file")
        refused((errno.EPERM, errno.EACCES), os.rename, f"{shared}/file", f"{shared}/mine")
        refused((errno.EPERM, errno.EACCES), os.rmdir, f"{shared}/directory")
        write(f"{shared}/mine")
        refused((errno.EPERM, errno.EACCES), os.rename, f"{shared}/mine", f"{shared}/file")

    as_user(OTHER, OTHER, another)
    as_user(USER, USER, lambda: os.unlink(f"{shared}/file"))


@check
def setgid_directories_hand_on_their_group(work):
    shared = f"{work}/shared"
    os.mkdir(shared)
    os.chown(shared, USER, GROUP)
    os.chmod(shared, 0o2777)

    def fill():
        write(f"{shared}/file")
        os.mkdir(f"{shared}/directory")
        os.symlink("x", f"{shared}/link")

    as_user(OTHER, OTHER, fill)
    for name in ["file", "directory", "link"]:
        about = os.lstat(f"{shared}/{name}")
        equal((about.st_uid, about.st_gid), (OTHER, GROUP), name)
    equal(mode(f"{shared}/directory"), "0o2755")
    equal(mode(f"{shared}/file"), "0o644")


@check
def new_files_belong_to_who_made_them(work):
    os.chmod(work, 0o777)

    def fill():
        write(f"{work}/file")
        os.mkdir(f"{work}/directory")
        os.symlink("x", f"{work}/link")
        os.mkfifo(f"{work}/fifo")

    as_user(USER, GROUP, fill)
    for name in ["file", "directory", "link", "fifo"]:
        about = os.lstat(f"{work}/{name}")
        equal((about.st_uid, about.st_gid), (USER, GROUP), name)


@check
def only_root_gives_files_away(work):
    path = write(f"{work}/file")
    os.chown(path, USER, USER)

    def owner():
        refused(errno.EPERM, os.chown, path, OTHER, -1)
        refused(errno.EPERM, os.chown, path, -1, OTHER)
        os.chown(path, -1, GROUP)
        os.chown(path, USER, -1)
        os.chmod(path, 0o600)

    as_user(USER, USER, owner, groups=[GROUP])
    equal((os.stat(path).st_uid, os.stat(path).st_gid), (USER, GROUP))

    def another():
        refused(errno.EPERM, os.chmod, path, 0o777)
        refused(errno.EPERM, os.chown, path, OTHER, OTHER)

    as_user(OTHER, OTHER, another)
    os.symlink("file", f"{work}/link")
    os.chown(f"{work}/link", OTHER, OTHER, follow_symlinks=False)
    equal((os.lstat(f"{work}/link").st_uid, os.stat(path).st_uid), (OTHER, USER))


@check
def writing_and_giving_away_take_the_set_id_bits(work):
    path = write(f"{work}/file", b"program", 0o755)

    def make_set_id():
        os.chown(path, USER, GROUP)
        os.chmod(path, 0o6777)
        equal(mode(path), "0o6777")

    def owner_writes():
        with open(path, "r+b") as file:
            file.write(b"P")

    def owner_cuts():
        os.truncate(path, 3)

    make_set_id()
    as_user(OTHER, OTHER, owner_writes)
    equal(mode(path), "0o777", "after a write")
    make_set_id()
    as_user(OTHER, OTHER, owner_cuts)
    equal(mode(path), "0o777", "after a truncate")
    make_set_id()
    as_user(USER, GROUP, lambda: os.chown(path, -1, GROUP))
    equal(mode(path), "0o777", "after a chown by the owner")
    make_set_id()
    as_user(USER, USER, lambda: os.chmod(path, 0o2755))
    equal(mode(path), "0o755", "setgid asked for by one who is not of the group")
    os.chmod(path, 0o2644)
    as_user(USER, USER, lambda: os.chmod(path, 0o640))
    equal(mode(path), "0o640")


@check
def an_open_file_keeps_its_rights(work):
    path = write(f"{work}/file", b"content", 0o666)

    def use():
        descriptor = os.open(path, os.O_RDWR)
        os.chmod(path, 0)
        equal(os.read(descriptor, 10), b"content")
        os.pwrite(descriptor, b"C", 0)
        os.close(descriptor)
        refused(errno.EACCES, os.open, path, os.O_RDONLY)

    os.chown(path, USER, USER)
    as_user(USER, USER, use)


@check
def creating_read_only_still_lets_the_creator_write(work):
    os.chmod(work, 0o777)

    def create():
        descriptor = os.open(f"{work}/file", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o400)
        os.write(descriptor, b"content")
        os.close(descriptor)
        equal(read(f"{work}/file"), b"content")
        refused(errno.EACCES, os.open, f"{work}/file", os.O_WRONLY)

    as_user(USER, USER, create)
    equal(mode(f"{work}/file"), "0o400")


@check
def all_twelve_bits_are_kept(work):
    path, directory = write(f"{work}/file"), f"{work}/directory"
    os.mkdir(directory)
    for bits in [0, 0o1, 0o777, 0o1777, 0o2755, 0o4755, 0o7777]:
        for each in (path, directory):
            os.chmod(each, bits)
            equal(mode(each), oct(bits), each)


@check
def a_directory_can_be_renamed_away_only_by_who_may_write_it(work):
    os.mkdir(f"{work}/from", 0o777)
    os.chmod(f"{work}/from", 0o777)
    os.mkdir(f"{work}/to", 0o777)
    os.chmod(f"{work}/to", 0o777)
    os.mkdir(f"{work}/from/directory", 0o755)

    def move():
        refused((errno.EACCES, errno.EPERM), os.rename, f"{work}/from/directory", f"{work}/to/directory")

    as_user(USER, USER, move)  # its entry `..` would change, and it belongs to another
    must(os.path.isdir(f"{work}/from/directory"), "it stays")


@check
def large_user_and_group_numbers_are_kept(work):
    path = write(f"{work}/file")
    os.chown(path, 2**32 - 2, 2**31)
    equal((os.stat(path).st_uid, os.stat(path).st_gid), (2**32 - 2, 2**31))
