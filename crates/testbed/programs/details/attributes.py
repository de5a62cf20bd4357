"""Extended attributes and POSIX ACLs: set, list, remove, limits, inheritance, and what they permit."""

import errno
import os
import shutil
import stat
import subprocess

from .bench import Skipped, as_user, check, equal, must, read, refused, write

XATTR_CREATE, XATTR_REPLACE = 1, 2


def facl(*arguments):
    """setfacl or getfacl; fails the check when it does."""
    if shutil.which(arguments[0]) is None:
        raise Skipped(f"{arguments[0]} is not installed")
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    must(done.returncode == 0, *arguments, "failed:", done.stderr.strip())
    return done.stdout


def entries(path):
    """The lines of a file's ACL, without names and comments."""
    text = facl("getfacl", "--omit-header", "--numeric", "--no-effective", "--absolute-names", path)
    return [line for line in text.splitlines() if line]


@check
def attributes_are_kept_listed_and_removed(work):
    path = write(f"{work}/file")
    equal(os.listxattr(path), [])
    os.setxattr(path, "user.one", b"1")
    os.setxattr(path, "user.two", bytes(range(256)))
    os.setxattr(path, "user.empty", b"")
    equal(sorted(os.listxattr(path)), ["user.empty", "user.one", "user.two"])
    equal(os.getxattr(path, "user.two"), bytes(range(256)))
    equal(os.getxattr(path, "user.empty"), b"")
    os.removexattr(path, "user.one")
    refused(errno.ENODATA, os.getxattr, path, "user.one")
    refused(errno.ENODATA, os.removexattr, path, "user.one")
    os.rename(path, f"{work}/renamed")
    equal(sorted(os.listxattr(f"{work}/renamed")), ["user.empty", "user.two"])


@check
def create_and_replace_mean_what_they_say(work):
    path = write(f"{work}/file")
    refused(errno.ENODATA, os.setxattr, path, "user.a", b"1", XATTR_REPLACE)
    os.setxattr(path, "user.a", b"1", XATTR_CREATE)
    refused(errno.EEXIST, os.setxattr, path, "user.a", b"2", XATTR_CREATE)
    os.setxattr(path, "user.a", b"longer than before", XATTR_REPLACE)
    equal(os.getxattr(path, "user.a"), b"longer than before")


@check
def directories_and_open_files_have_attributes_too(work):
    os.setxattr(work, "user.directory", b"yes")
    equal(os.getxattr(work, "user.directory"), b"yes")
    descriptor = os.open(write(f"{work}/file"), os.O_RDWR)
    os.setxattr(descriptor, "user.open", b"yes")
    equal(os.getxattr(f"{work}/file", "user.open"), b"yes")
    os.unlink(f"{work}/file")
    equal(os.listxattr(descriptor), ["user.open"])
    os.close(descriptor)


@check
def the_limits_of_names_and_values(work):
    path = write(f"{work}/file")
    os.setxattr(path, "user." + "n" * 250, b"x")
    refused(errno.ERANGE, os.setxattr, path, "user." + "n" * 251, b"x")
    os.setxattr(path, "user.large", b"v" * 3000)
    equal(os.getxattr(path, "user.large"), b"v" * 3000)
    refused((errno.E2BIG, errno.ENOSPC, errno.ERANGE), os.setxattr, path, "user.huge", b"v" * 65537)
    refused((errno.EOPNOTSUPP, errno.EINVAL), os.setxattr, path, "unknown.name", b"x")
    refused((errno.EOPNOTSUPP, errno.EINVAL, errno.ERANGE), os.setxattr, path, "noprefix", b"x")


@check
def fifty_attributes_on_one_file(work):
    path = write(f"{work}/file")
    for number in range(50):
        os.setxattr(path, f"user.number-{number}", str(number).encode())
    equal(len(os.listxattr(path)), 50)
    for number in range(0, 50, 2):
        os.removexattr(path, f"user.number-{number}")
    equal(sorted(os.listxattr(path)), sorted(f"user.number-{number}" for number in range(1, 50, 2)))
    equal(os.getxattr(path, "user.number-49"), b"49")


@check
def symlinks_and_special_files_take_no_user_attributes(work):
    os.symlink("nowhere", f"{work}/link")
    refused(errno.EPERM, os.setxattr, f"{work}/link", "user.a", b"1", follow_symlinks=False)
    os.mkfifo(f"{work}/fifo")
    refused(errno.EPERM, os.setxattr, f"{work}/fifo", "user.a", b"1")


@check
def user_attributes_follow_the_mode(work):
    path = write(f"{work}/file", mode=0o600)
    os.setxattr(path, "user.secret", b"1")

    def stranger():
        refused(errno.EACCES, os.getxattr, path, "user.secret")
        refused(errno.EACCES, os.setxattr, path, "user.other", b"1")

    as_user(12345, 12345, stranger)
    os.chmod(path, 0o644)

    def reader():
        equal(os.getxattr(path, "user.secret"), b"1")
        refused(errno.EACCES, os.setxattr, path, "user.other", b"1")
        refused(errno.EPERM, os.setxattr, path, "trusted.other", b"1")

    as_user(12345, 12345, reader)


@check
def trusted_attributes_are_roots(work):
    if os.getuid() != 0:
        raise Skipped("needs root")
    path = write(f"{work}/file", mode=0o666)
    os.setxattr(path, "trusted.stripe", b"1")
    equal(os.getxattr(path, "trusted.stripe"), b"1")

    def user():
        refused((errno.ENODATA, errno.EPERM), os.getxattr, path, "trusted.stripe")
        must("trusted.stripe" not in os.listxattr(path), "a user sees trusted attributes")

    as_user(12345, 12345, user)


@check
def capabilities_go_when_the_file_is_written(work):
    if os.getuid() != 0:
        raise Skipped("needs root")
    path = write(f"{work}/file", b"program", 0o755)
    capability = bytes.fromhex("0100000200040000000000000000000000000000")
    os.setxattr(path, "security.capability", capability)
    equal(os.getxattr(path, "security.capability"), capability)
    with open(path, "ab") as file:
        file.write(b"changed")
    refused(errno.ENODATA, os.getxattr, path, "security.capability")


@check
def an_acl_is_kept_and_shown(work):
    path = write(f"{work}/file", mode=0o640)
    facl("setfacl", "-m", "u:12345:rw,g:54321:r,m::rw", path)
    equal(entries(path), ["user::rw-", "user:12345:rw-", "group::r--", "group:54321:r--", "mask::rw-", "other::---"])
    equal(os.stat(path).st_mode & 0o777, 0o660, "the mode's group bits are the mask")
    facl("setfacl", "-x", "u:12345", path)
    facl("setfacl", "-b", path)
    equal(len(entries(path)), 3)
    must("system.posix_acl_access" not in os.listxattr(path), "an ACL that says no more than the mode is stored")


@check
def chmod_and_the_mask_are_one(work):
    path = write(f"{work}/file", mode=0o600)
    facl("setfacl", "-m", "u:12345:rwx", path)
    os.chmod(path, 0o640)
    must("mask::r--" in entries(path), "the mask after chmod 640:", entries(path))
    must("user:12345:rwx" in entries(path), "the entry stays:", entries(path))
    must("group::---" in entries(path), "the group's entry stays:", entries(path))

    def named():
        os.close(os.open(path, os.O_RDONLY))
        refused(errno.EACCES, os.open, path, os.O_WRONLY)

    as_user(12345, 12345, named)


@check
def an_acl_permits_and_refuses(work):
    path = write(f"{work}/file", b"content", 0o644)
    facl("setfacl", "-m", "u:12345:-,u:12346:rw,g:54321:rw,m::rw", path)

    def excluded():
        refused(errno.EACCES, os.open, path, os.O_RDONLY)
        must(not os.access(path, os.R_OK), "access(2) permits what open refuses")

    def admitted():
        equal(read(path), b"content")
        os.close(os.open(path, os.O_RDWR))

    def other():
        equal(read(path), b"content")
        refused(errno.EACCES, os.open, path, os.O_WRONLY)

    as_user(12345, 12345, excluded)
    as_user(12346, 12346, admitted)
    as_user(12347, 54321, admitted)
    as_user(12347, 12347, admitted, groups=[54321])
    as_user(12347, 12347, other)


@check
def a_default_acl_is_inherited(work):
    top = f"{work}/top"
    os.mkdir(top, 0o755)
    facl("setfacl", "-d", "-m", "u::rwx,u:12345:rwx,g::rx,o::-,m::rwx", top)
    os.umask(0o077)  # which a default ACL overrides
    try:
        write(f"{top}/file", mode=0o666)
        os.mkdir(f"{top}/below", 0o777)
        os.mkfifo(f"{top}/fifo", 0o666)
    finally:
        os.umask(0o022)
    expected = ["user::rw-", "user:12345:rwx", "group::r-x", "mask::rw-", "other::---"]
    equal(entries(f"{top}/file"), expected)
    equal(entries(f"{top}/fifo"), expected)
    equal(oct(os.stat(f"{top}/file").st_mode & 0o777), "0o660")
    below = entries(f"{top}/below")
    must("default:user:12345:rwx" in below, "the directory below hands it on:", below)
    must("user:12345:rwx" in below and "mask::rwx" in below, "and has it:", below)
    write(f"{top}/below/deep", mode=0o600)
    must("user:12345:rwx" in entries(f"{top}/below/deep"), "two floors below")
    must("mask::---" in entries(f"{top}/below/deep"), "the creating mode limits it:", entries(f"{top}/below/deep"))
    facl("setfacl", "-k", top)
    write(f"{top}/plain", mode=0o644)
    equal(len(entries(f"{top}/plain")), 3)


@check
def only_directories_have_default_acls(work):
    path = write(f"{work}/file")
    directory = f"{work}/directory"
    os.mkdir(directory)
    facl("setfacl", "-d", "-m", "u:12345:rwx", directory)
    acl = os.getxattr(directory, "system.posix_acl_default")
    refused((errno.EACCES, errno.EPERM), os.setxattr, path, "system.posix_acl_default", acl)
    refused((errno.EINVAL, errno.EOPNOTSUPP), os.setxattr, path, "system.posix_acl_access", b"rubbish")
    refused((errno.EINVAL, errno.EOPNOTSUPP), os.setxattr, path, "system.posix_acl_access", acl[:-1])


@check
def only_the_owner_changes_an_acl(work):
    path = write(f"{work}/file", mode=0o666)
    facl("setfacl", "-m", "u:12346:rwx", path)
    acl = os.getxattr(path, "system.posix_acl_access")

    def another():
        refused(errno.EPERM, os.setxattr, path, "system.posix_acl_access", acl)
        refused(errno.EPERM, os.removexattr, path, "system.posix_acl_access")

    as_user(12345, 12345, another)


@check
def setting_an_acl_sets_the_mode(work):
    path = write(f"{work}/file", mode=0o600)
    other = write(f"{work}/other", mode=0o600)
    facl("setfacl", "-m", "u:12345:r,m::rwx,o::r", other)
    os.setxattr(path, "system.posix_acl_access", os.getxattr(other, "system.posix_acl_access"))
    equal(stat.S_IMODE(os.stat(path).st_mode), 0o674)
