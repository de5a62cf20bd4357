# What install/test.sh runs on real mounts; sourced by it. Every function fails by its exit code.

# on_fresh NAME [up's options...] -- PROGRAM [options...]: the program on a fresh file system, then a check.
on_fresh() {
    local name=$1 options=()
    shift
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    local program=$1
    shift
    fresh "$name" "${options[@]}" || return 1
    "$program" "$work/$name-mount" "$@" || return 1
    end "$name"
}

real_programs() {
    fresh programs --targets 5 || return 1
    QUICK=1 "$programs/all.sh" "$work/programs-mount" \
        git c-build sqlite postgres fsx fio rsync tar editor maildir || return 1
    end programs
}

crash() {
    fresh crash --targets 5 || return 1
    "$programs/crash.py" "$dazzle" "$work/crash" "$work/crash-mount" --rounds "${ROUNDS:-10}" --seed "${SEED:-$RANDOM}" || return 1
    end crash
}

# The daemon is restarted again and again, as it would be for an upgrade; what is done twice shows.
restarts() {
    fresh restarts --targets 5 || return 1
    "$programs/once.py" "$dazzle" "$work/restarts" --restarts "${ROUNDS:-15}" || return 1
    end restarts
}

# Without io_uring: what a kernel without it, or its owner, has.
device() {
    fresh device --targets 5 --limit 1GiB && "$dazzle" down "$work/device" || return 1
    sed -i 's/^io_uring = .*/io_uring = false/' "$work/device/dazzle.toml" && "$dazzle" up "$work/device" || return 1
    ! grep -qx 'fuse-cpu-0' "/proc/$(cat "$work/device/lock")"/task/*/comm || { echo "io_uring is used all the same"; return 1; }
    "$programs/posix_details.py" "$work/device-mount" --quiet || return 1
    "$programs/once.py" "$dazzle" "$work/device" --restarts 5 || return 1
    end device
}

# Everything overwritten many times over, the daemon killed in between. SPACE=full: 1 GiB and 20,000 files, 50 times.
overwritten() {
    local limit=160MiB sizes=(--large 160 --files 3000 --times 6 --kills 3)
    [ "${SPACE:-}" != full ] || { limit=1GiB sizes=(--large 1024 --files 20000 --times 50 --kills 10); }
    fresh space --targets 5 --limit "$limit" || return 1
    "$programs/space.py" "$dazzle" "$work/space" "$work/space-mount" "${sizes[@]}" --seed "${SEED:-$RANDOM}" || return 1
    end space
}

# Much more metadata than there is memory for it.
memory() {
    fresh memory --targets 5 || return 1
    "$programs/memory.py" "$dazzle" "$work/memory" "$work/memory-mount" || return 1
    end memory
}

# What is in a mounted file system, as one number.
digest() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum); }

# Puts a tree and a large file into a file system.
fill_some() {
    cp -r "$top/crates" "$top/docs" "$1/" && head -c 40M /dev/urandom >"$1/large" && sync -f "$1/large"
}

# loss_of_each TARGETS PARITY: each target in turn is destroyed, everything is read, and it is repaired.
loss_of_each() {
    local name=loss-$1-$2 target expected
    fresh "$name" --targets "$1" --parity "$2" || return 1
    fill_some "$work/$name-mount" || return 1
    expected=$(digest "$work/$name-mount")
    for target in $(seq 0 $(($1 - 1))); do
        "$dazzle" down "$work/$name" || return 1
        rm -rf "$work/$name/target-$target"
        "$dazzle" up "$work/$name" || return 1
        [ "$(digest "$work/$name-mount")" = "$expected" ] || { echo "bytes differ without target $target"; return 1; }
        echo "written without target $target" >"$work/$name-mount/note-$target"
        "$dazzle" down "$work/$name" || return 1
        mkdir "$work/$name/target-$target"
        "$dazzle" up "$work/$name" && "$dazzle" repair "$work/$name" || return 1
        expected=$(digest "$work/$name-mount")
    done
    "$dazzle" check "$work/$name" --thorough && "$dazzle" down "$work/$name"
}

loss_of_two() {
    local expected
    fresh two --targets 6 --parity 2 || return 1
    fill_some "$work/two-mount" || return 1
    expected=$(digest "$work/two-mount")
    "$dazzle" down "$work/two" || return 1
    rm -rf "$work/two/target-1" "$work/two/target-4"
    "$dazzle" up "$work/two" || return 1
    [ "$(digest "$work/two-mount")" = "$expected" ] || { echo "bytes differ without targets 1 and 4"; return 1; }
    "$dazzle" down "$work/two"
}

# Flips bits all over one target while the file system is down; nothing wrong may be served, and repair mends all.
flipped_bits() {
    local expected
    fresh flip --targets 5 || return 1
    fill_some "$work/flip-mount" || return 1
    expected=$(digest "$work/flip-mount")
    "$dazzle" down "$work/flip" || return 1
    python3 - "$work/flip/target-3/data" <<'EOT' || return 1
import os, random, sys
dice = random.Random(3)
size = os.path.getsize(sys.argv[1])
with open(sys.argv[1], "r+b") as data:
    for _ in range(200):
        at = dice.randrange(size)
        data.seek(at)
        byte = data.read(1)
        data.seek(at)
        data.write(bytes([byte[0] ^ 1 << dice.randrange(8)]))
EOT
    "$dazzle" up "$work/flip" || return 1
    [ "$(digest "$work/flip-mount")" = "$expected" ] || { echo "a wrong byte was served"; return 1; }
    "$dazzle" repair "$work/flip" && "$dazzle" check "$work/flip" --thorough && "$dazzle" down "$work/flip"
}

# Fills a small file system to ENOSPC and empties it, ROUNDS times (5): never stuck, nothing leaks.
fill_and_empty() {
    local round before after rounds=${ROUNDS:-5}
    fresh full --targets 5 --limit 256MiB || return 1
    before=$(df --output=avail -B1M "$work/full-mount" | tail -1)
    for round in $(seq "$rounds"); do
        if head -c 4G /dev/zero >"$work/full-mount/fill" 2>"$work/full-message"; then
            echo "round $round: more was stored than there is room for"
            return 1
        fi
        grep -q "No space left" "$work/full-message" || { cat "$work/full-message"; return 1; }
        rm "$work/full-mount/fill" || return 1
        echo alive >"$work/full-mount/alive" && sync -f "$work/full-mount/alive" || return 1
    done
    after=$(free_again "$before") || return 1
    echo "free before $before MiB, after $rounds rounds $after MiB"
    end full
}

# Waits until deleted stripes have been given back, at most a minute; prints the free MiB.
free_again() {
    local free second
    for second in $(seq 60); do
        free=$(df --output=avail -B1M "$work/full-mount" | tail -1)
        [ "$free" -ge $(($1 - 24)) ] && { echo "$free"; return 0; }
        sleep 1
    done
    echo "space leaks: $1 MiB were free, $free are" >&2
    return 1
}

# expect CODE WORDS COMMAND...: the command ends with CODE and says WORDS.
expect() {
    local code=$1 words=$2 got message
    shift 2
    message=$("$@" 2>&1)
    got=$?
    if [ "$got" -ne "$code" ] || [[ "$message" != *"$words"* ]]; then
        echo "expected exit $code and '$words' from: $*"
        echo "got exit $got: $message"
        return 1
    fi
}

# What the maps say of machines, targets and groups, as the machine of DIR knows them: maps_of DIR.
maps_of() {
    "$dazzle" status "$1" --json | python3 -c '
import json, sys
status = json.load(sys.stdin)
print([[node[name] for name in ("id", "name", "draining")] for node in status["nodes"]])
print([[target[name] for name in ("id", "name", "state", "draining", "empty")] for target in status["targets"]])
print([group for group in status["groups"] if group["current"]])'
}

# planned DIR CODE WORDS COMMAND...: a plan ends with CODE and says WORDS, and the maps of the machine of DIR are as before.
planned() {
    local before
    before=$(maps_of "$1") || return 1
    expect "$2" "$3" "${@:4}" || return 1
    [ "$(maps_of "$1")" = "$before" ] || { echo "a plan has changed something: ${*:4}"; return 1; }
}

# moves COMMAND...: a plan in JSON names bytes, and how long they take, and is not refused.
moves() {
    "$@" --json | python3 -c '
import json, sys
plan = json.load(sys.stdin)
bytes = plan["bytes_to_move"] + plan.get("bytes_to_make", 0)
right = bytes > 0 and plan["seconds"] > 0 and plan["bound"] in ("rebuild", "links", "unknown") and plan.get("refused") is None
sys.exit(0 if right else "no plan of what moves: %s" % plan)'
}

bad_input() {
    local bad=$work/bad
    mkdir -p "$work/not-a-fs" && echo precious >"$work/not-a-fs/file" || return 1
    expect 2 "unrecognized subcommand" "$dazzle" frobnicate || return 1
    expect 2 "unknown unit" "$dazzle" up "$work/never" --limit "5 parsecs" || return 1
    expect 2 "cannot be used with" "$dazzle" up "$work/never" --targets 2 --target "$work/x" || return 1
    expect 1 "needs more than 3 targets" "$dazzle" up "$work/never" --targets 2 --parity 3 || return 1
    expect 1 "data = 9 is not from 1 to the 8" "$dazzle" up "$work/never" --targets 3 --data 9 || return 1
    expect 1 "Make an empty directory there" "$dazzle" up "$work/never" --target "$work/no-disk/t" || return 1
    expect 1 "holds no Dazzle file system" "$dazzle" status "$work/not-a-fs" || return 1
    expect 1 "needs a directory of its own" "$dazzle" up "$work/not-a-fs" --targets 3 || return 1
    expect 1 "No such file" "$dazzle" status "$work/nowhere" || return 1
    expect 1 "lies in no mounted Dazzle" "$dazzle" why "$work/not-a-fs/file" || return 1
    [ "$(cat "$work/not-a-fs/file")" = precious ] || { echo "a stranger's file was touched"; return 1; }
    fresh bad --targets 3 && echo kept >"$bad-mount/file" || return 1
    expect 1 "a daemon runs" "$dazzle" up "$bad" || return 1
    expect 1 "another daemon runs" "$dazzle" daemon --foreground "$bad" || return 1
    expect 1 "no such name" "$dazzle" why "$bad-mount/absent" || return 1
    "$dazzle" status "$bad" | true || { echo "a reader that goes away broke the command"; return 1; }
    "$dazzle" down "$bad" || return 1
    expect 1 "no daemon runs" "$dazzle" status "$bad" || return 1
    expect 1 "no daemon runs" "$dazzle" down "$bad" || return 1
    expect 1 "do not apply" "$dazzle" up "$bad" --targets 4 || return 1
    # Settings that are not understood are named, and nothing is changed.
    cp "$bad/dazzle.toml" "$work/settings" && sed -i '1i speed = "ludicrous"' "$bad/dazzle.toml" || return 1
    expect 1 "not understood" "$dazzle" up "$bad" || return 1
    cp "$work/settings" "$bad/dazzle.toml" && "$dazzle" up "$bad" || return 1
    [ "$(cat "$bad-mount/file")" = kept ] || { echo "the file is not there"; return 1; }
    for command in "status $bad" "check $bad" "why $bad-mount/file" "repair $bad" "down $bad"; do
        # shellcheck disable=SC2086
        "$dazzle" $command --json | python3 -m json.tool >/dev/null || { echo "no JSON from: $command"; return 1; }
    done
}

# Without one of three targets: it is named with WORDS, the others serve, and what is put back is repaired.
# without_target WORDS: target-1 of $work/targets has been made unusable; $work/own holds it as it was.
without_target() {
    local dir=$work/targets said
    said=$("$dazzle" up "$dir") || return 1
    [[ "$said" == *"goes on without target-1: "*"$1"* ]] || { echo "expected '$1' in: $said"; return 1; }
    grep -q "$1" <<<"$("$dazzle" status "$dir")" || { echo "status does not tell: $1"; return 1; }
    [ "$(digest "$dir-mount")" = "$2" ] || { echo "bytes differ: $1"; return 1; }
    expect 3 "target-1 is missing" "$dazzle" check "$dir" || return 1
    "$dazzle" down "$dir" || return 1
}

bad_targets() {
    local dir=$work/targets expected file
    fresh targets --targets 3 && fill_some "$dir-mount" || return 1
    fresh other --targets 3 && "$dazzle" down "$work/other" || return 1
    expected=$(digest "$dir-mount")
    "$dazzle" down "$dir" && cp -r "$dir/target-1" "$work/own" || return 1
    rm -r "$dir/target-1"
    without_target "No such file" "$expected" || return 1
    # Of another file system: recognised, and left as it is.
    cp -r "$work/other/target-1" "$dir/target-1" || return 1
    without_target "belongs to another file system" "$expected" || return 1
    diff -r "$work/other/target-1" "$dir/target-1" || { echo "a foreign target was changed"; return 1; }
    rm -r "$dir/target-1" && cp -r "$dir/target-2" "$dir/target-1" || return 1
    without_target "in the wrong place" "$expected" || return 1
    # A newer format: recognised by its version, and left as it is.
    rm -r "$dir/target-1" && cp -r "$work/own" "$dir/target-1" && newer_version "$dir/target-1/target" || return 1
    without_target "newer than this program" "$expected" || return 1
    # Every file of it scribbled over, or its superblock lost.
    for file in "$dir"/target-1/*; do head -c 64K /dev/urandom | dd of="$file" conv=notrunc status=none; done
    without_target "no target, or its superblock is damaged" "$expected" || return 1
    rm -r "$dir/target-1" && cp -r "$work/own" "$dir/target-1" && : >"$dir/target-1/target" || return 1
    without_target "has no superblock" "$expected" || return 1
    # Cut short: what is left of it serves until it is repaired.
    rm -r "$dir/target-1" && cp -r "$work/own" "$dir/target-1" && truncate -s 3M "$dir/target-1/data" || return 1
    "$dazzle" up "$dir" && [ "$(digest "$dir-mount")" = "$expected" ] || { echo "bytes differ: truncated"; return 1; }
    "$dazzle" repair "$dir" && "$dazzle" check "$dir" --thorough && "$dazzle" down "$dir" || return 1
    # Two of three are more than parity makes up for: nothing starts, nothing is changed, and it says so.
    mkdir "$work/aside" && mv "$dir/target-0" "$dir/target-2" "$work/aside/" || return 1
    expect 1 "bring the missing targets back" "$dazzle" up "$dir" || return 1
    mv "$work"/aside/* "$dir/" && "$dazzle" up "$dir" || return 1
    [ "$(digest "$dir-mount")" = "$expected" ] || { echo "bytes differ at the end"; return 1; }
    "$dazzle" repair "$dir" && end targets
}

# Makes both copies of a superblock those of format version 99, with a checksum that is right.
newer_version() {
    python3 - "$1" <<'EOT'
import sys
def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
with open(sys.argv[1], "r+b") as superblock:
    for place in (0, 4096):
        superblock.seek(place)
        sector = bytearray(superblock.read(512))
        assert int.from_bytes(sector[508:], "little") == crc32c(sector[:508]), "the checksum is another one"
        sector[8:12] = (99).to_bytes(4, "little")
        sector[508:] = crc32c(sector[:508]).to_bytes(4, "little")
        superblock.seek(place)
        superblock.write(sector)
EOT
}

# heals DIR: what lacked something is made whole within a minute, by itself, with nobody asking.
heals() {
    for _ in {1..60}; do
        ! grep -q "healthy" <<<"$("$dazzle" status "$1")" || return 0
        sleep 1
    done
    "$dazzle" status "$1" && echo "it is not whole again"
    return 1
}

# A target that was away while others wrote and deleted comes back: its old fragments do no harm, and it is made whole.
comes_back() {
    local dir=$work/back expected said
    fresh back --targets 4 && fill_some "$dir-mount" && "$dazzle" down "$dir" || return 1
    mv "$dir/target-1" "$work/away" && "$dazzle" up "$dir" || return 1
    rm -r "$dir-mount/crates" && head -c 30M /dev/urandom >"$dir-mount/large" || return 1
    for file in 1 2 3 4 5 6; do head -c 20M /dev/urandom >"$dir-mount/more-$file" || return 1; done
    rm "$dir-mount"/more-[135] && "$dazzle" down "$dir" && "$dazzle" up "$dir" || return 1
    expected=$(digest "$dir-mount")
    "$dazzle" down "$dir" && mv "$work/away" "$dir/target-1" && said=$("$dazzle" up "$dir") || return 1
    [[ "$said" == *"missed writes"* ]] || { echo "it passes for whole: $said"; return 1; }
    [ "$(digest "$dir-mount")" = "$expected" ] || { echo "stale bytes were served"; return 1; }
    heals "$dir" && "$dazzle" check "$dir" --thorough || return 1
    # Now another may be lost.
    "$dazzle" down "$dir" && mv "$dir/target-2" "$work/away" && "$dazzle" up "$dir" || return 1
    [ "$(digest "$dir-mount")" = "$expected" ] || { echo "bytes differ without another target"; return 1; }
    "$dazzle" down "$dir" && mv "$work/away" "$dir/target-2" && "$dazzle" up "$dir" && "$dazzle" repair "$dir" && end back
}

# rebuilt DIR DIGEST UP PLAN: the registry's copies were harmed. The start refuses, saying UP and what helps; a plan says PLAN and
# changes nothing; the registry is rebuilt, though it was killed on the way, and everything is there.
rebuilt() {
    local dir=$1 before tries
    expect 1 "$3" "$dazzle" up "$dir" && expect 1 "dazzle registry rebuild" "$dazzle" up "$dir" || return 1
    before=$(cat "$dir"/target-*/* | sha256sum)
    expect 0 "$4" "$dazzle" registry rebuild "$dir" --plan || return 1
    [ "$(cat "$dir"/target-*/* | sha256sum)" = "$before" ] || { echo "a plan has changed something: $3"; return 1; }
    for tries in 0.02 0.05 0.1; do timeout -s KILL $tries "$dazzle" registry rebuild "$dir" >/dev/null 2>&1; done
    "$dazzle" registry rebuild "$dir" || expect 1 "nothing is to be rebuilt" "$dazzle" registry rebuild "$dir" || return 1
    "$dazzle" up "$dir" || return 1
    [ "$(digest "$dir-mount")" = "$2" ] || { echo "bytes differ: $3"; return 1; }
    # Killed between two copies, it leaves a target whose copy is old, which then passes for one that missed writes.
    heals "$dir" && "$dazzle" check "$dir" --thorough || return 1
}

# The copies of the registry are damaged, missing, or old, on all targets but one or on all: it is rebuilt, with every byte.
registry_lost() {
    local dir=$work/ruin expected copy
    fresh ruin --targets 3 && fill_some "$dir-mount" || return 1
    expect 1 "nothing is to be rebuilt" "$dazzle" registry rebuild "$dir" || return 1
    "$dazzle" down "$dir" && expect 1 "nothing is to be rebuilt" "$dazzle" registry rebuild "$dir" || return 1
    mkdir "$work/old" && cp "$dir"/target-0/registry.* "$work/old/" && "$dazzle" up "$dir" || return 1
    # All but one scribbled over.
    head -c 3M /dev/urandom >"$dir-mount/second" && sync "$dir-mount/second" && expected=$(digest "$dir-mount") || return 1
    kill_daemon "$dir"
    for copy in "$dir"/target-[12]/registry.*; do head -c 64K /dev/urandom | dd of="$copy" conv=notrunc status=none; done
    rebuilt "$dir" "$expected" "only 1 of 3 targets" "target-2: damaged" || return 1
    # None is left.
    rm -r "$dir-mount/crates" && head -c 9M /dev/urandom >"$dir-mount/third" && sync "$dir-mount/third" || return 1
    expected=$(digest "$dir-mount") && kill_daemon "$dir" && rm "$dir"/target-*/registry.* || return 1
    rebuilt "$dir" "$expected" "no target holds a registry" "fragments tell everything" || return 1
    # Those of long ago were put back everywhere.
    echo "since then" >"$dir-mount/fourth" && sync "$dir-mount/fourth" && expected=$(digest "$dir-mount") || return 1
    kill_daemon "$dir"
    for copy in "$dir"/target-*; do rm "$copy"/registry.* && cp "$work"/old/* "$copy/" || return 1; done
    rebuilt "$dir" "$expected" "older than what they hold" "the best copy lacks log" || return 1
    end ruin
}

# kill_daemon DIR: SIGKILL, and returns when its process is gone.
kill_daemon() {
    kill -KILL "$(cat "$1/lock")" && flock "$1/lock" true
}

postgres_killed() {
    fresh postgres --targets 5 || return 1
    ON_KILL="kill -KILL \$(cat '$work/postgres/lock') && flock '$work/postgres/lock' true" \
        ON_RESTART="'$dazzle' up '$work/postgres'" "$programs/postgres.sh" "$work/postgres-mount" 5 15 || return 1
    end postgres
}

# The disk beneath one target is filled by others, then freed; and it turns read-only, in use and before the start.
full_beneath() {
    local dir=$work/beneath disk=$work/small expected
    mkdir "$disk" "$work/b1" "$work/b2" && mount -t tmpfs -o size=400M dazzle-test "$disk" && mkdir "$disk/target" || return 1
    fresh beneath --target "$disk/target" --target "$work/b1" --target "$work/b2" || return 1
    fill_some "$dir-mount" || return 1
    # Whoever closes a file is told, once, that its bytes found no room before: here all are stored.
    find "$dir-mount" -type f -print0 | xargs -0 sync || return 1
    expected=$(digest "$dir-mount")
    head -c 1G /dev/zero >"$disk/others" 2>/dev/null
    head -c 1G /dev/zero >"$dir-mount/fill" 2>"$work/message" && { echo "more was stored than there is room for"; return 1; }
    grep -q "No space left" "$work/message" || { cat "$work/message"; return 1; }
    rm "$dir-mount/fill" || return 1
    [ "$(digest "$dir-mount")" = "$expected" ] || { echo "bytes differ when full"; return 1; }
    rm "$disk/others" && head -c 40M /dev/urandom >"$dir-mount/again" && sync -f "$dir-mount/again" || return 1
    expected=$(digest "$dir-mount")
    "$dazzle" check "$dir" && "$dazzle" down "$dir" && mount -o remount,ro "$disk" && "$dazzle" up "$dir" || return 1
    [ "$(digest "$dir-mount")" = "$expected" ] || { echo "bytes differ without the read-only target"; return 1; }
    echo more >"$dir-mount/more" && "$dazzle" down "$dir" && mount -o remount,rw "$disk" && "$dazzle" up "$dir" || return 1
    "$dazzle" repair "$dir" && end beneath && umount "$disk"
}

# hung_disk device|directory: the disk beneath one target of five hangs, and programs go on. It is a device whose bytes are a file
# in a file system of its own; the target is that device, or lies in a file system on it.
hung_disk() {
    local name=hung-$1 below=$work/below-$1 target number targets=()
    mkdir "$below" && truncate -s 2G "$below.img" && mkfs.ext4 -q "$below.img" || return 1
    mount -o loop "$below.img" "$below" 2>/dev/null || { echo "no loop devices here: left out"; return 0; }
    truncate -s 1G "$below/disk" && target=$(losetup -f --show "$below/disk") || return 1
    if [ "$1" = directory ]; then
        mkfs.ext4 -q "$target" && mkdir "$work/disk" && mount "$target" "$work/disk" && losetup -d "$target" || return 1
        target=$work/disk/target && mkdir "$target" || return 1
    fi
    for number in 1 2 3 4; do
        mkdir "$work/$1-$number" && targets+=(--target "$work/$1-$number") || return 1
    done
    fresh "$name" --target "$target" "${targets[@]}" || return 1
    "$programs/hung_disk.py" "$dazzle" "$work/$name" "$work/$name-mount" "$below" || return 1
    end "$name" && { [ "$1" = device ] && losetup -d "$target" || umount "$work/disk"; } && umount "$below"
}

# Mount points that are busy, dead or nobody's; a machine without FUSE; programs that still use the mount; any user.
bad_mounts() {
    local dir=$work/mounts user accessed
    fresh mounts --targets 3 && echo kept >"$dir-mount/file" && sync -f "$dir-mount/file" || return 1
    expect 1 "mount point already" "$dazzle" up "$work/second" --mount "$dir-mount" --targets 2 || return 1
    [ ! -e "$work/second/dazzle.toml" ] || { echo "a file system was made that cannot be mounted"; return 1; }
    expect 1 "can be mounted on" "$dazzle" up "$work/second" --mount "$dir-mount/file" --targets 2 || return 1
    # In use: it stays, until it is to go by force.
    exec {user}<"$dir-mount/file"
    expect 1 "is in use" "$dazzle" down "$dir" || return 1
    [ "$(cat "$dir-mount/file")" = kept ] && "$dazzle" down "$dir" --force || return 1
    exec {user}<&-
    # A killed daemon leaves a dead mount behind.
    "$dazzle" up "$dir" && echo "and more" >>"$dir-mount/file" && sync "$dir-mount/file" || return 1
    "$programs/killed.py" "$dir-mount" "kill -KILL \$(cat '$dir/lock') && flock '$dir/lock' true" || return 1
    cat "$dir-mount/file" 2>/dev/null && { echo "a dead mount answers"; return 1; }
    "$dazzle" up "$dir" && touch -d 2001-01-01 "$dir-mount/file" && [ "$(tail -1 "$dir-mount/file")" = "and more" ] || return 1
    # Somebody else unmounts: the daemon stores everything, the time of the last read too, and ends.
    accessed=$(stat -c %x "$dir-mount/file") && [[ "$accessed" != 2001-* ]] || { echo "a read moved no access time"; return 1; }
    # A second read moves no time, for the file has not changed since the first.
    cat "$dir-mount/file" >/dev/null || return 1
    umount "$dir-mount" && flock "$dir/lock" true && "$dazzle" up "$dir" || return 1
    [ "$(stat -c %x "$dir-mount/file")" = "$accessed" ] || { echo "the access time is not $accessed any more"; return 1; }
    end mounts || return 1
    expect 1 "/dev/fuse cannot be opened" unshare --mount sh -c \
        "mount -t tmpfs none /dev && '$dazzle' up '$work/third' --mount '$work/third-mount' --targets 3" || return 1
    [ ! -e "$work/third/dazzle.toml" ] || { echo "a file system was made that cannot be mounted"; return 1; }
    any_user
}

# A user who is not root mounts with fusermount3; in a mount namespace where everybody may open /dev/fuse, as is usual.
any_user() {
    command -v fusermount3 >/dev/null || { echo "fusermount3 is not installed: left out"; return 0; }
    install -d -o nobody "$work/user" "$work/user-mount" && cp "$dazzle" "$work/program" || return 1
    cat >"$work/as-user" <<'EOT' || return 1
set -e
cd "$1"
./program up user --mount user-mount --targets 3
echo mine >user-mount/file
mkdir user-mount/directory
[ "$(stat -c %U user-mount/file)" = nobody ]
./program check user
./program down user
./program up user
grep -q mine user-mount/file
./program down user
EOT
    unshare --mount sh -ec "mount -t tmpfs none /dev
        mknod -m 666 /dev/fuse c 10 229 && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9
        runuser -u nobody -- bash '$work/as-user' '$work'"
}

# Where the machines of this test are called: machine NUMBER, from 1 to 9. They are daemons of this machine, each at a loopback
# address that no test beside this one has.
machine() { echo "127.$((20 + $$ % 200)).$((1 + $$ / 200 % 250)).$((begun % 25 * 10 + $1)):4747"; }

# Who is in the cluster of the first machine, as that knows it.
members() {
    "$dazzle" status "$work/m1" --json |
        python3 -c 'import json, sys; print(*("%d:%s" % (n["id"], n["name"]) for n in json.load(sys.stdin)["nodes"]))'
}

# refused CODE WORDS ADDRESS TOKEN [options...]: machine 7, or that at `own`, called new, or `called`, does not join, says WORDS in
# time, and nothing is changed.
refused() {
    local code=$1 words=$2 before=$SECONDS members
    shift 2
    members=$(members) || return 1
    expect "$code" "$words" "$dazzle" join "$1" "$2" "$work/new" --name "${called:-new}" \
        --address "${own:-$(machine 7)}" "${@:3}" || return 1
    [ ! -e "$work/new" ] || { echo "a directory was left behind: $words"; return 1; }
    [ "$(members)" = "$members" ] || { echo "the cluster was changed: $words"; return 1; }
    [ $((SECONDS - before)) -le 20 ] || { echo "it took $((SECONDS - before)) s: $words"; return 1; }
}

# beside MANNER DIR COMMAND...: the command, while strangers.py listens as machine 6 with the certificate of DIR.
beside() {
    local stranger outcome
    : >"$work/stranger"
    "$programs/strangers.py" serve "$(machine 6)" "$1" "$2" >"$work/stranger" 2>&1 &
    stranger=$!
    until grep -q listens "$work/stranger"; do
        kill -0 "$stranger" 2>/dev/null || { cat "$work/stranger"; return 1; }
        sleep 0.05
    done
    "${@:3}"
    outcome=$?
    kill "$stranger"
    wait "$stranger" 2>/dev/null
    return "$outcome"
}

# Machines that come with the wrong words, to the wrong place, at the wrong time: each is told so in time, and changes nothing.
# Two machines are asked, for after ten refusals within a minute each looks at nobody.
bad_clusters() {
    local dir
    "$dazzle" up "$work/m1" --name one --address "$(machine 1)" --mount "$work/m1-mount" &&
        "$dazzle" up "$work/f1" --name alien --address "$(machine 9)" && echo kept >"$work/m1-mount/file" || return 1
    bad_addresses && bad_tokens && bad_clocks && bad_machines && bad_versions && bad_certificates && no_quorum || return 1
    [ "$(cat "$work/m1-mount/file")" = kept ] || { echo "the file is not there"; return 1; }
    # The others may go as they are: the last ones to be stopped would wait for those that are gone.
    "$dazzle" check "$work/m1" && "$dazzle" down "$work/m1" || return 1
    for dir in new m3 m2 f2 f1; do kill_daemon "$work/$dir" || return 1; done
}

# Names that do not resolve, ports where nobody listens, hosts that say nothing or something else.
bad_addresses() {
    local token
    token=$("$dazzle" token create "$work/m1") || return 1
    refused 1 "nowhere.invalid:4747 does not resolve" nowhere.invalid:4747 "$token" || return 1
    refused 1 "refuses connections" "$(machine 6)" "$token" || return 1
    own="$(machine 7 | cut -d: -f1)" refused 1 "is no host and port" "$(machine 1)" "$token" || return 1
    own=nowhere.invalid:4747 refused 1 "nowhere.invalid:4747 does not resolve" "$(machine 1)" "$token" || return 1
    own=192.0.2.7:4747 refused 1 "cannot be listened on" "$(machine 1)" "$token" || return 1
    own=0.0.0.0:4747 refused 1 "no address that other machines can call" "$(machine 1)" "$token" || return 1
    expect 1 "nowhere.invalid:4747 does not resolve" "$dazzle" up "$work/m6" --address nowhere.invalid:4747 || return 1
    expect 1 "cannot be listened on" "$dazzle" up "$work/m6" --address "$(machine 1)" || return 1
    [ ! -e "$work/m6/dazzle.toml" ] || { echo "a file system was made that nobody can call"; return 1; }
    beside silent "$work/m1" refused 1 "says nothing for 4 s" "$(machine 6)" "$token" || return 1
    beside web "$work/m1" refused 1 "does not speak as a node of Dazzle" "$(machine 6)" "$token" || return 1
    # The token is as good as new, whatever was asked by it.
    planned "$work/m1" 0 "votes then: 1" "$dazzle" join "$(machine 1)" "$token" "$work/m2" --name two \
        --address "$(machine 2)" --plan || return 1
    [ ! -e "$work/m2" ] || { echo "a plan has left a directory"; return 1; }
    "$dazzle" join "$(machine 1)" - "$work/m2" --name two --address "$(machine 2)" <<<"$token" || return 1
    echo "$token" >"$work/used"
}

# Tokens that are none, of another cluster, used, here or elsewhere.
bad_tokens() {
    local token
    token=$("$dazzle" token create "$work/m1") || return 1
    refused 2 "this is no token" "$(machine 1)" "${token%?}" || return 1
    refused 2 "this is no token" "$(machine 1)" secret || return 1
    # What stands in a command all users of the machine see; with `-` it comes on standard input.
    refused 1 "no token came on standard input" "$(machine 1)" - </dev/null || return 1
    refused 1 "this is no token" "$(machine 1)" - <<<"${token%?}" || return 1
    refused 1 "not of the cluster that made the token" "$(machine 9)" - <<<"$token" || return 1
    planned "$work/m1" 0 "votes then: " "$dazzle" join "$(machine 1)" - "$work/m4" --name four \
        --address "$(machine 4)" --plan <<<"$token" || return 1
    refused 1 "not of the cluster that made the token" "$(machine 9)" "$token" || return 1
    refused 1 "was used before" "$(machine 1)" "$(cat "$work/used")" || return 1
    refused 1 "was used before" "$(machine 2)" "$(cat "$work/used")" --plan || return 1
    called=two refused 1 "was used before" "$(machine 1)" "$(cat "$work/used")" || return 1
    refused 1 "was used before" "$(machine 2)" "$(cat "$work/used")" || return 1
    "$dazzle" down "$work/m2" && "$dazzle" up "$work/m2" || return 1
    refused 1 "was used before" "$(machine 2)" "$(cat "$work/used")" || return 1
    # Of several tokens made at once each is good for a machine of its own.
    [ "$("$dazzle" token create "$work/m1" --count 3 | sort -u | grep -c '^dazzle1-')" = 3 ] || { echo "no three tokens"; return 1; }
    expect 2 "0 is not in 1..=1000" "$dazzle" token create "$work/m1" --count 0
}

# Machines whose clocks are far off, before and after.
bad_clocks() {
    local token library off
    library=$(dpkg -L libfaketime 2>/dev/null | grep '/libfaketime\.so\.1$') || { echo "faketime is not installed: left out"; return 0; }
    token=$("$dazzle" token create "$work/m1") || return 1
    for off in +3h -3h; do
        LD_PRELOAD=$library FAKETIME=$off FAKETIME_DONT_FAKE_MONOTONIC=1 \
            refused 1 "set the clock that is wrong" "$(machine 2)" "$token" || return 1
    done
}

# Machines that are there already: by name, by address, by directory, as a copy; and storage that is another's.
bad_machines() {
    local token sum
    token=$("$dazzle" token create "$work/m1") || return 1
    called=two refused 1 "is called two already" "$(machine 1)" "$token" || return 1
    called=two refused 1 "is called two already" "$(machine 2)" "$token" --plan || return 1
    "$dazzle" down "$work/m2" || return 1
    own="$(machine 2)" refused 1 "has the address $(machine 2) already" "$(machine 1)" "$token" || return 1
    "$dazzle" up "$work/m2" || return 1
    own="$(machine 2)" refused 1 "cannot be listened on" "$(machine 1)" "$token" || return 1
    sum=$(digest "$work/f1/trust") || return 1
    expect 1 "is part of a file system already" "$dazzle" join "$(machine 1)" "$token" "$work/f1" --address "$(machine 7)" || return 1
    expect 1 "is part of a file system already" "$dazzle" join "$(machine 1)" "$token" "$work/m2" --address "$(machine 7)" || return 1
    [ "$(digest "$work/f1/trust")" = "$sum" ] || { echo "a machine of another cluster was changed"; return 1; }
    refused 1 "is a target of a file system already" "$(machine 1)" "$token" --target "$work/f1/target-0" || return 1
    copy_of m1 && copy_of m2 && expect 1 "a daemon runs" "$dazzle" up "$work/m2"
}

# A copy of a machine's directory, started at another address while the machine itself runs.
copy_of() {
    local members
    members=$(members) && cp -r "$work/$1" "$work/copy" || return 1
    rm -f "$work/copy/control" "$work/copy/lock"
    sed -i "/^mount/d; 0,/^address/s/^address = .*/address = \"$(machine 7)\"/" "$work/copy/dazzle.toml" || return 1
    expect 1 "runs on another machine too" "$dazzle" up "$work/copy" || return 1
    [ "$(members)" = "$members" ] || { echo "the cluster was changed by a copy of $1"; return 1; }
    rm -r "$work/copy"
}

# Older and newer programs: those that come, and those that are called.
bad_versions() {
    local say=("$programs/strangers.py" say "$(machine 1)" "$work/m2") version token
    # What this program speaks, with nodes and with who joins: `VERSIONS` and `JOIN_VERSION`.
    local spoken=17 joining=5
    token=$("$dazzle" token create "$work/m1") || return 1
    for version in 0 1 $((spoken - 1)) 65535; do
        expect 0 "versions $spoken to $spoken: no version in common" "${say[@]}" "hello:$version" || return 1
    done
    for version in $((joining - 1)) $((joining + 1)); do
        expect 0 "version $joining: refused" "${say[@]}" "join:$version" || return 1
    done
    beside "join:$((joining - 1))" "$work/m2" refused 1 "upgrade the Dazzle there" "$(machine 6)" "$token" || return 1
    beside "join:$((joining + 1))" "$work/m2" refused 1 "upgrade this one" "$(machine 6)" "$token" || return 1
    # A machine of the other cluster, whose peer is of another version when it starts; then of another cluster.
    token=$("$dazzle" token create "$work/f1") && "$dazzle" join "$(machine 9)" "$token" "$work/f2" --client --name f2 \
        --address "$(machine 8)" && "$dazzle" down "$work/f2" && cp "$work/f2/dazzle.toml" "$work/settings" || return 1
    sed -i "s/$(machine 9)/$(machine 6)/" "$work/f2/dazzle.toml" || return 1
    beside hello:1 "$work/f1" expect 1 "is too old" timeout 20 "$dazzle" up "$work/f2" || return 1
    beside "hello:$((spoken + 1))" "$work/f1" expect 1 "upgrade this one" timeout 20 "$dazzle" up "$work/f2" || return 1
}

# Certificates of another cluster, and those whose time is over.
bad_certificates() {
    local trust=$work/f2/trust name ended
    sed -i "s/$(machine 6)/$(machine 1)/" "$work/f2/dazzle.toml" || return 1
    expect 1 "belongs to another cluster" timeout 20 "$dazzle" up "$work/f2" || return 1
    cp "$work/settings" "$work/f2/dazzle.toml" || return 1
    if command -v openssl >/dev/null; then
        cp -r "$trust" "$work/own-trust" || return 1
        name=$(openssl x509 -in "$trust/node.pem" -noout -ext subjectAltName | tail -1 | tr -d ' ')
        printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$name" >"$work/names"
        openssl req -new -key "$trust/node.key" -subj /CN=old -out "$work/request" 2>/dev/null &&
            openssl x509 -req -in "$work/request" -CA "$trust/ca.pem" -CAkey "$work/f1/trust/ca.key" -days 0 \
                -extfile "$work/names" -out "$trust/node.pem" 2>/dev/null || return 1
        ended=$(date -d "$(openssl x509 -in "$trust/node.pem" -noout -enddate | cut -d= -f2)" +%s)
        until [ "$(date +%s)" -gt "$ended" ]; do sleep 0.1; done
        expect 1 "its certificate ended on" "$dazzle" up "$work/f2" || return 1
        cp "$work/own-trust"/* "$trust/" || return 1
    else
        echo "openssl is not installed: expired certificates are left out"
    fi
    # A key that others can read.
    chmod 644 "$trust/node.key" && expect 1 "chmod 600" "$dazzle" up "$work/f2" && chmod 600 "$trust/node.key" || return 1
    "$dazzle" up "$work/f2"
}

# More than half of those that vote are gone: nobody joins and nothing is drained, which is told in time; then the same
# command succeeds.
no_quorum() {
    local token drain
    # A token is good at every machine, whatever became of the one that made it.
    token=$("$dazzle" token create "$work/m2") && "$dazzle" down "$work/m2" || return 1
    "$dazzle" join "$(machine 1)" "$token" "$work/m3" --name three --address "$(machine 3)" || return 1
    "$dazzle" up "$work/m2" || return 1
    until [ "$("$dazzle" status "$work/m1" --json | grep -c '"votes": true')" = 3 ]; do sleep 0.1; done
    kill_daemon "$work/m2" && kill_daemon "$work/m3" || return 1
    token=$("$dazzle" token create "$work/m1") || return 1
    expect 1 "more than half of those that vote must run" timeout 20 "$dazzle" node drain "$work/m1" two &
    drain=$!
    refused 1 "cannot take machines in now" "$(machine 1)" "$token" --plan || return 1
    expect 1 "The same command may be given again" timeout 20 "$dazzle" target add "$work/m1" "$work/m1/more" || return 1
    refused 1 "more than half of those that vote must run" "$(machine 1)" "$token" && wait "$drain" || return 1
    grep -q "waits: half of the machines that vote" <<<"$(timeout 5 "$dazzle" status "$work/m1")" || { echo "status does not tell"; return 1; }
    "$dazzle" up "$work/m2" && "$dazzle" up "$work/m3" && "$dazzle" target add "$work/m1" "$work/m1/more" || return 1
    "$dazzle" join "$(machine 1)" "$token" "$work/new" --name new --address "$(machine 7)" || return 1
    [ "$(members | grep -o ":new" | wc -l)" = 1 ] || { echo "it is not a member once: $(members)"; return 1; }
}

# Targets on preallocated files and, where there are any, on block devices.
devices() {
    local dir=$work/devices expected file loops=()
    for file in 0 1 2; do truncate -s 1G "$work/disk-$file"; done
    # What is somebody else's is not taken for a target.
    mkfs.ext4 -q "$work/disk-2" || return 1
    expect 1 "holds something that is not Dazzle's" "$dazzle" up "$dir" --target "$work/disk-0" --target "$work/disk-2" || return 1
    rm "$work/disk-0" "$work/disk-2" && truncate -s 1G "$work/disk-0" "$work/disk-2" || return 1
    truncate -s 100M "$work/tiny"
    expect 1 "at least 512" "$dazzle" up "$dir" --target "$work/disk-0" --target "$work/tiny" || return 1
    loops=("$work/disk-0" "$work/disk-1" "$work/disk-2")
    used_and_back files "${loops[@]}" || return 1
    loops=()
    for file in 0 1 2; do
        truncate -s 0 "$work/disk-$file" && truncate -s 1G "$work/disk-$file" || return 1
        loops+=("$(losetup -f --show "$work/disk-$file" 2>/dev/null)") || { echo "no loop devices here: left out"; return 0; }
    done
    used_and_back loops "${loops[@]}"
    expected=$?
    losetup -d "${loops[@]}"
    return "$expected"
}

# used_and_back NAME TARGET...: up, use, down, up, the same bytes; the last target wiped, up, repair, the same bytes.
used_and_back() {
    local name=$1 expected targets=() path
    shift
    for path in "$@"; do targets+=(--target "$path"); done
    fresh "$name" "${targets[@]}" && fill_some "$work/$name-mount" || return 1
    expected=$(digest "$work/$name-mount")
    "$dazzle" check "$work/$name" && "$dazzle" down "$work/$name" && "$dazzle" up "$work/$name" || return 1
    [ "$(digest "$work/$name-mount")" = "$expected" ] || { echo "bytes differ on $name"; return 1; }
    "$dazzle" down "$work/$name" && dd if=/dev/zero of="$path" bs=1M count=1024 conv=notrunc status=none || return 1
    "$dazzle" up "$work/$name" && "$dazzle" repair "$work/$name" || return 1
    [ "$(digest "$work/$name-mount")" = "$expected" ] || { echo "bytes differ on $name after repair"; return 1; }
    "$dazzle" check "$work/$name" --thorough && "$dazzle" down "$work/$name"
}

# Takes a laboratory down, whatever state it is in.
end_lab() {
    local host
    for host in $("$dazzle" lab status "$1" --json | grep -o '"host": *[0-9]*' | grep -o '[0-9]*$'); do
        "$dazzle" lab kill "$1" "$host"
    done
    "$dazzle" lab down "$1"
}

# Every host in turn is struck under load and comes back; nobody else may see more of it than a pause. BLOWS: in which ways
# (hosts.py). MOST: how many seconds the pause may be beside it; a machine that is busy with other things
# adds some to the five that are promised.
lab_kills() {
    "$dazzle" lab up "$work/killed" --hosts 3 || return 1
    "$programs/hosts.py" "$dazzle" "$work/killed" --blows "${BLOWS:-kill,freeze,cut,part,kill}" --rounds "${ROUNDS:-5}" \
        --most "${MOST:-8}" --seed "${SEED:-$RANDOM}" --guests "${GUESTS:-}" ||
        { grep -hE " (WARN|ERROR) " "$work"/killed/host-*/dazzle.log | tail -n 5; return 1; }
    check_on_all "$work/killed" 1 2 3 && "$dazzle" lab down "$work/killed"
}

# Once what is stored is as safe as it should be, each of these hosts finds the whole file system sound: LAB HOST...
check_on_all() {
    local lab=$1 first=$1/host-$2 host until=$((SECONDS + 120))
    while ! "$dazzle" status "$first" --json | grep -q '"health": "healthy, '; do
        [ $SECONDS -lt $until ] || { echo "redundancy is not back after 120 s"; "$dazzle" status "$first"; return 1; }
        sleep 0.2
    done
    for host in "${@:2}"; do
        "$dazzle" check "$lab/host-$host" || { echo "host $host finds problems"; return 1; }
    done
}

# As many of HOSTS hosts as parity makes up for are killed at once under load, ROUNDS times, and come back; then all of them.
# Stripes have DATA data fragments at most.
lab_losses() {
    local lost=${LOST:-1} hosts=${HOSTS:-5}
    "$dazzle" lab up "$work/losses" --hosts "$hosts" --parity "$lost" ${DATA:+--data "$DATA"} || return 1
    "$programs/losses.py" "$dazzle" "$work/losses" --lost "$lost" --rounds "${ROUNDS:-1}" --most "${MOST:-8}" \
        --away "${AWAY:-0}" --seed "${SEED:-$RANDOM}" || return 1
    check_on_all "$work/losses" $(seq "$hosts") && "$dazzle" lab down "$work/losses"
}

# One host of three fills the file system, and then all do at once: all are told, nothing is lost, and with what they wrote removed
# all goes on. Stripes keep to the width that was chosen, though three hosts would give them 2+1.
lab_fill() {
    local lab=$work/filled host expected told writing=()
    [ "$(id -u)" = 0 ] || { echo "network namespaces need root: left out"; return 0; }
    "$dazzle" lab up "$lab" --hosts 3 --clients 1 --limit 160MiB --data 1 || return 1
    for host in 1 2 3; do
        grep -qx "data = 1" "$lab/host-$host/dazzle.toml" || { echo "host $host does not know how wide stripes are"; return 1; }
        "$dazzle" status "$lab/host-$host" | grep "^group" | grep -v obsolete >"$work/groups"
        grep -q " 1+1 " "$work/groups" && ! grep -v " 1+1 " "$work/groups" || { echo "host $host has wider stripes"; return 1; }
    done
    for host in 1 2 3 4; do
        head -c 8M /dev/urandom >"$lab/mnt-$host/from-$host" && sync -f "$lab/mnt-$host/from-$host" || return 1
    done
    expected=$(digest "$lab/mnt-4")
    told=$("$dazzle" lab fill "$lab" 2) || return 1
    [[ $told == *"mnt-2/filled-by-host-2 has room for "*" MiB"* ]] || { echo "it does not say what it filled: $told"; return 1; }
    for host in 1 3 4; do
        told=$(head -c 64M /dev/zero 2>&1 >"$lab/mnt-$host/more-$host") && { echo "host $host has room on a full file system"; return 1; }
        [[ $told == *"No space left"* ]] || { echo "host $host: $told"; return 1; }
        rm "$lab/mnt-$host/more-$host" || return 1
    done
    rm "$lab/mnt-1/filled-by-host-2" && [ "$(digest "$lab/mnt-1")" = "$expected" ] || { echo "not all is there"; return 1; }
    for host in 1 2 3 4; do
        written_within 60 "$lab/mnt-$host/again-$host" || { echo "host $host has no room again"; return 1; }
    done
    # All at once, and then one of them makes room.
    for host in 1 2 3 4; do (head -c 300M /dev/zero 2>/dev/null >"$lab/mnt-$host/too-much-$host") & writing+=($!); done
    wait "${writing[@]}"
    rm "$lab"/mnt-1/too-much-* || { echo "what others wrote cannot be removed"; return 1; }
    for host in 1 2 3 4; do
        written_within 60 "$lab/mnt-$host/again-$host" || { echo "host $host has no room again"; return 1; }
    done
    check_on_all "$lab" 1 2 3 4 && "$dazzle" lab down "$lab"
}

# Waits until 8 MiB can be written and are durable, at most so many seconds: what was removed is given back stripe by stripe.
written_within() {
    local second
    for second in $(seq "$1"); do
        head -c 8M /dev/urandom 2>/dev/null >"$2" && sync "$2" 2>/dev/null && return 0
        sleep 1
    done
    return 1
}

# All hosts stop at once, with what nobody has fsynced, and start again. While a program uses a mount nobody stops.
lab_stops() {
    local lab=$work/stops host expected told
    [ "$(id -u)" = 0 ] || { echo "network namespaces need root: left out"; return 0; }
    "$dazzle" lab up "$lab" --hosts 3 --clients 1 || return 1
    exec 7>"$lab/mnt-3/open"
    told=$("$dazzle" down --all "$lab/host-2" 2>&1 7>&-) && { echo "all stopped under a program: $told"; return 1; }
    exec 7>&-
    [[ $told == *"mount of node 3 host-3"* ]] || { echo "it is not told who stays: $told"; return 1; }
    for host in 1 2 3 4; do
        head -c 20M /dev/urandom >"$lab/mnt-$host/from-$host" || return 1
    done
    expected=$(digest "$lab/mnt-4")
    "$dazzle" down --all "$lab/host-4" && "$dazzle" lab up "$lab" || return 1
    [ "$(digest "$lab/mnt-1")" = "$expected" ] || { echo "not all is there"; return 1; }
    cat "$lab"/host-*/dazzle.log | grep -E "did not stop|do not answer|not clean" && { echo "somebody waited in vain"; return 1; }
    check_on_all "$lab" 1 2 3 4 && "$dazzle" lab down "$lab"
}

# Every daemon in turn is restarted under load, on a host without disks too; no program on any host notices.
lab_restarts() {
    "$dazzle" lab up "$work/restarted" --hosts 3 --clients 1 || return 1
    "$programs/restarts.py" "$dazzle" "$work/restarted" --rounds "${ROUNDS:-1}" --most "${MOST:-8}" --seed "${SEED:-$RANDOM}" ||
        return 1
    check_on_all "$work/restarted" 1 2 3 4 && "$dazzle" lab down "$work/restarted"
}

# A daemon's program is replaced: by one of other versions, which does not take its place; by one that begins anew where a lease
# was lost. And while a daemon waits for others, commands say so, and end it.
lab_upgrades() {
    local program=$work/program lab=$work/upgraded versions
    [ "$(id -u)" = 0 ] || { echo "network namespaces need root: left out"; return 0; }
    cp "$dazzle" "$program" && "$program" lab up "$lab" --hosts 3 || return 1
    echo kept >"$lab/mnt-3/file" && sync "$lab/mnt-3/file" && exec 7<"$lab/mnt-3/file" || return 1
    versions=$("$dazzle" versions | sed 's/"registry":[0-9]*/"registry":250/')
    replace_program "$program" "echo '$versions'" || return 1
    expect 1 "goes on: the program on disk has another version of the registry 250" "$dazzle" restart "$lab/host-3" || return 1
    replace_program "$program" "exit 1" || return 1
    expect 1 "does not run" "$dazzle" restart "$lab/host-3" || return 1
    cp "$dazzle" "$program.new" && mv "$program.new" "$program" || return 1
    expect 0 "what programs have open is kept" "$dazzle" restart "$lab/host-3" || return 1
    [ "$(cat <&7)" = kept ] || { echo "what was open is lost"; return 1; }
    exec 7<&-
    # Host 2 runs a program that is not there any more when it has to begin anew.
    "$dazzle" lab freeze "$lab" 2 || return 1
    until "$dazzle" status "$lab/host-1" | grep -q 'host-2 is gone'; do sleep 0.1; done
    "$dazzle" lab thaw "$lab" 2 || return 1
    until "$dazzle" status "$lab/host-1" | grep -q 'host-2 runs'; do sleep 0.1; done
    until [ "$(cat "$lab/mnt-2/file" 2>/dev/null)" = kept ]; do sleep 0.1; done
    waits_for_others "$lab" && "$dazzle" lab up "$lab" && check_on_all "$lab" 1 2 3 && "$dazzle" lab down "$lab"
}

# replace_program PLACE TEXT: by a script.
replace_program() {
    printf '#!/bin/sh\n%s\n' "$2" >"$1.new" && chmod +x "$1.new" && mv "$1.new" "$1"
}

# All hosts are killed, and one starts alone.
waits_for_others() {
    local lab=$1 host starting told
    for host in 1 2 3; do
        "$dazzle" lab kill "$lab" "$host" || return 1
    done
    umount -l "$lab"/mnt-? 2>/dev/null
    "$dazzle" lab start "$lab" 3 2>"$work/alone" &
    starting=$!
    until told=$("$dazzle" status "$lab/host-3" 2>&1) || [[ $told == *"does not take part yet"* ]]; do sleep 0.1; done
    [[ $told == *"does not take part yet: it is starting"* ]] || { echo "it does not say that it waits: $told"; return 1; }
    expect 0 "had not begun to take part" "$dazzle" down "$lab/host-3" || return 1
    ! wait "$starting" || { echo "it started alone"; return 1; }
}

# What it would be like to join: the second machine makes the first expendable, for which all that lies there alone is laid anew.
grows_as_planned() {
    local join=("$dazzle" join "$(machine 1)" "$1" "$work/grown-$2" --name "host-$2" --address "$(machine "$2")" --targets 2 --plan)
    planned "$work/grown" 0 "redundancy with it: 1 machine(s)" "${join[@]}" || return 1
    [ "$2" != 2 ] || moves "${join[@]}" || return 1
    [ ! -e "$work/grown-$2" ] || { echo "a plan has left a directory"; return 1; }
}

# What is set on one machine holds on another, and is no more when that is said: set_for_all ONE OTHER.
set_for_all() {
    expect 2 "there is no speed" "$dazzle" settings "$1" speed=9 || return 1
    expect 2 "less than 1 MiB" "$dazzle" settings "$1" scrub_days=3 rebuild=5 || return 1
    expect 0 "as dazzle.toml on this machine says" "$dazzle" settings "$2" || return 1
    expect 0 "200 MiB a second   on all machines" "$dazzle" settings "$1" rebuild=200MiB scrub_days=3 || return 1
    expect 0 '"value": 3' "$dazzle" settings "$2" --json || return 1
    expect 0 "200 MiB a second   on all machines" "$dazzle" settings "$2" rebuild_minutes=30 || return 1
    expect 0 "30                 on all machines" "$dazzle" settings "$1" || return 1
    "$dazzle" settings "$2" rebuild=default rebuild_minutes=default scrub_days=default | grep -c "as dazzle.toml" | grep -qx 3
}

# One machine opens its file system to others later: what was there is there, and becomes safer than it was.
grows() {
    local token expected other
    fresh grown --targets 3 && fill_some "$work/grown-mount" || return 1
    expected=$(digest "$work/grown-mount")
    expect 1 "is not open to others yet" "$dazzle" token create "$work/grown" || return 1
    expect 1 "stop it with" "$dazzle" up "$work/grown" --address "$(machine 1)" || return 1
    "$dazzle" down "$work/grown" || return 1
    expect 1 "does not resolve" "$dazzle" up "$work/grown" --address nowhere.invalid:4747 || return 1
    "$dazzle" up "$work/grown" && "$dazzle" down "$work/grown" || return 1
    expect 0 "other machines can join" "$dazzle" up "$work/grown" --address "$(machine 1)" --name first || return 1
    for other in 2 3; do
        token=$("$dazzle" token create "$work/grown") || return 1
        grows_as_planned "$token" "$other" || return 1
        "$dazzle" join "$(machine 1)" "$token" "$work/grown-$other" --name "host-$other" --address "$(machine "$other")" \
            --mount "$work/grown-$other-mount" || return 1
    done
    "$dazzle" status "$work/grown" | grep -q ' first runs' || { echo "it has not got its name"; return 1; }
    until "$dazzle" status "$work/grown" | grep -q 'healthy, any 1 machine(s) may be lost$'; do sleep 0.2; done
    kill_daemon "$work/grown" || return 1
    for other in 2 3; do
        [ "$(digest "$work/grown-$other-mount")" = "$expected" ] || { echo "bytes differ on machine $other"; return 1; }
    done
    set_for_all "$work/grown-2" "$work/grown-3" || return 1
    expect 1 "is open to others already" "$dazzle" up "$work/grown" --address "$(machine 4)" || return 1
    "$dazzle" up "$work/grown" || return 1
    until "$dazzle" status "$work/grown" | grep -q 'healthy, any 1 machine(s) may be lost$'; do sleep 0.2; done
    "$dazzle" check "$work/grown" && "$dazzle" down --all "$work/grown-2"
}

# Machines of unequal size are full at about the same time, and `df` says so before. Alike, three times half of the smallest one
# would be all: 288 MiB.
unequal() {
    local other token room written=0
    fresh unequal --address "$(machine 1)" --name host-1 --targets 1 --limit 192MiB --data 1 || return 1
    for other in 2 3; do
        token=$("$dazzle" token create "$work/unequal") || return 1
        "$dazzle" join "$(machine 1)" "$token" "$work/unequal-$other" --name "host-$other" --address "$(machine "$other")" \
            --targets 1 --limit 768MiB --mount "$work/unequal-$other-mount" || return 1
    done
    until "$dazzle" status "$work/unequal" | grep -q 'healthy, any 1 machine(s) may be lost$'; do sleep 0.2; done
    room=$(df --output=avail -BM "$work/unequal-2-mount" | tail -1 | tr -dc 0-9)
    while head -c 8M /dev/urandom | dd of="$work/unequal-2-mount/$written" bs=1M conv=fsync status=none 2>"$work/full"; do
        written=$((written + 8))
    done
    grep -q "No space left" "$work/full" || { cat "$work/full"; return 1; }
    echo "df said $room MiB, and $written MiB were written"
    [ "$room" -gt 700 ] && [ $((written * 10)) -gt $((room * 8)) ] || { echo "that is too little"; return 1; }
    "$dazzle" check "$work/unequal" && "$dazzle" down --all "$work/unequal"
}

# The one of two hosts that votes dies. The other is promoted and has all that was fsynced; the first follows when it is back.
lab_promote() {
    local lab=$work/promoted expected
    [ "$(id -u)" = 0 ] || { echo "network namespaces need root: left out"; return 0; }
    "$dazzle" lab up "$lab" --hosts 2 && mkdir "$lab/mnt-2/crates" && fill_some "$lab/mnt-2/crates" || return 1
    needless_promotions "$lab" || return 1
    echo "from host 1" >"$lab/mnt-1/note" && sync "$lab/mnt-1/note" && sync -f "$lab/mnt-2" || return 1
    expected=$(digest "$lab/mnt-1")
    "$dazzle" lab kill "$lab" 1 && umount -l "$lab/mnt-1" || return 1
    until "$dazzle" status "$lab/host-2" | grep -q "dazzle registry promote"; do sleep 0.2; done
    expect 1 "--off host-1" promote_host "$lab" 2 || return 1
    promote_host "$lab" 2 --off host-1 --plan && promote_host "$lab" 2 --off host-1 || return 1
    [ "$(digest "$lab/mnt-2")" = "$expected" ] || { echo "not all that was fsynced is there"; return 1; }
    echo "without host 1" >"$lab/mnt-2/later" && sync "$lab/mnt-2/later" || return 1
    # All that is wrong is that a target is missed.
    expect 3 "1 problems found" "$dazzle" check "$lab/host-2" || return 1
    "$dazzle" lab start "$lab" 1 && [ "$(cat "$lab/mnt-1/later")" = "without host 1" ] || { echo "host 1 does not follow"; return 1; }
    echo "both again" >"$lab/mnt-1/later" && [ "$(cat "$lab/mnt-2/later")" = "both again" ] || return 1
    voting "$lab/host-1" 2 && voting "$lab/host-2" 2 && check_on_all "$lab" 1 2 && voter_answers "$lab" &&
        "$dazzle" lab down "$lab"
}

# A host is promoted whose registry has its quorum: nothing changes.
needless_promotions() {
    local lab=$1
    expect 1 "has its quorum" promote_host "$lab" 2 --off host-1 && expect 1 "has its quorum" promote_host "$lab" 1 --off host-2 &&
        voting "$lab/host-1" 1 && voting "$lab/host-2" 1
}

# The host that learns is promoted where its own daemon is dead and the one that votes, host 2, runs: nothing changes.
voter_answers() {
    local lab=$1
    "$dazzle" lab kill "$lab" 1 && umount -l "$lab/mnt-1" || return 1
    expect 1 "host-2 (node 2) answers" promote_host "$lab" 1 --off host-2 && "$dazzle" lab start "$lab" 1 &&
        voting "$lab/host-1" 2 && [ "$(cat "$lab/mnt-1/later")" = "both again" ]
}

# promote_host LAB HOST [options...]
promote_host() { "$dazzle" lab exec "$1" "$2" -- "$dazzle" registry promote "$1/host-$2" "${@:3}"; }

# voting DIR NODE: this node alone votes, as the machine of DIR knows it.
voting() {
    "$dazzle" status "$1" --json | python3 -c 'import json, sys
voters = [node["id"] for node in json.load(sys.stdin)["nodes"] if node["votes"]]
sys.exit(voters != [int(sys.argv[1])] and "these vote: %s" % voters)' "$2"
}

# Both hosts of two die, and of the copies of the registry of the one that votes one is left: it is rebuilt there, with every byte, and
# the other host comes back as a new, empty one.
lab_rebuild() {
    local lab=$work/remade expected copy before
    [ "$(id -u)" = 0 ] || { echo "network namespaces need root: left out"; return 0; }
    "$dazzle" lab up "$lab" --hosts 2 --disks 3 && mkdir "$lab/mnt-2/crates" && fill_some "$lab/mnt-2/crates" || return 1
    find "$lab/mnt-2/crates" -type f -print0 | xargs -0 sync && expected=$(digest "$lab/mnt-1/crates") || return 1
    "$dazzle" lab kill "$lab" 1 && umount -l "$lab/mnt-1" || return 1
    for copy in "$lab"/host-1/target-[12]/registry.*; do head -c 64K /dev/urandom | dd of="$copy" conv=notrunc status=none; done
    expect 1 "dazzle registry rebuild" "$dazzle" lab start "$lab" 1 || return 1
    before=$(cat "$lab"/host-1/target-*/* | sha256sum)
    expect 1 "host-2" rebuild_on "$lab" 1 || return 1
    # Who answers is promoted instead.
    expect 1 "host-2 (node 2) answers" rebuild_on "$lab" 1 --off host-2 || return 1
    "$dazzle" lab kill "$lab" 2 && umount -l "$lab/mnt-2" || return 1
    expect 0 "target-2: damaged" rebuild_on "$lab" 1 --off host-2 --plan || return 1
    [ "$(cat "$lab"/host-1/target-*/* | sha256sum)" = "$before" ] || { echo "a refusal or a plan has changed something"; return 1; }
    rebuild_on "$lab" 1 --off host-2 && "$dazzle" lab start "$lab" 1 || return 1
    [ "$(digest "$lab/mnt-1/crates")" = "$expected" ] || { echo "not all that was fsynced is there"; return 1; }
    expect 1 "dazzle join" "$dazzle" lab start "$lab" 2 || return 1
    rm -r "$lab/host-2" && "$dazzle" node remove "$lab/host-1" host-2 && "$dazzle" lab up "$lab" || return 1
    [ "$(digest "$lab/mnt-2/crates")" = "$expected" ] || { echo "bytes differ on the new host"; return 1; }
    check_on_all "$lab" 1 2 && "$dazzle" lab down "$lab"
}

# rebuild_on LAB HOST [options...]
rebuild_on() { "$dazzle" lab exec "$1" "$2" -- "$dazzle" registry rebuild "$1/host-$2" "${@:3}"; }

# Hosts are taken away on purpose, and one that is lost is replaced by an empty one, while a program writes.
lab_drain() {
    local lab=$work/drained expected
    [ "$(id -u)" = 0 ] || { echo "network namespaces need root: left out"; return 0; }
    "$dazzle" lab up "$lab" --hosts 4 --disks 2 && mkdir "$lab/mnt-4/crates" && fill_some "$lab/mnt-4/crates" || return 1
    expected=$(digest "$lab/mnt-1/crates")
    count_until "$lab/enough" "$lab/mnt-2/counted" &
    local writer=$!
    drain_one "$lab" "$expected" && replace_one "$lab" "$expected" && drain_first "$lab" "$expected" ||
        { touch "$lab/enough"; return 1; }
    touch "$lab/enough"
    wait "$writer" || { echo "the writer failed"; return 1; }
    [ "$(tail -n 1 "$lab/mnt-4/counted")" -gt 20 ] || { echo "the writer hardly wrote"; return 1; }
    seq "$(tail -n 1 "$lab/mnt-4/counted")" | cmp - "$lab/mnt-3/counted" || return 1
    check_on_all "$lab" 2 3 4 && "$dazzle" lab down "$lab"
}

# Host 4 is drained, stopped and removed; nobody misses it, and it cannot come back.
drain_one() {
    local lab=$1 host told
    told=$("$dazzle" node remove "$lab/host-1" host-4 2>&1) && { echo "a host in use was removed"; return 1; }
    planned "$lab/host-2" 1 "it would be refused: ${told#dazzle: }" "$dazzle" node remove "$lab/host-1" host-4 --plan || return 1
    planned "$lab/host-2" 0 "votes then: 3" "$dazzle" node drain "$lab/host-1" host-4 --plan || return 1
    moves "$dazzle" node drain "$lab/host-1" host-4 --plan && "$dazzle" node drain "$lab/host-2" host-4 || return 1
    planned "$lab/host-2" 0 "nothing lies there" "$dazzle" target remove "$lab/host-1" host-4:target-0 --plan || return 1
    "$dazzle" lab stop "$lab" 4 && until "$dazzle" status "$lab/host-1" | grep -q 'host-4 is gone'; do sleep 0.2; done
    planned "$lab/host-2" 0 "to move    nothing" "$dazzle" node remove "$lab/host-3" host-4 --plan || return 1
    "$dazzle" node remove "$lab/host-3" host-4 || return 1
    for host in 1 2 3; do
        [ "$(digest "$lab/mnt-$host/crates")" = "$2" ] || { echo "bytes differ on host $host"; return 1; }
    done
    check_on_all "$lab" 1 2 3 || return 1
    told=$("$dazzle" lab start "$lab" 4 2>&1) && { echo "a host that was removed came back"; return 1; }
    [[ $told == *"was removed from the cluster"* ]] || { echo "it is not told why: $told"; return 1; }
}

# Host 3 and its disks are lost. It is removed, and empty hosts join in its place and that of host 4.
replace_one() {
    local lab=$1 host
    "$dazzle" lab kill "$lab" 3 && umount -l "$lab/mnt-3" && rm -r "$lab/host-3" "$lab/host-4" || return 1
    until "$dazzle" status "$lab/host-1" | grep -q 'host-3 is gone'; do sleep 0.2; done
    planned "$lab/host-2" 0 "lost       nothing" "$dazzle" node remove "$lab/host-1" host-3 --plan || return 1
    moves "$dazzle" node remove "$lab/host-1" host-3 --plan || return 1
    "$dazzle" node remove "$lab/host-2" host-3 && "$dazzle" lab up "$lab" || return 1
    for host in 1 2 3 4; do
        [ "$(digest "$lab/mnt-$host/crates")" = "$2" ] || { echo "bytes differ on host $host"; return 1; }
    done
}

# Host 1 goes, which founded the cluster: what was written first lay over its two disks alone.
drain_first() {
    local lab=$1 host
    "$dazzle" node drain "$lab/host-2" host-1 || return 1
    [ "$("$dazzle" status "$lab/host-2" | grep -c 'host-1:.*drained')" = 2 ] || { echo "it is not known to be empty"; return 1; }
    "$dazzle" lab stop "$lab" 1 && "$dazzle" node remove "$lab/host-4" host-1 || return 1
    for host in 2 3 4; do
        [ "$(digest "$lab/mnt-$host/crates")" = "$2" ] || { echo "bytes differ on host $host"; return 1; }
    done
}

# A host gets more targets under load, two at once; one loses the files of a target while it runs, one a disk while it is down.
lab_targets() {
    local lab=$work/supplied expected writer
    [ "$(id -u)" = 0 ] || { echo "network namespaces need root: left out"; return 0; }
    "$dazzle" lab up "$lab" --hosts 3 --disks 3 && mkdir "$lab/mnt-3/crates" && fill_some "$lab/mnt-3/crates" || return 1
    expected=$(digest "$lab/mnt-1/crates")
    count_until "$lab/enough" "$lab/mnt-2/counted" &
    writer=$!
    two_more "$lab" && two_lost "$lab" || { touch "$lab/enough"; return 1; }
    touch "$lab/enough"
    wait "$writer" || { echo "the writer failed"; return 1; }
    seq "$(tail -n 1 "$lab/mnt-1/counted")" | cmp - "$lab/mnt-3/counted" || return 1
    check_on_all "$lab" 1 2 3 || return 1
    # Now any host may be lost.
    "$dazzle" lab kill "$lab" 1 || return 1
    [ "$(digest "$lab/mnt-2/crates")" = "$expected" ] || { echo "bytes differ without host 1"; return 1; }
    umount -l "$lab/mnt-1" && "$dazzle" lab start "$lab" 1 && check_on_all "$lab" 1 2 3 && "$dazzle" lab down "$lab"
}

two_more() {
    local lab=$1 other
    : >"$lab/mnt-1/later"
    "$dazzle" target add "$lab/host-2" "$lab/host-2/more" --plan | grep -q "to move *nothing" || return 1
    "$dazzle" target add "$lab/host-2" "$lab/host-2/more" &
    other=$!
    "$dazzle" target add "$lab/host-2" "$lab/host-2/most" && wait "$other" || { echo "two targets were not added"; return 1; }
    expect 1 "is the place of target" "$dazzle" target add "$lab/host-2" "$lab/host-2/more" || return 1
    # A log goes on in the new groups as soon as its writer has heard of them.
    local until=$((SECONDS + 30))
    until grep -q "host-2:more" <<<"$("$dazzle" why "$lab/mnt-1/later")"; do
        [ $SECONDS -lt $until ] || { echo "nothing is written to it for 30 s"; return 1; }
        head -c 60M /dev/urandom >"$lab/mnt-1/later" && sync "$lab/mnt-1/later" || return 1
    done
}

two_lost() {
    local lab=$1
    expect 1 "is on another machine" "$dazzle" target replace "$lab/host-1" host-2:target-1 || return 1
    expect 1 "serves: to put another disk" "$dazzle" target replace "$lab/host-2" target-1 || return 1
    rm "$lab/host-2/target-1/"* && "$dazzle" target replace "$lab/host-2" target-1 || return 1
    "$dazzle" lab kill "$lab" 3 && umount -l "$lab/mnt-3" && rm -r "$lab/host-3/target-0" || return 1
    "$dazzle" lab start "$lab" 3 && mkdir "$lab/host-3/instead" || return 1
    "$dazzle" target replace "$lab/host-3" target-0 --plan | grep -q "lost *nothing" || { echo "too much is lost"; return 1; }
    "$dazzle" target replace "$lab/host-3" target-0 "$lab/host-3/instead"
}

# Host 2 has two disks, and goes on with either one; but never with one that it went on without.
lab_disks() {
    local lab=$work/disks expected
    [ "$(id -u)" = 0 ] || { echo "network namespaces need root: left out"; return 0; }
    "$dazzle" lab up "$lab" --hosts 3 --disks 2 && mkdir "$lab/mnt-2/crates" && fill_some "$lab/mnt-2/crates" || return 1
    sync -f "$lab/mnt-2" && expected=$(digest "$lab/mnt-1/crates") || return 1
    without_disk "$lab" target-1 "$lab/pulled" && end_host "$lab" 2 || return 1
    mv "$lab/host-2/target-0" "$lab/newer" && mv "$lab/pulled" "$lab/host-2/target-1" || return 1
    expect 1 "went on without" "$dazzle" lab start "$lab" 2 || return 1
    mv "$lab/newer" "$lab/host-2/target-0" && "$dazzle" lab start "$lab" 2 && check_on_all "$lab" 1 2 3 || return 1
    counted_again "$lab" && without_disk "$lab" target-0 "$lab/pulled" || return 1
    [ "$(digest "$lab/mnt-2/crates")" = "$expected" ] || { echo "bytes differ with one disk"; return 1; }
    mkdir "$lab/instead" && "$dazzle" target replace "$lab/host-2" target-0 "$lab/instead" && check_on_all "$lab" 1 2 3 &&
        counted_again "$lab" && "$dazzle" lab down "$lab"
}

# without_disk LAB TARGET PLACE: host 2 dies, and starts without this disk, which lies at that place then; something is written.
without_disk() {
    end_host "$1" 2 && mv "$1/host-2/$2" "$3" && "$dazzle" lab start "$1" 2 || return 1
    "$dazzle" status "$1/host-2" | grep -q "keeps the registry on 1 of 2" || { "$dazzle" status "$1/host-2"; return 1; }
    echo "without $2" >"$1/mnt-2/note" && sync "$1/mnt-2/note" && [ "$(cat "$1/mnt-3/note")" = "without $2" ]
}

end_host() { "$dazzle" lab kill "$1" "$2" && umount -l "$1/mnt-$2"; }

# Both disks of host 2 count again.
counted_again() {
    local until=$((SECONDS + 30))
    until [ "$("$dazzle" status "$1/host-1" --json | python3 -c 'import json, sys
print(*(len(node["copies"]) for node in json.load(sys.stdin)["nodes"] if node["id"] == 2))')" = 2 ]; do
        [ $SECONDS -lt $until ] || { echo "a copy of the registry does not count again"; return 1; }
        sleep 0.2
    done
}

# One machine gets a target, loses others, and replaces them while it runs; wrong places are refused and change nothing.
supplied() {
    local dir=$work/grown expected settings
    fresh grown --targets 4 && fill_some "$dir-mount" && expected=$(digest "$dir-mount") || return 1
    settings=$(cat "$dir/dazzle.toml")
    ln -s "$dir/target-1" "$dir-alias" && mkdir "$dir/target-1/deeper" || return 1
    for place in "$dir/target-1" "$dir-alias" "$dir/target-1/deeper" "$dir" "$dir-mount"; do
        expect 1 "Nothing was changed" "$dazzle" target add "$dir" "$place" || return 1
    done
    expect 1 "does not exist" "$dazzle" target add "$dir" "$dir-nowhere" || return 1
    expect 1 "there is no target 9" "$dazzle" target replace "$dir" 9 || return 1
    truncate -s 100M "$dir-small" && expect 1 "needs at least 512" "$dazzle" target add "$dir" "$dir-small" || return 1
    [ "$settings" = "$(cat "$dir/dazzle.toml")" ] || { echo "the settings changed"; return 1; }
    expect 1 "not UTF-8" "$dazzle" target add "$dir" "$dir-"$'\xff' || return 1
    given_up "$dir" || return 1
    truncate -s 600M "$dir-file" && "$dazzle" target add "$dir" "$dir-file" || return 1
    "$dazzle" down "$dir" && rm -r "$dir/target-0" && "$dazzle" up "$dir" || return 1
    rm "$dir/target-1/"[a-z]*.* "$dir/target-1/"{target,data,intake}
    expect 1 "cannot be made again" "$dazzle" target replace "$dir" target-1 || return 1
    "$dazzle" target replace "$dir" target-0 && rm -r "$dir/target-1/"* && "$dazzle" target replace "$dir" target-1 || return 1
    [ "$(digest "$dir-mount")" = "$expected" ] || { echo "bytes differ"; return 1; }
    kill_daemon "$dir" && "$dazzle" up "$dir" && [ "$(digest "$dir-mount")" = "$expected" ] || return 1
    # A removed one makes room for another in its place.
    planned "$dir" 1 "target-2 is in use" "$dazzle" target remove "$dir" target-2 --plan || return 1
    moves "$dazzle" target drain "$dir" target-2 --plan && "$dazzle" target drain "$dir" target-2 || return 1
    planned "$dir" 0 "nothing lies there" "$dazzle" target remove "$dir" target-2 --plan || return 1
    "$dazzle" target remove "$dir" target-2 && rm -r "$dir/target-2/"* || return 1
    "$dazzle" target add "$dir" "$dir/target-2" && "$dazzle" down "$dir" && "$dazzle" up "$dir" || return 1
    [ "$(digest "$dir-mount")" = "$expected" ] && "$dazzle" check "$dir" --thorough && end grown || return 1
    rm -r "$dir/"target-* "$dir/later" "$dir-file" && expect 1 "Bring back all but 1 of them" "$dazzle" up "$dir"
}

# Where the settings cannot be written a target has its number and is missed by nobody; it is gone on with, or given up.
given_up() {
    mkdir "$1/dazzle.new" && expect 1 "dazzle.toml" "$dazzle" target add "$1" "$1/never" || return 1
    grep -q "^never: it has its number" <<<"$("$dazzle" status "$1")" || { echo "it is not told how to go on"; return 1; }
    "$dazzle" status "$1" | grep -q " healthy, " || { echo "it is missed"; return 1; }
    "$dazzle" target remove "$1" never && expect 1 "dazzle.toml" "$dazzle" target add "$1" "$1/later" || return 1
    rmdir "$1/dazzle.new" && "$dazzle" target add "$1" "$1/later" || return 1
    [ "$("$dazzle" status "$1" --json | grep -c "later\|never")" = 1 ] || { echo "a number was given in vain"; return 1; }
}

# Counts in a file, every number fsynced, until a file is there.
count_until() {
    local number=0
    until [ -e "$1" ]; do
        number=$((number + 1))
        echo "$number" >>"$2" && sync "$2" || return 1
    done
}

# Three hosts and a machine without disks mount one file system: what is done on one is seen on the others at once.
many_mounts() {
    local lab=$work/lab
    [ "$(id -u)" = 0 ] || { echo "network namespaces need root: left out"; return 0; }
    "$dazzle" lab up "$lab" --hosts 3 --clients 1 && echo "from host 2" >"$lab/mnt-2/note" &&
        [ "$("$dazzle" lab exec "$lab" 3 -- cat "$lab/mnt-3/note")" = "from host 2" ] && why_on_all "$lab" &&
        "$programs/hosts.py" "$dazzle" "$lab" --shared &&
        "$programs/many_mounts.py" "$lab"/mnt-{1..4} && git_on_all "$lab" && client_goes "$lab" && host_dies "$lab" &&
        "$programs/keepers.py" "$dazzle" "$lab" 1 && umount -l "$lab/mnt-1" && "$dazzle" lab start "$lab" 1 &&
        check_on_all "$lab" 1 2 3 4 && "$dazzle" lab down "$lab"
}

# Every host tells who manages a file, wherever that is.
why_on_all() {
    local lab=$1 host
    for host in 1 2 3 4; do
        "$dazzle" why "$lab/mnt-$host/note" | grep -q "managed by node" || { echo "host $host does not know why"; return 1; }
    done
}

# A machine without disks stores nothing, leaves what it wrote, goes, and comes back.
client_goes() {
    local lab=$1
    [ "$("$dazzle" status "$lab/host-4" --json | grep -c '"node": 4')" = 0 ] || { echo "a client has targets or slots"; return 1; }
    echo "from the client" >"$lab/mnt-4/letter" && "$dazzle" lab stop "$lab" 4 || return 1
    [ "$(cat "$lab/mnt-1/letter")" = "from the client" ] || { echo "what the client wrote is gone"; return 1; }
    "$dazzle" status "$lab/host-1" --json | grep -q '"health": "healthy, ' || { echo "a client that went is missed"; return 1; }
    "$dazzle" lab start "$lab" 4 && [ "$(cat "$lab/mnt-4/letter")" = "from the client" ]
}

# One repository, worked on from three hosts.
git_on_all() {
    local lab=$1 host changed
    local git=(git -c user.name=test -c user.email=test@example.org -c safe.directory='*' -c init.defaultBranch=main)
    "${git[@]}" init -q "$lab/mnt-1/origin" && cp -r "$top/crates" "$lab/mnt-1/origin/" || return 1
    "${git[@]}" -C "$lab/mnt-2/origin" add . && "${git[@]}" -C "$lab/mnt-2/origin" commit -qm first || return 1
    "${git[@]}" clone -q "$lab/mnt-3/origin" "$lab/mnt-3/clone" || return 1
    for host in 1 2 3; do
        changed=$("${git[@]}" -C "$lab/mnt-$host/clone" status --porcelain) || return 1
        [ -z "$changed" ] || { echo "host $host sees changes that nobody made: $changed"; return 1; }
    done
    echo more >>"$lab/mnt-1/clone/crates/host/Cargo.toml"
    changed=$("${git[@]}" -C "$lab/mnt-2/clone" status --porcelain)
    [ "$changed" = " M crates/host/Cargo.toml" ] || { echo "host 2 does not see what host 1 changed: $changed"; return 1; }
    "${git[@]}" -C "$lab/mnt-3/clone" commit -qam second && "${git[@]}" -C "$lab/mnt-1/clone" push -q origin HEAD:side || return 1
    changed=$("${git[@]}" -C "$lab/mnt-2/origin" log -1 --format=%s side)
    [ "$changed" = second ] || { echo "host 2 does not see the commit: $changed"; return 1; }
    "${git[@]}" -C "$lab/mnt-1/origin" fsck --strict && rm -r "$lab/mnt-2/clone" && [ ! -e "$lab/mnt-3/clone" ]
}

# A host that dies with a file open keeps the others waiting no longer than a few leases, and what it fsynced is there.
host_dies() {
    local lab=$1 began=$SECONDS
    python3 -c 'import os, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
os.write(file, b"lasting")
os.fsync(file)
os.pwrite(file, b"forgetting", 0)' "$lab/mnt-2/testament" || return 1
    "$dazzle" lab kill "$lab" 2 || return 1
    grep -q "^lasting\|^forgetting" "$lab/mnt-1/testament" || { echo "what host 2 fsynced is gone"; return 1; }
    echo over >"$lab/mnt-3/testament" && [ "$(cat "$lab/mnt-1/testament")" = over ] || return 1
    [ $((SECONDS - began)) -lt 30 ] || { echo "it took $((SECONDS - began)) s to go on without host 2"; return 1; }
    umount -l "$lab/mnt-2" && "$dazzle" lab start "$lab" 2 && [ "$(cat "$lab/mnt-2/testament")" = over ]
}
