#!/usr/bin/env bash
# Every test that fits half an hour, or those that are named. The last line counts: N passed, N failed.
#
#     install/test.sh                       all of them, some side by side
#     install/test.sh bad-input postgres    these, one after the other
#     install/test.sh --list                what there is
#
# Environment: DAZZLE_TEST_DIR, where file systems are made (default: a fresh directory under /var/tmp);
# DAZZLE_TEST_JOBS, how many tests run side by side (default: 2, and 1 of those that are named);
# DAZZLE, the program (default: that of the dev profile, built first: with assertions, and with nothing built twice).
set -uo pipefail
# Each test is a group of processes, to be ended as one.
set -m
cd "$(dirname "$0")/.."
top=$PWD
programs=$top/crates/testbed/programs
chosen=("$@")
jobs=${DAZZLE_TEST_JOBS:-$((${#chosen[@]} > 0 ? 1 : 2))}
[[ $jobs =~ ^[1-9][0-9]*$ ]] || { echo "DAZZLE_TEST_JOBS is how many tests run side by side, 1 or more"; exit 2; }
# Short names: a path to a socket has a hundred bytes.
work=$(mktemp -d "${DAZZLE_TEST_DIR:-/var/tmp}/dz.XXXXXX")
# GiB that the file systems of the hungriest tests may take.
room=6
# Programs run as other users, too, and must get through.
chmod 711 "$work"
dazzle=${DAZZLE:-$top/target/debug/dazzle}
passed=0 failed=0 broken="" begun=0 patient=""
# The tests that run, by the process of each.
declare -A running=()

# Takes down every file system of a test, whatever state it is in.
take_down() {
    # What is frozen can neither be unmounted nor end.
    for below in "$work"/below-*/; do fsfreeze --unfreeze "$below" 2>/dev/null; done
    for dir in "$work"/*/; do
        [ -e "$dir/lab.toml" ] && end_lab "$dir" >/dev/null 2>&1
        [ -e "$dir/dazzle.toml" ] && "$dazzle" down --force "$dir" >/dev/null 2>&1
    done
    grep -o "$work/[^ ]*" /proc/self/mountinfo | sort -ru | while read -r point; do umount -l "$point" 2>/dev/null; done
    losetup -n -O NAME,BACK-FILE 2>/dev/null | awk -v work="$work/" 'index($2, work) { print $1 }' | xargs -r losetup -d
    rm -rf --one-file-system "$work"
}

clean_up() {
    local process directory
    for process in "${!running[@]}"; do kill -- "-$process" && wait "$process"; done 2>/dev/null
    for directory in "$work"/[0-9]*/; do (work=${directory%/} && take_down); done
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT
trap 'exit 130' HUP INT TERM

# What the daemons of a test said last.
last_words() {
    local said
    for said in "$work"/*/dazzle.log "$work"/*/*/dazzle.log; do
        [ -s "$said" ] && echo "${said#"$work/"} ends with" && tail -n 8 "$said" | sed 's/^/  /'
    done
    df -h "$work" | tail -n 1
}

# run NAME WORDS FUNCTION [arguments...]: runs a test if it is chosen, beside others if there may be more, and counts it. What it
# prints is kept, to be shown again in the end.
run() {
    local name=$1 words=$2
    if [ "${chosen[0]:-}" = --list ]; then
        printf '%-18s %s\n' "$name" "$words"
        return
    fi
    [ ${#chosen[@]} -eq 0 ] || [[ " ${chosen[*]} " == *" $name "* ]] || return 0
    while [ $((${#running[@]} - $(are_patient))) -ge "$jobs" ]; do count_one; done
    begun=$((begun + 1))
    if [ "$jobs" -gt 1 ]; then
        echo "-- $name begins"
        one "$@" </dev/null >"$work/$name.out" 2>&1 &
    else
        # Nobody waits for tee: what a test left behind may hold its pipe.
        one "$@" </dev/null > >(tee "$work/$name.out") 2>&1 &
    fi
    local process=$!
    running[$process]=$name
    while [ "$jobs" -eq 1 ] && [ -n "${running[$process]:-}" ]; do count_one; done
}

# As `run`, with nothing beside it but what is patient.
alone() {
    wait_for_all_but "$(are_patient)"
    jobs=1 run "$@"
}

# As `run`, beside the others, of which there are no fewer for that: it takes what they leave of the processors.
patiently() {
    run "$1" "$2" nice "${@:3}"
    [ "$jobs" -eq 1 ] || patient=${!:-}
}

# wait_for_all_but COUNT: until no more than so many tests run.
wait_for_all_but() {
    while [ ${#running[@]} -gt "$1" ]; do count_one; done
}

# How many run that take only what others leave.
are_patient() { [ -n "$patient" ] && [ -n "${running[$patient]:-}" ] && echo 1 || echo 0; }

# one NAME WORDS FUNCTION [arguments...]: runs a test in a directory of its own, which it takes away again.
one() {
    local name=$1 start=$SECONDS outcome=0
    work=$work/$begun
    mkdir -m 711 "$work"
    echo "== $name: $2"
    if "${@:3}"; then
        echo "== $name: passed in $((SECONDS - start)) s"
    else
        outcome=1
        echo "== $name: FAILED after $((SECONDS - start)) s"
        last_words
    fi
    take_down
    return $outcome
}

# Waits for one of the tests that run, and counts it.
count_one() {
    local process outcome
    wait -n -p process "${!running[@]}"
    outcome=$?
    [ "$jobs" -eq 1 ] && [ "$process" != "$patient" ] || cat "$work/${running[$process]}.out"
    if [ $outcome -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        broken="$broken ${running[$process]}"
    fi
    unset "running[$process]"
}

# Makes a file system: fresh NAME [up's options...]. It is mounted on $work/NAME-mount.
fresh() {
    local name=$1
    shift
    "$dazzle" up "$work/$name" --mount "$work/$name-mount" "$@"
}

end() { "$dazzle" check "$work/$1" && "$dazzle" down "$work/$1"; }

# shellcheck source=/dev/null
source "$top/install/scenarios.sh"

# For all tests everything is built at once: features of libraries differ between a part and the whole.
what=(--workspace --all-targets)
[ ${#chosen[@]} -eq 0 ] || what=(-p dazzle)
[ -n "${DAZZLE:-}" ] || [ "${chosen[0]:-}" = --list ] || cargo build --quiet "${what[@]}" || exit 1

free=$(($(stat -f -c '%a * %S' "$work") >> 30))
[ "$free" -ge "$room" ] || [ "${chosen[0]:-}" = --list ] || { echo "$free GiB are free in $work, and the tests need $room: name a place in DAZZLE_TEST_DIR"; exit 2; }

alone gate "format, lints and tidy" make --silent check
patiently units "unit, property, model and simulation tests" cargo test --workspace --quiet --no-fail-fast

run programs "real programs" real_programs
run pjdfstest "pjdfstest as ext4" on_fresh pjd --targets 5 -- "$programs/pjdfstest.sh"
run bad-clusters "wrong tokens, addresses, machines, versions and certificates; no quorum" bad_clusters
run details "posix details" on_fresh details --targets 5 --limit 1GiB -- "$programs/posix_details.py" --quiet
run crash "kill -9 under load" crash
run restarts "the daemon is restarted under load, and every call takes effect once" restarts
run device "posix details and restarts where requests come by the FUSE device alone" device
run overwritten "everything overwritten at random, many times over, with kills" overwritten
run postgres-killed "kill -9 of the daemon under pgbench" postgres_killed
run loss-of-each "loss of any one target" loss_of_each 5 1
run loss-of-two "loss of any two targets" loss_of_two
run comes-back "a target that missed writes comes back" comes_back
run flipped-bits "a flipped bit is found and never served" flipped_bits
run bad-targets "targets missing, truncated, foreign, scribbled over, too new" bad_targets
run registry-lost "the registry's copies are damaged, missing or old, and it is rebuilt" registry_lost
run fill-and-empty "fill to the last byte and empty" fill_and_empty
run full-beneath "the disk beneath a target fills up" full_beneath
run bad-input "bad input" bad_input
run bad-mounts "no /dev/fuse, a busy mount point, a dead daemon's mount, an ordinary user" bad_mounts
run lab-stops "all hosts stop together, with nothing lost, unless programs use a mount" lab_stops
run lab-fill "hosts fill the file system, one and then all, and go on when there is room again" lab_fill
run lab-upgrades "programs of daemons are replaced, by one of other versions too; a daemon that waits says so" lab_upgrades
run grows "one machine opens its file system to others, and two join" grows
run unequal "three machines of unequal size are filled" unequal
run lab-promote "of two hosts the one that votes dies, the other is promoted, and the first follows when it is back" lab_promote
run lab-rebuild "the registry of two hosts is rebuilt on one of them, and the other comes back empty" lab_rebuild
run lab-drain "a host of four is drained and removed under load, a lost one replaced by an empty one" lab_drain
run lab-targets "targets are added under load, lost ones are replaced, on three hosts" lab_targets
run lab-disks "a host with two disks goes on with either one" lab_disks
run targets "targets are added and replaced on one machine, and wrong places refused" supplied
run devices "preallocated files and block devices as targets" devices

# These look at how long calls take, or how soon memory is given back: what is patient hardly shows in that.
alone hung-device "a device that is a target of five hangs, and programs go on" hung_disk device
alone hung-disk "the disk beneath a target of five hangs, and programs go on" hung_disk directory
alone memory "the daemon's memory stays within its settings" memory
alone lab-mounts "three hosts see each other's changes at once" many_mounts
alone lab-kills "hosts of three are killed, frozen and cut off in turn under load, also from one other alone" lab_kills
alone lab-losses "as many hosts as parity makes up for are killed at once, and then all" lab_losses
alone lab-restarts "every daemon is restarted under load, and programs keep what they have open" lab_restarts

wait_for_all_but 0

[ "${chosen[0]:-}" != --list ] || exit 0
[ $((passed + failed)) -gt 0 ] || { echo "no such test; install/test.sh --list names them"; exit 2; }
for name in $broken; do
    echo "Failed: $name, which ended with"
    # Behind that line it is what the daemons said.
    sed '/: FAILED after /q' "$work/$name.out" | tail -n 15 | sed 's/^/  /'
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
