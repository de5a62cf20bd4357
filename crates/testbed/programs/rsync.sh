#!/usr/bin/env bash
# rsync: copies a tree of many small files in, compares it byte for byte, changes it and copies the changes.
#
#     rsync.sh DIR [FILES]
#
# The tree is generated from a seed: sizes from nothing to a few hundred KiB, deep and wide directories, odd names,
# links, modes and times to the nanosecond.
. "$(dirname "$0")/workbench.sh"
require rsync python3 diff
FILES=${2:-20000}
open_workbench "$@"

python3 "$PROGRAMS/tree.py" make "$LOCAL/tree" --files "$FILES" --seed 1
quietly rsync -aHAX "$LOCAL/tree/" "$WORK/tree/"
same_trees "$LOCAL/tree" "$WORK/tree"

python3 "$PROGRAMS/tree.py" change "$LOCAL/tree" --seed 2
quietly rsync -aHAXc --delete "$LOCAL/tree/" "$WORK/tree/"
same_trees "$LOCAL/tree" "$WORK/tree"

# In place and by appending, as a backup of large files does it.
quietly rsync -aHAX --inplace --no-whole-file --ignore-times "$LOCAL/tree/" "$WORK/tree/"
same_trees "$LOCAL/tree" "$WORK/tree"

report "$(find "$WORK/tree" -type f | wc -l) files, $(du -sm --apparent-size "$LOCAL/tree" | cut -f1) MiB," \
    "copied, changed and updated, the same byte for byte"
