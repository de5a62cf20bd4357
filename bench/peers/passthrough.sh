#!/usr/bin/env bash
# libfuse's own passthrough of ext4, its `passthrough_hp` example: what a FUSE file system costs that does nothing.
#
#     passthrough.sh up|down ROOT
#
# Compiled from Debian's source of the libfuse that is installed, once. ROOT/passthrough is the mount.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)
cache=${DAZZLE_CACHE:-$repository/target/cache}
root=$2 mount=$2/passthrough source=$2/passthrough-source

fail() { echo "passthrough.sh: $*" >&2; exit 1; }

up() {
    local binary=$cache/bench/passthrough_hp
    if [ ! -x "$binary" ]; then
        pkg-config --exists fuse3 || fail "libfuse3-dev is not installed: run 'install/packages.sh bench' as root"
        local example
        example=$("$repository/install/debian-source.sh" fuse3 "$cache/source")/example
        mkdir -p "$cache/bench"
        # shellcheck disable=SC2046  # a list of options
        g++ -O2 -w -D_FILE_OFFSET_BITS=64 -DHAVE_POSIX_FALLOCATE -DHAVE_SETXATTR \
            -DHAVE_UTIMENSAT -o "$binary.new" "$example/passthrough_hp.cc" \
            -I"$example" $(pkg-config --cflags --libs fuse3) -lpthread
        mv "$binary.new" "$binary"
    fi
    mkdir -p "$mount" "$source"
    "$binary" --foreground "$source" "$mount" >"$root/passthrough.log" 2>&1 &
    echo $! >"$root/passthrough.pid"
    for _ in $(seq 100); do
        ! mountpoint -q "$mount" || return 0
        sleep 0.1
    done
    fail "did not mount in 10 s: $(tail -n 3 "$root/passthrough.log")"
}

down() {
    ! mountpoint -q "$mount" || umount "$mount"
    [ ! -f "$root/passthrough.pid" ] || kill "$(cat "$root/passthrough.pid")" 2>/dev/null || true
    rm -rf "$source" "$mount" "$root/passthrough.pid" "$root/passthrough.log"
}

case "${1:-}" in
    up | down) "$1" ;;
    *) fail "usage: passthrough.sh up|down ROOT" ;;
esac
