#!/usr/bin/env bash
# Runs every program test on a directory and says which failed.
#
#     all.sh DIR [NAME...]              (NAME: the tests to run, without their endings; default all)
#
# Environment: QUICK=1 takes smaller sizes, where a test has them, so that all fit ten minutes on ext4.
set -uo pipefail

programs=$(cd "$(dirname "$0")" && pwd)
directory=${1:-}
[ -d "$directory" ] || { echo "usage: all.sh DIR [NAME...]: '$directory' is not a directory" >&2; exit 2; }
shift

# Each test with the sizes of a quick run.
tests="
posix_details.py
editor.py      --saves 50
maildir.py     --messages 600
tar.sh         500
sqlite.py      --rows 5000
git.sh         100
rsync.sh       5000
c-build.sh
fio.sh         16m
fsx.sh         200000
postgres.sh    2 8
pjdfstest.sh
"

failed="" count=0
while read -r name sizes; do
    [ -n "$name" ] || continue
    [ $# -eq 0 ] || [[ " $* " == *" ${name%.*} "* ]] || continue
    program=$programs/$name
    start=$SECONDS
    count=$((count + 1))
    options=()
    [ "$name" != posix_details.py ] || options=(--quiet)
    # shellcheck disable=SC2206  # a list of words
    [ -z "${QUICK:-}" ] || options+=($sizes)
    if "$program" "$directory" "${options[@]}" </dev/null; then
        echo "  $name: $((SECONDS - start)) s"
    else
        failed="$failed ${name%.*}"
        echo "  $name: FAILED after $((SECONDS - start)) s"
    fi
done <<<"$tests"

[ "$count" -gt 0 ] || { echo "all.sh: there is no test named $*" >&2; exit 2; }
if [ -n "$failed" ]; then
    echo "programs: $(wc -w <<<"$failed") of $count failed:$failed" >&2
    exit 1
fi
echo "programs: $count passed"
