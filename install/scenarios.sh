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
    "$programs/crash.py" "$dazzle" "$work/crash" "$work/crash-mount" --rounds 10 --seed "${SEED:-$RANDOM}" || return 1
    end crash
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

# Fills a small file system to ENOSPC and empties it, several times: never stuck, nothing leaks.
fill_and_empty() {
    local round before after
    fresh full --targets 5 --limit 256MiB || return 1
    before=$(df --output=avail -B1M "$work/full-mount" | tail -1)
    for round in 1 2 3 4 5; do
        if head -c 4G /dev/zero >"$work/full-mount/fill" 2>"$work/full-message"; then
            echo "round $round: more was stored than there is room for"
            return 1
        fi
        grep -q "No space left" "$work/full-message" || { cat "$work/full-message"; return 1; }
        rm "$work/full-mount/fill" || return 1
        echo alive >"$work/full-mount/alive" && sync -f "$work/full-mount/alive" || return 1
    done
    after=$(free_again "$before") || return 1
    echo "free before $before MiB, after five rounds $after MiB"
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

bad_input() {
    local bad=$work/bad
    mkdir -p "$bad-mount" "$work/not-a-fs" && echo precious >"$work/not-a-fs/file"
    expect 2 "unrecognized subcommand" "$dazzle" frobnicate || return 1
    expect 1 "holds no Dazzle file system" "$dazzle" status "$work/not-a-fs" || return 1
    expect 1 "needs more than 3 targets" "$dazzle" up "$work/never" --targets 2 --parity 3 || return 1
    expect 2 "unknown unit" "$dazzle" up "$work/never" --limit "5 parsecs" || return 1
    "$dazzle" up "$bad" --mount "$bad-mount" --targets 3 || return 1
    echo kept >"$bad-mount/file" || return 1
    expect 1 "a daemon runs" "$dazzle" up "$bad" || return 1
    expect 1 "another daemon runs" "$dazzle" daemon --foreground "$bad" || return 1
    expect 1 "mount point already" "$dazzle" up "$work/other" --mount "$bad-mount" --targets 2 || return 1
    "$dazzle" down "$bad" || return 1
    expect 1 "no daemon runs" "$dazzle" status "$bad" || return 1
    # A target of another file system is recognised and left alone; the others serve.
    mv "$bad/target-1" "$work/own" && cp -r "$work/other/target-1" "$bad/target-1" || return 1
    "$dazzle" up "$bad" && [ "$(cat "$bad-mount/file")" = kept ] && "$dazzle" down "$bad" || return 1
    rm -rf "$bad/target-1" && mv "$work/own" "$bad/target-1" || return 1
    # Settings that are not understood are named, and nothing is changed.
    cp "$bad/dazzle.toml" "$work/settings" && echo 'speed = "ludicrous"' >>"$bad/dazzle.toml"
    expect 1 "not understood" "$dazzle" up "$bad" || return 1
    cp "$work/settings" "$bad/dazzle.toml"
    # Every part of one target scribbled over.
    for file in "$bad"/target-0/*; do head -c 64K /dev/urandom | dd of="$file" conv=notrunc status=none; done
    "$dazzle" up "$bad" && [ "$(cat "$bad-mount/file")" = kept ] && "$dazzle" down "$bad"
}
