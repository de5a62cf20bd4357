#!/usr/bin/env bash
# fio: writes with checksums in every block and verifies them: random and sequential, mixed sizes, through the page
# cache, around it, and mapped; by one writer and by several at once.
#
#     fio.sh DIR [SIZE-OF-EACH-FILE]
. "$(dirname "$0")/workbench.sh"
require fio
SIZE=${2:-64m}
open_workbench "$@"

# Every job: CRC-32C in each block, its header checked against the offset it was written for, the first error fatal.
# The verifying read comes from the file system, not from the cache of the writer.
jobs=0
verified() {
    local name=$1
    shift
    mkdir -p "$WORK/$name"
    quietly fio --name="$name" --directory="$WORK/$name" --size="$SIZE" --verify=crc32c --do_verify=1 \
        --verify_fatal=1 --verify_backlog=0 --randrepeat=1 --randseed=4711 --fallocate=none --invalidate=1 \
        --group_reporting --output-format=terse "$@"
    jobs=$((jobs + 1))
    rm -rf "${WORK:?}/$name"
}

verified sequential        --rw=write     --bs=1m        --ioengine=psync  --direct=0 --end_fsync=1
verified sequential-direct --rw=write     --bs=1m        --ioengine=libaio --direct=1 --iodepth=8
verified random            --rw=randwrite --bs=4k        --ioengine=psync  --direct=0 --end_fsync=1
verified random-direct     --rw=randwrite --bs=4k        --ioengine=libaio --direct=1 --iodepth=16
verified mixed-sizes       --rw=randwrite --bsrange=512-128k --ioengine=psync --direct=0 --end_fsync=1
verified mixed-direct      --rw=randwrite --bssplit=4k/40:16k/30:64k/20:256k/10 --ioengine=libaio --direct=1 --iodepth=8
verified fsynced           --rw=randwrite --bs=8k        --ioengine=psync  --direct=0 --fsync=64
verified read-and-write    --rw=randrw    --bs=4k        --ioengine=psync  --direct=0 --rwmixread=30
verified mapped            --rw=randwrite --bs=4k        --ioengine=mmap   --direct=0
verified vectored          --rw=write     --bs=64k       --ioengine=pvsync2 --direct=0 --end_fsync=1
verified several           --rw=randwrite --bs=16k       --ioengine=psync  --direct=0 --numjobs=4 --end_fsync=1
verified several-direct    --rw=randwrite --bs=16k       --ioengine=libaio --direct=1 --iodepth=4 --numjobs=4
verified appended          --rw=write     --bs=4k        --ioengine=sync   --direct=0 --file_append=1 --fdatasync=256
verified over-again        --rw=randwrite --bs=4k        --ioengine=psync  --direct=0 --loops=3

report "$jobs verified workloads of $SIZE a file, buffered, direct and mapped, 512 bytes to 1 MiB a write"
