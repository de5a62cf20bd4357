#!/usr/bin/env bash
# MooseFS from Debian on this machine: a master, one chunk server, one mount, one copy of everything.
#
#     moosefs.sh up|down ROOT NAME [fsync]
#
# With `fsync` the chunk server syncs a chunk before it closes it; without, MooseFS never syncs. ROOT/NAME is the mount.
# The master takes no chunk server that calls from 127.0.0.0/8, so the loopback interface gets an address of its own
# while it runs; no packet leaves the machine. Several can run at once, under different names.
set -euo pipefail

address=10.255.255.1
action=${1:-} root=${2:-} name=${3:-} sync=${4:-}
home=$root/$name-state mount=$root/$name

fail() { echo "moosefs.sh: $*" >&2; exit 1; }

[ $# -ge 3 ] || fail "usage: moosefs.sh up|down ROOT NAME [fsync]"

# Five ports, the same for the same name.
base=$((20000 + $(cksum <<<"$name" | cut -d ' ' -f 1) % 2000 * 5))

configure() {
    mkdir -p "$home/master" "$home/chunks" "$home/disk" "$mount"
    printf 'MFSM NEW' >"$home/master/metadata.mfs"
    echo '* / rw,alldirs,maproot=0' >"$home/exports.cfg"
    echo "$home/disk" >"$home/hdd.cfg"
    cat >"$home/master.cfg" <<END
WORKING_USER = root
WORKING_GROUP = root
DATA_PATH = $home/master
EXPORTS_FILENAME = $home/exports.cfg
LOCK_MEMORY = 0
MATOML_LISTEN_HOST = $address
MATOML_LISTEN_PORT = $base
MATOCS_LISTEN_HOST = $address
MATOCS_LISTEN_PORT = $((base + 1))
MATOCL_LISTEN_HOST = $address
MATOCL_LISTEN_PORT = $((base + 2))
END
    cat >"$home/chunks.cfg" <<END
WORKING_USER = root
WORKING_GROUP = root
DATA_PATH = $home/chunks
HDD_CONF_FILENAME = $home/hdd.cfg
HDD_LEAVE_SPACE_DEFAULT = 256MiB
HDD_FSYNC_BEFORE_CLOSE = $([ "$sync" = fsync ] && echo 1 || echo 0)
BIND_HOST = $address
MASTER_HOST = $address
MASTER_PORT = $((base + 1))
MASTER_CONTROL_PORT = $((base + 1))
MASTER_RECONNECTION_DELAY = 1
CSSERV_LISTEN_HOST = $address
CSSERV_LISTEN_PORT = $((base + 3))
END
}

up() {
    [ "$(id -u)" -eq 0 ] || fail "needs root"
    command -v mfsmaster mfschunkserver mfsmount >/dev/null ||
        fail "MooseFS is not installed: run 'install/packages.sh bench' as root"
    ip address add "$address/32" dev lo 2>/dev/null || true
    configure
    mfsmaster -c "$home/master.cfg" start >"$home/log" 2>&1 || fail "the master: $(tail -n 3 "$home/log")"
    mfschunkserver -c "$home/chunks.cfg" start >>"$home/log" 2>&1 || fail "the chunk server: $(tail -n 3 "$home/log")"
    mfsmount "$mount" -H "$address" -P $((base + 2)) >>"$home/log" 2>&1 || fail "mfsmount: $(tail -n 3 "$home/log")"
    # One copy, as there is one disk; and what is removed is gone, not in the trash for a day.
    mfssetgoal -r 1 "$mount" >>"$home/log" 2>&1
    mfssettrashtime -r 0 "$mount" >>"$home/log" 2>&1
    for _ in $(seq 100); do # the chunk server may need a moment to be found
        ! timeout 5 dd if=/dev/zero of="$mount/ready" bs=4k count=1 conv=fsync status=none 2>>"$home/log" || break
        sleep 0.2
    done
    [ -s "$mount/ready" ] || fail "no chunk can be written: $(tail -n 3 "$home/log")"
    rm "$mount/ready"
}

down() {
    ! mountpoint -q "$mount" || umount "$mount" || umount -l "$mount"
    [ ! -f "$home/chunks.cfg" ] || mfschunkserver -c "$home/chunks.cfg" stop >/dev/null 2>&1 || true
    [ ! -f "$home/master.cfg" ] || mfsmaster -c "$home/master.cfg" stop >/dev/null 2>&1 || true
    rm -rf "$home" "$mount"
    [ -n "$(find "$root" -maxdepth 2 -name master.cfg -print -quit 2>/dev/null)" ] ||
        ip address del "$address/32" dev lo 2>/dev/null || true
}

case "$action" in
    up | down) "$action" ;;
    *) fail "usage: moosefs.sh up|down ROOT NAME [fsync]" ;;
esac
