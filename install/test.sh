#!/usr/bin/env bash
# Every test that fits half an hour. The last line counts: N passed, N failed.
#
# Environment: DAZZLE_TEST_DIR, where file systems are made (default: a fresh directory under /var/tmp).
set -uo pipefail
cd "$(dirname "$0")/.."
top=$PWD
programs=$top/crates/testbed/programs
work=$(mktemp -d "${DAZZLE_TEST_DIR:-/var/tmp}/dazzle-test.XXXXXX")
dazzle=$top/target/release/dazzle
passed=0 failed=0 broken=""

# Takes down every file system of this run, whatever state it is in.
clean_up() {
    for dir in "$work"/*/; do
        [ -e "$dir/dazzle.toml" ] && "$dazzle" down "$dir" >/dev/null 2>&1
    done
    grep -o "$work[^ ]*" /proc/self/mountinfo | sort -ru | while read -r point; do umount -l "$point" 2>/dev/null; done
    rm -rf "$work"
}
trap clean_up EXIT

# Runs one test, and counts it.
run() {
    local name=$1 start=$SECONDS
    shift
    echo "== $name"
    if "$@" </dev/null; then
        passed=$((passed + 1))
        echo "== $name: passed in $((SECONDS - start)) s"
    else
        failed=$((failed + 1))
        broken="$broken
  $name"
        echo "== $name: FAILED after $((SECONDS - start)) s"
    fi
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

cargo build --release --quiet -p dazzle || exit 1

run "format, lints and tidy" make --silent check
run "unit, property, model and simulation tests" cargo test --workspace --quiet
run "posix details" on_fresh details --targets 5 -- "$programs/posix_details.py" --quiet
run "pjdfstest as ext4" on_fresh pjdfstest --targets 5 -- "$programs/pjdfstest.sh"
run "real programs" real_programs
run "kill -9 under load" crash
run "loss of any one target" loss_of_each 5 1
run "loss of any two targets" loss_of_two
run "a flipped bit is found and never served" flipped_bits
run "fill to the last byte and empty" fill_and_empty
run "bad input" bad_input

[ -z "$broken" ] || echo "Failed:$broken"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
