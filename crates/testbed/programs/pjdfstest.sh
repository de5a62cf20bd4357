#!/usr/bin/env bash
# pjdfstest: the POSIX test suite, here and on ext4 side by side: each case that passes there must pass here.
#
#     pjdfstest.sh DIR [PATTERN...]
#
# ext4 lies in an image on a loop device, so that the cases about read-only file systems can remount it; they run where
# DIR is on a mount of its own as well, which they remount. Prints the cases that differ, with what the suite said.
. "$(dirname "$0")/workbench.sh"
require mkfs.ext4 losetup findmnt python3
[ "$(id -u)" -eq 0 ] || fail "needs root: the suite changes users and makes device nodes"
open_workbench "$@"
shift

# Cases that cannot run on any FUSE file system, with the reason; docs/limits.md lists them too.
#   link_count_max: glibc answers pathconf(_PC_LINK_MAX) by the file system's type and knows none for FUSE; the case skips.
EXCEPTIONS=link::link_count_max

binary=$(crate_program pjdfstest 0.2.2)
reference=$LOCAL/ext4
mkdir "$reference"
truncate -s 1G "$LOCAL/image"
quietly mkfs.ext4 -q "$LOCAL/image"
quietly mount -o loop "$LOCAL/image" "$reference"
trap 'status=$?; umount "$reference" 2>>"$LOG" || true; close_workbench $status' EXIT

remount=true
[ "$(findmnt -n -o TARGET -T "$WORK")" != / ] || remount=false

# settings REMOUNT >FILE: users whose first group has the name that is given, as the suite wants it.
settings() {
    cat <<END
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.02
allow_remount = $1

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
END
}

# mount(8) hands a FUSE file system to the helper mount.fuse, which cannot remount; `-i` asks the kernel itself.
mkdir "$LOCAL/bin"
printf '#!/bin/sh\nexec %s -i "$@"\n' "$(type -P mount)" >"$LOCAL/bin/mount"
chmod 755 "$LOCAL/bin/mount"

# suite NAME DIR OTHER-FILE-SYSTEM PATTERN...: one run of the suite with the settings at hand; NAME.said has its words.
suite() {
    local name=$1 directory=$2 other=$3
    shift 3
    NO_COLOR=1 PATH=$LOCAL/bin:$PATH "$binary" -c "$LOCAL/settings.toml" -p "$directory" -s "$other" "$@" \
        >"$LOCAL/$name.said" 2>&1 || true
    grep -q '^Summary' "$LOCAL/$name.said" || {
        tail -n 20 "$LOCAL/$name.said" >>"$LOG"
        fail "the suite broke off on $directory"
    }
    awk '/ (ok|FAILED|skipped)$/ { print $1, $NF }' "$LOCAL/$name.said" | sort >"$LOCAL/$name"
}

# results NAME DIR OTHER-FILE-SYSTEM PATTERN...: NAME has a line "case result" for each case. What the suite leaves open
# keeps a file system from becoming read-only, so those cases have a run of their own.
results() {
    local name=$1
    settings false >"$LOCAL/settings.toml"
    suite "$@"
    [ $# -eq 3 ] && $remount || return 0
    settings true >"$LOCAL/settings.toml"
    suite "$name-erofs" "$2" "$3" erofs
    { grep -v '::erofs' "$LOCAL/$name"; cat "$LOCAL/$name-erofs"; } | sort >"$LOCAL/$name.merged"
    mv "$LOCAL/$name.merged" "$LOCAL/$name"
    cat "$LOCAL/$name-erofs.said" >>"$LOCAL/$name.said"
}

results on-ext4 "$reference" "$WORK" "$@"
results here "$WORK" "$reference" "$@"

grep ' ok$' "$LOCAL/on-ext4" >"$LOCAL/expected" || fail "no case passes on ext4: $(tail -n 1 "$LOCAL/on-ext4.said")"
comm -23 "$LOCAL/expected" <(grep ' ok$' "$LOCAL/here" || true) | cut -d " " -f 1 >"$LOCAL/differ"
grep -vxF "$EXCEPTIONS" "$LOCAL/differ" >"$LOCAL/worse" || true # none is worse
if [ -s "$LOCAL/worse" ]; then
    while read -r case; do # the last time it was run
        grep -A 1 "^$case " "$LOCAL/here.said" | tail -n 2
    done <"$LOCAL/worse" >&2
    fail "$(wc -l <"$LOCAL/worse") of $(wc -l <"$LOCAL/expected") cases that pass on ext4 do not pass here"
fi
report "$(wc -l <"$LOCAL/expected") cases pass on ext4 and here;" \
    "$(grep -c skipped "$LOCAL/here" || true) of $(wc -l <"$LOCAL/here") are skipped here" \
    "($($remount && echo "remounts included" || echo "no remounts: DIR is on the root file system"))"
