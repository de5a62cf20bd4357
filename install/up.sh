#!/usr/bin/env bash
# Builds Dazzle, brings a file system with five targets up, and shows what it can do: a tree goes in, one target is
# destroyed, everything is read back and verified, redundancy is restored.
#
#     install/up.sh DIR MOUNT
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$1 mount=$2
dazzle=target/release/dazzle

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

say "Building"
cargo build --release --quiet -p dazzle

fresh=true
[ -e "$dir/dazzle.toml" ] && fresh=false

say "A file system in $dir, mounted on $mount"
if $fresh; then
    $dazzle up "$dir" --mount "$mount" --targets 5
else
    $dazzle status "$dir" >/dev/null 2>&1 || $dazzle up "$dir" --mount "$mount"
fi
$dazzle status "$dir"

if $fresh; then
    say "A source tree goes in: this one"
    mkdir "$mount/source"
    git archive HEAD | tar -x -C "$mount/source"
    expected=$(mktemp -d)
    trap 'rm -rf "$expected"' EXIT
    git archive HEAD | tar -x -C "$expected"
    sync -f "$mount/source" || true
    find "$mount/source" -type f | wc -l | sed 's/$/ files/'

    say "It is stopped and started: the log that took the tree ends, and is striped over all five"
    $dazzle down "$dir"
    $dazzle up "$dir"

    say "One of the five targets is destroyed"
    $dazzle down "$dir"
    rm -rf "$dir/target-0"
    $dazzle up "$dir"
    $dazzle status "$dir" | sed -n 1p

    say "Everything is read back and compared"
    diff -r "$expected" "$mount/source" && echo "every byte is right"

    say "Where one file's bytes are"
    $dazzle why "$mount/source/README.md"

    say "An empty target takes the destroyed one's place"
    $dazzle down "$dir"
    mkdir "$dir/target-0"
    $dazzle up "$dir"
    $dazzle repair "$dir"
    $dazzle check "$dir"
    $dazzle status "$dir" | sed -n 1p
fi

cat <<EOT

It is yours on $mount. Try:
    cp -r /usr/include $mount/ && ls -l $mount/include | head
    $dazzle status $dir
    $dazzle why $mount/source/Cargo.toml
    $dazzle check $dir
    make down
EOT
