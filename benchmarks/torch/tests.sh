#!/usr/bin/env bash
# Runs torch's own tests of distributed checkpoints twice, as they are and with `SnapshotStager` in place of torch's
# stager, and prints how each test ended and where the two differ.
#
#   ./tests.sh FOLDER [FILE …]   torch's test/distributed/checkpoint, of torch's sources; some of its files, or all
#   KEEP=DIR ./tests.sh …        keep what they printed there
#   PYTHON=python3 ./tests.sh …  a Python that has torch 2.9 or later, expecttest, pytest and hugefork
#
# It runs a copy of them in which GPUs are CPUs: most ask for several GPUs otherwise, and are skipped or test nothing.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
python=${PYTHON:-python3}
folder=${1:-}
[ -d "$folder" ] || { echo "usage: $0 FOLDER (torch's test/distributed/checkpoint)" >&2; exit 2; }
"$python" -c 'import torch, expecttest, pytest, hugefork' ||
    { echo "give a Python that has torch, expecttest, pytest and hugefork: PYTHON=…" >&2; exit 2; }

work=$(mktemp -d)
touch "$work/staged"
trap 'rm -rf "$work"' EXIT
shift
cp -r "$folder" "$work/tests"
find "$work/tests" -name '*.py' -exec sed -i -E '
    s/@skip_if_lt_x_gpu\([^)]*\)/@(lambda test: test)/
    s/@requires_nccl\(\)/@(lambda test: test)/
    s/min\(([0-9]), torch\.cuda\.device_count\(\)\)/\1/
    s/cpu:gloo,cuda:nccl/gloo/g
    s/"nccl"/"gloo"/g
    s/cuda:(\{[^}]*\}|[0-9])/cpu/g
    s/"cuda"/"cpu"/g
    s/\.cuda\((dist\.get_rank\(\)|[^()]*)\)/.to("cpu")/g' {} +

if [ $# -eq 0 ]; then
    cd "$work/tests"
    set -- *.py */*.py
fi

# tests NAME FILE …: their verdicts go to a file of that name. A file that hangs is cut off, and is an error.
tests() {
    local name=$1 file
    shift
    for file in "$@"; do
        echo "$name: $file" >&2
        local status=0
        (cd "$(dirname "$work/tests/$file")" &&
            timeout 1200 "$python" -m pytest -q -p no:cacheprovider -rA --tb=short "$(basename "$file")") \
            >> "$work/$name.log" 2>&1 < /dev/null || status=$?
        # Its tests have no verdict then.
        [ "$status" -ne 124 ] || echo "ERROR $file was cut off after twenty minutes" >> "$work/$name.log"
    done
    grep -E '^(PASSED|FAILED|ERROR) [^ ]*\.py|^SKIPPED' "$work/$name.log" | sed -E 's/ - .*//' | sort > "$work/$name"
    echo "$name: $(cut -d' ' -f1 "$work/$name" | sort | uniq -c | tr -s ' \n' ' ')"
}
tests plain "$@"
PYTHONPATH=$here HUGEFORK_STAGED=$work/staged tests hugefork "$@"
[ -z "${KEEP:-}" ] || cp "$work"/*.log "$KEEP"
awk '{ snapshots += $1; copies += $2 } END { printf "%d states staged: %d bytes in snapshots, %d copied\n", NR, snapshots, copies }' \
    "$work/staged"
diff "$work/plain" "$work/hugefork" && echo "no test ended another way"
