#!/usr/bin/env bash
# fsx: long random sequences of operations on one file, every read compared with what was written.
#
#     fsx.sh DIR [OPERATIONS] [SEED]
#
# Five variants share the operations: plain reads and writes, the same with mmap, everything that Linux has, whole
# aligned blocks, and `exercise` (beside this file), which mixes O_DIRECT, buffered and mapped access to one file. They run
# side by side, each on a file of its own.
. "$(dirname "$0")/workbench.sh"
require cc
OPERATIONS=${2:-240000}
SEED=${3:-1}
open_workbench "$@"
share=$(((OPERATIONS + 4) / 5))

fsx=$(crate_program fsx 0.3.2)
quietly cc -O1 -Wall -Wextra -o "$LOCAL/exercise" "$PROGRAMS/exercise.c"

variants=()
variant() {
    local name=$1
    cat >"$LOCAL/$name.toml"
    "$fsx" -q -f "$LOCAL/$name.toml" -N "$share" -S "$SEED" -P "$LOCAL" "$WORK/$name" >"$LOCAL/$name.said" 2>&1 &
    variants+=("$name:$!")
}

variant plain <<'END'
flen = 1048576
[weights]
read = 10
write = 10
truncate = 5
fsync = 0.2
close_open = 0.5
mapread = 0
mapwrite = 0
END

variant mapped <<'END'
flen = 524288
nomsyncafterwrite = true
[weights]
read = 10
write = 10
truncate = 5
mapread = 10
mapwrite = 10
invalidate = 1
fsync = 0.2
END

variant everything <<'END'
flen = 1048576
[weights]
read = 10
write = 10
truncate = 5
mapread = 5
mapwrite = 5
invalidate = 1
close_open = 1
fsync = 0.2
fdatasync = 0.2
posix_fallocate = 2
punch_hole = 5
sendfile = 5
posix_fadvise = 1
copy_file_range = 5
END

variant blocks <<'END'
flen = 4194304
[opsize]
align = 4096
min = 4096
max = 262144
[weights]
read = 10
write = 10
truncate = 2
mapread = 3
mapwrite = 3
punch_hole = 5
copy_file_range = 5
END

"$LOCAL/exercise" "$WORK/direct" "$share" "$SEED" >"$LOCAL/direct.said" 2>&1 &
variants+=("direct:$!")

differ=""
for each in "${variants[@]}"; do
    name=${each%:*}
    wait "${each#*:}" && continue
    differ="$differ $name"
    { echo "--- $name" && cat "$LOCAL/$name.said"; } >>"$LOG"
done
[ -z "$differ" ] || fail "a difference was found with seed $SEED in:$differ (see $LOCAL)"

report "$((share * 5)) operations in 5 variants (plain, mapped, everything, blocks, direct and mixed), seed $SEED"
