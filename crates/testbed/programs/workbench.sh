# shellcheck shell=bash
# What the program tests share: sourced by each, never run.
#
# A program test is called as `NAME.sh DIR [options]`. It works in a fresh directory below DIR, leaves nothing behind
# when it passes, prints one line of what it did, and ends with a status other than zero, after saying why, when
# anything was not as it must be. DIR may lie on any file system: the tests are tried on ext4, then used on Dazzle.

set -euo pipefail

PROGRAM=$(basename "${0%.*}")
PROGRAMS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REPOSITORY=$(cd "$PROGRAMS/../../.." && pwd)

# Tools and sources that are built or fetched once; always on a local file system.
CACHE=${DAZZLE_CACHE:-$REPOSITORY/target/cache}

fail() {
    echo "$PROGRAM: FAILED: $*" >&2
    exit 1
}

report() {
    echo "$PROGRAM: ok: $*"
}

require() {
    local command
    for command in "$@"; do
        command -v "$command" >/dev/null || fail "$command is not installed: run install/packages.sh as root"
    done
}

# Opens the test: $WORK is a new directory below DIR, on the file system to test; $LOCAL one on the local disk, for what
# to compare with, and $LOCAL/log takes what the programs say. A failed test keeps both, to be looked at.
open_workbench() {
    [ $# -ge 1 ] && [ -d "$1" ] || fail "usage: $PROGRAM DIR [options]: '${1:-}' is not a directory"
    mkdir -p "$CACHE"
    WORK=$(mktemp -d "$(cd "$1" && pwd)/$PROGRAM.XXXXXX") || fail "cannot make a directory in $1"
    LOCAL=$(mktemp -d "${TMPDIR:-/var/tmp}/$PROGRAM.XXXXXX")
    LOG=$LOCAL/log
    chmod 755 "$WORK" "$LOCAL"
    cd "$LOCAL" # where programs leave what nobody asked for
    trap close_workbench EXIT
    trap 'exit 130' HUP INT TERM
}

# Runs at the end, whatever the end was. A test with more to take down sets its own trap and hands the status on.
close_workbench() {
    local status=${1:-$?}
    cd /
    if [ $status -eq 0 ]; then
        rm -rf "$WORK" || { echo "$PROGRAM: FAILED: cannot remove $WORK" >&2; status=1; }
        [ $status -ne 0 ] || [ ! -e "$WORK" ] || { echo "$PROGRAM: FAILED: $WORK is still there" >&2; status=1; }
        rm -rf "$LOCAL"
    else
        [ ! -s "$LOG" ] || { echo "--- the end of $LOG:"; tail -n 25 "$LOG"; } >&2
        echo "$PROGRAM: kept: $WORK and $LOCAL" >&2
    fi
    exit $status
}

# Runs a command silently, keeping what it says in the log.
quietly() {
    echo "+ $*" >>"$LOG"
    "$@" >>"$LOG" 2>&1 || fail "'$*' ended with status $?"
}

# Two trees hold the same names, bytes, kinds, modes, times, owners, links and attributes.
same_trees() {
    local differences
    differences=$(rsync -aHAXnc --delete --itemize-changes "$1/" "$2/") || fail "rsync cannot compare $1 with $2"
    [ -z "$differences" ] || fail "$2 differs from $1: $(head -n 5 <<<"$differences")"
    # A second opinion on the bytes; of two pipes or devices, whose numbers rsync compared, diff only says that they are two.
    differences=$(diff -r --no-dereference "$1" "$2" 2>&1 | grep -v -E '^File .* is a .* while file .* is a ' || true)
    [ -z "$differences" ] || fail "$2 differs from $1: $(head -n 5 <<<"$differences")"
}

# A real tree of C sources: prints its directory, below the cache.
real_tree() {
    "$REPOSITORY/install/debian-source.sh" "$1" "$CACHE/source" 2>>"$LOG" || fail "no source of $1 can be had"
}

# A program from crates.io, in exactly this version: prints its path.
crate_program() {
    local name=$1 version=$2 root=$CACHE/crates/$1-$2
    if [ ! -x "$root/bin/$name" ]; then
        require cargo
        # What they do takes the kernel's time: to optimise them would cost minutes and gain seconds.
        CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR=$CACHE/crates/target cargo install --quiet --debug --root "$root" \
            --locked "$name" --version "=$version" >>"$LOG" 2>&1 || fail "cargo cannot install $name $version"
    fi
    echo "$root/bin/$name"
}
