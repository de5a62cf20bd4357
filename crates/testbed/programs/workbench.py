"""What the program tests written in Python share; `workbench.sh` is its elder twin and says what a program test is."""

import os
import shutil
import sys
import tempfile
import traceback


class Failure(Exception):
    """The file system did what it must not."""


def must(condition, message):
    """Fails the test with `message` unless `condition` holds."""
    if not condition:
        raise Failure(message)


def run(test, parse):
    """Runs `test(work, arguments)` in a fresh directory below DIR and ends the process with its status.

    `parse` is an ArgumentParser to which DIR is added; `test` returns the line of what it did.
    """
    parse.add_argument("directory", metavar="DIR", help="a directory on the file system to test")
    arguments = parse.parse_args()
    name = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    if not os.path.isdir(arguments.directory):
        sys.exit(f"{name}: FAILED: '{arguments.directory}' is not a directory")
    work = tempfile.mkdtemp(prefix=f"{name}.", dir=os.path.abspath(arguments.directory))
    os.chmod(work, 0o755)
    try:
        line = test(work, arguments)
        shutil.rmtree(work)
        must(not os.path.exists(work), f"{work} is still there after it was removed")
    except (Failure, OSError) as trouble:
        if isinstance(trouble, OSError):
            traceback.print_exc()
        sys.exit(f"{name}: FAILED: {trouble}\n{name}: kept: {work}")
    print(f"{name}: ok: {line}")
