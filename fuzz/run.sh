#!/usr/bin/env bash
# Fuzzes every parser of bytes from outside, one after the other, and prints a line for each.
#
#     fuzz/run.sh [TARGET...]        all of fuzz/targets, or these
#
# Environment: FUZZ_SECONDS, for how long each (default 600). Inputs that reached something new are kept in
# target/fuzz/corpus, inputs that broke something in target/fuzz/broken. Needs a C++ compiler, for libFuzzer.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-600}
host=$(rustc -vV | sed -n 's/^host: //p')

# What cargo-fuzz gives rustc, without a sanitizer: these options are stable.
options=(-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1)
RUSTFLAGS="${options[*]}" cargo build --quiet --release --manifest-path fuzz/Cargo.toml --target-dir target/fuzz --target "$host"

targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=($(cd fuzz/targets && ls | sed 's/\.rs$//'))
failed=0
for target in "${targets[@]}"; do
    mkdir -p "target/fuzz/corpus/$target" target/fuzz/broken
    log=target/fuzz/$target.log
    # Targets that have inputs to begin with put them there.
    export FUZZ_SEEDS=target/fuzz/corpus/$target
    if "target/fuzz/$host/release/$target" -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=2048 \
        -artifact_prefix="target/fuzz/broken/$target-" -print_final_stats=1 "target/fuzz/corpus/$target" >"$log" 2>&1; then
        outcome="nothing broken"
    else
        outcome="BROKEN: see $log" failed=1
    fi
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    reached=$(grep -o 'cov: [0-9]* ft: [0-9]*' "$log" | tail -1)
    printf '%-10s %12s runs in %4s s, %s; %s\n' "$target" "${runs:-?}" "$seconds" "${reached:-?}" "$outcome"
done
exit "$failed"
