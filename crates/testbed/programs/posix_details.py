#!/usr/bin/env python3
"""posix_details: many small checks of what programs rely on; each prints `ok NAME`, `skipped NAME` or `FAILED NAME`.

    posix_details.py DIR [--only WORD] [--quiet]

Every check passes on ext4. One that this machine cannot run is skipped and says why; a skipped check is no pass.
"""

import argparse
import errno
import importlib
import os
import pkgutil
import shutil
import signal
import sys
import tempfile
import traceback

import details
from details import bench

# A check that takes longer than this hangs.
CHECK_S_MAX = 120


def give_up(_number, _frame):
    """The alarm went off."""
    raise TimeoutError(f"took more than {CHECK_S_MAX} s")


def outcome(function, directory):
    """Runs one check: ('ok' | 'skipped' | 'FAILED', why)."""
    signal.alarm(CHECK_S_MAX)
    try:
        function(directory)
    except bench.Skipped as reason:
        return "skipped", str(reason)
    except Exception as trouble:  # any exception is a failed check
        place = traceback.extract_tb(trouble.__traceback__)
        lines = [frame.lineno for frame in place if frame.filename.endswith(".py") and "bench" not in frame.filename]
        number = getattr(trouble, "errno", None)
        name = f"{errno.errorcode.get(number)}: " if number else ""
        return "FAILED", f"line {lines[-1]}: {name}{trouble or type(trouble).__name__}"
    finally:
        signal.alarm(0)
        bench.end_children()
    return "ok", ""


def main():
    """Runs the checks and sums up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--only", default="", help="run the checks whose names hold this word")
    parser.add_argument("--quiet", action="store_true", help="print only what did not pass")
    arguments = parser.parse_args()
    if not os.path.isdir(arguments.directory):
        sys.exit(f"posix_details: FAILED: '{arguments.directory}' is not a directory")
    for module in pkgutil.iter_modules(details.__path__):
        importlib.import_module(f"details.{module.name}")
    signal.signal(signal.SIGALRM, give_up)
    os.umask(0o022)

    root = tempfile.mkdtemp(prefix="posix_details.", dir=os.path.abspath(arguments.directory))
    os.chmod(root, 0o755)
    counts = {"ok": 0, "skipped": 0, "FAILED": 0}
    for name, function in bench.CHECKS:
        if arguments.only not in name:
            continue
        directory = os.path.join(root, name)
        os.mkdir(directory)
        result, why = outcome(function, directory)
        if result != "FAILED":
            try:
                shutil.rmtree(directory)
            except OSError as trouble:
                result, why = "FAILED", f"its directory cannot be removed: {trouble}"
        counts[result] += 1
        if result != "ok" or not arguments.quiet:
            print(f"{result} {name}{': ' + why if why else ''}", flush=True)
    print(f"posix_details: {counts['ok']} passed, {counts['FAILED']} failed, {counts['skipped']} skipped")
    if counts["FAILED"]:
        sys.exit(f"posix_details: kept: {root}")
    os.rmdir(root)


if __name__ == "__main__":
    main()
