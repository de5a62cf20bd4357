#!/usr/bin/env bash
# Dazzle beside ext4, a FUSE passthrough of ext4, and MooseFS: one run, interleaved rounds, medians, a markdown table.
#
#     bench/compare.sh [--rounds N] [--scale F] [--only NAME,...] [--root DIR] [--raw FILE]
#
#     --rounds N    default 5
#     --scale F     sizes times F; default 1: 512 MiB, 10,000 files. 0.1 is a look whether all works
#     --only ...    of ext4, passthrough, moosefs, moosefs-fsync, dazzle
#     --root DIR    where all of them keep their data, on one disk; default a new directory in /var/tmp
#     --raw FILE    every single figure, as JSON
#
# Dazzle takes part when DAZZLE_UP is set. These commands see MOUNT (an empty directory to mount on) and BASE (where the
# data shall be; there is nothing yet) in their environment:
#
#     DAZZLE_UP     for example: target/release/dazzle up "$BASE" --mount "$MOUNT" --targets 5
#     DAZZLE_DOWN   for example: target/release/dazzle down "$BASE"
#     DAZZLE_COLD   optional: empties the daemon's own caches; the kernel's are dropped anyway
#
# Needs root, for the mounts and to drop caches, and `install/packages.sh bench`. Takes about a quarter of an hour.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/.." && pwd)
cache=${DAZZLE_CACHE:-$repository/target/cache}
rounds=5 scale=1 only="" root="" raw=""

fail() { echo "compare.sh: $*" >&2; exit 1; }

while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || fail "$1 needs a value; see the top of this file"
    case "$1" in
        --rounds) rounds=$2 ;;
        --scale) scale=$2 ;;
        --only) only=$2 ;;
        --root) root=$2 ;;
        --raw) raw=$2 ;;
        *) fail "unknown option $1; see the top of this file" ;;
    esac
    shift 2
done

[ "$(id -u)" -eq 0 ] || fail "needs root: it mounts file systems and drops caches"
own_root=""
[ -n "$root" ] || { root=$(mktemp -d /var/tmp/compare.XXXXXX); own_root=$root; }
mkdir -p "$root" "$cache/bench"
export MOUNT=$root/dazzle BASE=$root/dazzle-base

taken() { [ -z "$only" ] || [[ ",$only," == *",$1,"* ]]; }

# What is up is taken down in any case.
up=()
take_down() {
    local status=$? name
    cd /
    for name in "${up[@]}"; do
        case "$name" in
            passthrough) "$here/peers/passthrough.sh" down "$root" ;;
            moosefs*) "$here/peers/moosefs.sh" down "$root" "$name" ;;
            dazzle) bash -c "${DAZZLE_DOWN:-true}" >/dev/null ;;
        esac || echo "compare.sh: $name did not go down" >&2
    done
    rm -rf "$root/ext4" "$root/inputs"
    ! mountpoint -q "$MOUNT" || { echo "compare.sh: $MOUNT is still mounted" >&2; exit 1; }
    rm -rf "$BASE" "$MOUNT"
    [ -z "$own_root" ] || rm -rf "$own_root"
    exit $status
}
trap take_down EXIT
trap 'exit 130' HUP INT TERM

# The tree and the repository that are unpacked and cloned: a real C project of a thousand files, thirty commits.
make_inputs() {
    local source number tree=$root/inputs/repository
    source=$("$repository/install/debian-source.sh" sed "$cache/source")
    mkdir -p "$tree"
    cp -a "$source/." "$tree/"
    tar -C "$tree" -cf "$root/inputs/tree.tar" .
    cd "$tree"
    export HOME=$root/inputs GIT_CONFIG_NOSYSTEM=1
    git config --global user.name Zebra
    git config --global user.email zebra@example.org
    git init -q
    git add -A
    git commit -q -m "Import"
    for number in $(seq 30); do
        find . -path ./.git -prune -o -name '*.c' -print | sort | sed -n "$number~30p" | while read -r file; do
            echo "/* $number */" >>"$file"
        done
        git commit -q -a -m "Change $number"
    done
    git gc -q
    cd /
}

cc -O2 -o "$cache/bench/measure" "$here/measure.c" -lpthread
make_inputs
systems=()
if taken ext4; then
    mkdir -p "$root/ext4"
    systems+=("ext4=$root/ext4")
fi
if taken passthrough; then
    up+=(passthrough)
    "$here/peers/passthrough.sh" up "$root"
    systems+=("passthrough=$root/passthrough")
fi
for name in moosefs moosefs-fsync; do
    taken "$name" || continue
    up+=("$name")
    "$here/peers/moosefs.sh" up "$root" "$name" "${name#moosefs-}"
    systems+=("$name=$root/$name")
done
if taken dazzle && [ -n "${DAZZLE_UP:-}" ]; then
    mkdir -p "$MOUNT"
    up+=(dazzle)
    bash -c "$DAZZLE_UP" >"$root/dazzle-up" 2>&1 || fail "DAZZLE_UP failed: $(tail -n 5 "$root/dazzle-up")"
    mountpoint -q "$MOUNT" || fail "DAZZLE_UP did not mount $MOUNT"
    systems+=("dazzle=$MOUNT${DAZZLE_COLD:+=$DAZZLE_COLD}")
fi
[ ${#systems[@]} -gt 0 ] || fail "nothing to measure: --only $only"

echo "$(date -u +%F), Linux $(uname -r), $(nproc) processors, $(findmnt -n -o FSTYPE -T "$root") below," \
    "load $(cut -d ' ' -f 1 /proc/loadavg) at the start; medians of $rounds rounds; (×ratio to passthrough, more is better)"
echo
python3 "$here/compare.py" --measure "$cache/bench/measure" --inputs "$root/inputs" --rounds "$rounds" \
    --scale "$scale" ${raw:+--raw "$raw"} "${systems[@]}"
