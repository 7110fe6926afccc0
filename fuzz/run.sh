#!/usr/bin/env bash
# Fuzzes each target for so many seconds (60 if nothing is said), two at once, from the corpus; ends with a line
# "N passed, N failed". What fails is kept in target/fuzz-found, and goes on failing with
#     fuzz/run.sh 0 TARGET FILE
# What finds new ways is kept in target/fuzz-corpus; `fuzz/run.sh keep` puts the 80 that do most of it into fuzz/corpus.
#
# Stable Rust can instrument code for libFuzzer, but not for AddressSanitizer.
set -euo pipefail
cd "$(dirname "$0")/.."

targets=(model kernels texts results)
host=$(rustc -vV | sed -n 's/^host: //p')
coverage="-Cpasses=sancov-module -Ccodegen-units=1 --cfg fuzzing"
for kind in level=4 inline-8bit-counters pc-table trace-compares; do
    coverage+=" -Cllvm-args=-sanitizer-coverage-$kind"
done
# With --target, build scripts and macros are compiled without these flags.
RUSTFLAGS=$coverage cargo build --quiet --release --manifest-path fuzz/Cargo.toml --target-dir target/fuzz --target "$host"
built=target/fuzz/$host/release

if [ "${1:-}" = keep ]; then
    for target in "${targets[@]}"; do
        least=$(mktemp -d)
        "$built/$target" -set_cover_merge=1 -max_len=3000 "$least" "fuzz/corpus/$target" "target/fuzz-corpus/$target" 2>/dev/null
        rm -r "fuzz/corpus/$target"
        mkdir "fuzz/corpus/$target"
        for name in $(ls -S "$least" | head -n 80); do cp "$least/$name" "fuzz/corpus/$target/${name:0:12}"; done
        rm -r "$least"
    done
    exit
fi
seconds=${1:-60}
if [ $# -gt 1 ]; then
    exec "$built/$2" "${@:3}"
fi

mkdir -p target/fuzz-found target/fuzz-log
fuzz() {
    mkdir -p "fuzz/corpus/$1" "target/fuzz-corpus/$1"
    "$built/$1" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=4096 -max_len=4096 -artifact_prefix="target/fuzz-found/$1-" \
        "target/fuzz-corpus/$1" "fuzz/corpus/$1" >"target/fuzz-log/$1" 2>&1
}
passed=0 failed=0
for ((at = 0; at < ${#targets[@]}; at += 2)); do
    declare -A running=()
    for target in "${targets[@]:at:2}"; do
        fuzz "$target" &
        running[$!]=$target
    done
    for id in "${!running[@]}"; do
        target=${running[$id]}
        if wait "$id"; then
            passed=$((passed + 1))
            echo "$target: $(grep -a '^Done ' "target/fuzz-log/$target"), $(grep -ao 'cov: [0-9]*' "target/fuzz-log/$target" | tail -1)"
        else
            failed=$((failed + 1))
            tail -n 60 "target/fuzz-log/$target"
            echo "$target: failed"
        fi
    done
    unset running
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
