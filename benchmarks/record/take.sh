#!/bin/bash
# Takes the record anew, as root: benchmarks/record/take.sh NAME [FILE ...], where NAME is a word for the machine
# (xeon-2cpu-vm), and FILE one of those below (faults); all of them unless some are named. Some 40 minutes.
#
# It refuses to begin while something else runs. A virtual machine that hands free memory back to its host is told to
# keep it meanwhile (page_reporting_order above all that there are), and all of it is touched once: memory that is new
# from the host makes a first touch take as long as the host likes. DAMON, which looks at all memory for up to 14 ms at
# a stretch, is off meanwhile. It waits before each file until the machine is quiet again, and measures a file anew, up
# to three times in all, while one of hugefork's leading figures varies more than 1.3-fold from round to round; the
# steadiest is kept. NAME.log gets a line for each try: steal time, and what varied.
set -euo pipefail
cd "$(dirname "$0")/../.."

VARIES=1.3
TRIES=3
QUIET=3 # percent of all CPUs

declare -A WHAT=(
    [faults]="zero-fault --backing shmem-thp,hugetlb --size 1GiB --runs 7 --time-budget 200s"
    [touch]="zero-fault --backing shmem-thp --size 512MiB --runs 7 --time-budget 120s"
    [fill]="anon-w-seq --tasks 2 --size 1GiB --backing shmem-thp,hugetlb --runs 5 --time-budget 200s"
    [cow]="anon-cow-seq --tasks 2 --size 1GiB --backing shmem-thp,hugetlb --runs 5 --time-budget 120s"
    [snapshot]="snapshot --size 256MiB,1GiB,4GiB --subjects hugefork,fork-4k,fork-thp,fork-hugetlb --runs 7 --time-budget 200s"
    [kernels]="clear copy --size 1GiB --subjects hugefork,memset,memcpy,target-last/rep --runs 5 --time-budget 60s"
    [lazy-free]="lazy-free --size 1GiB --block-size 4KiB --block-size 64KiB --block-size 2MiB --runs 5"
    [changes]="changes --size 1GiB --runs 5 --subjects hugefork,memcmp"
    [reset]="reset --size 1GiB --runs 5 --subjects hugefork,memfd-private,pagemap-scan"
    [writer-latency]="writer-latency --size 1GiB --densities 10,5000,500000 --epochs 1,3 --runs 5 --subjects hugefork,fork-4k,fork-thp,fork-hugetlb --time-budget 280s"
    [history]="history --size 1GiB --densities 10,100,1000 --runs 3 --subjects hugefork,fork-4k"
    [fork]="fork --size 1GiB --densities 5000 --epochs 3 --runs 5"
)
# What users have: no hugetlb pages, shmem_enabled as it is (never, on most machines).
AS_IT_IS="touch history fork"
ORDER="faults touch fill cow snapshot kernels lazy-free changes reset writer-latency history fork"

usage() { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# -ge 1 ] || usage
name=$1
shift
case $name in -* | *[!a-z0-9-]*) usage ;; esac
files=${*:-$ORDER}
for file in $files; do [ -n "${WHAT[$file]:-}" ] || { echo "there is no file $file; take some of: $ORDER" >&2; exit 2; }; done
[ "$(id -u)" = 0 ] || { echo "take.sh needs root: the kernel's subjects need hugetlb pages and settings" >&2; exit 1; }
command -v python3 >/dev/null || { echo "take.sh needs python3 to look at samples" >&2; exit 1; }

# busy, stolen and all ticks of the CPUs
ticks() { awk '/^cpu /{print $2+$3+$4+$7+$8, $9, $2+$3+$4+$5+$6+$7+$8+$9}' /proc/stat; }
# What others use, in percent, over so many seconds in which this script only sleeps.
load() {
    local a b
    a=$(ticks); sleep "$1"; b=$(ticks)
    echo "$a $b" | awk '{printf "%d", 100*($4-$1)/($6-$3)}'
}
stolen() { echo "$1 $2" | awk '{printf "%.1f", 100*($5-$2)/($6-$3)}'; }

hugefork=target/release/hugefork
cargo build --release --quiet
if [ "$(load 3)" -gt $QUIET ]; then
    echo "something else runs on this machine; stop it, or come back later:" >&2
    ps -eo pcpu,pid,args --sort=-pcpu | head -4 | cut -c1-100 >&2
    exit 1
fi

log=benchmarks/record/$name.log
new=$(mktemp -d)
keeps=/sys/module/page_reporting/parameters/page_reporting_order
was=
damons=
put_back() {
    rm -rf "$new"
    [ -z "$was" ] || echo "$was" > "$keeps"
    for damon in $damons; do echo on > "$damon" || echo "$damon stays off" >&2; done
}
trap put_back EXIT
trap 'exit 130' INT TERM HUP
if [ -w "$keeps" ]; then
    was=$(cat "$keeps")
    # The orders are the columns after "Node 0, zone Normal": no free piece is of the one above.
    awk '{print NF - 4; exit}' /proc/buddyinfo > "$keeps"
    echo "$(date -u +%FT%TZ) free memory stays this machine's: page_reporting_order $(cat "$keeps") (it was $was)" | tee -a "$log"
    python3 - <<'PY' || echo "$(date -u +%FT%TZ) and it was not touched before" | tee -a "$log"
import mmap
free = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemAvailable"))
memory = mmap.mmap(-1, free * 1024 // 100 * 98)
memory.madvise(14)  # MADV_HUGEPAGE
memory.madvise(23)  # MADV_POPULATE_WRITE, Linux 5.14
PY
fi
for damon in /sys/kernel/mm/damon/admin/kdamonds/*/state; do
    [ -w "$damon" ] && [ "$(cat "$damon")" = on ] && echo off > "$damon" || continue
    damons="$damons $damon"
    echo "$(date -u +%FT%TZ) $damon is off (it was on)" | tee -a "$log"
done
for file in $files; do
    tune=--tune
    case " $AS_IT_IS " in *" $file "*) tune= ;; esac
    best=
    for try in $(seq $TRIES); do
        for _ in $(seq 20); do [ "$(load 3)" -le $QUIET ] && break; done
        [ "$(load 3)" -le $QUIET ] || { echo "the machine has been busy for a minute; stopped before $file" >&2; exit 1; }
        json=$new/$name-$file.json
        before=$(ticks)
        # shellcheck disable=SC2086
        $hugefork bench ${WHAT[$file]} $tune -q --json "$json"
        after=$(ticks)
        # The leading figure of a subject is its first. How many vary, and how much the worst does.
        told=$(python3 - "$json" "$VARIES" <<'PY'
import json, sys
results, limit = json.load(open(sys.argv[1]))["results"], float(sys.argv[2])
seen, varies = set(), []
for one in results:
    who = (one["case"], one["subject"], json.dumps(one["params"], sort_keys=True))
    samples = one["samples"]
    if who in seen or not one["subject"].startswith(("hugefork", "run-")) or min(samples) <= 0:
        continue
    seen.add(who)
    if max(samples) > limit * min(samples):
        varies.append((max(samples) / min(samples), f"{one['case']} {one['subject']}"))
worst = max(varies, default=(1, ""))
print(len(varies), f"{len(varies)} of {len(seen)} vary more than {limit}-fold" + (f", at most {worst[0]:.1f}-fold ({worst[1]})" if varies else ""))
PY
)
        count=${told%% *}
        echo "$(date -u +%FT%TZ) $file, try $try: steal $(stolen "$before" "$after") %; ${told#* }" | tee -a "$log"
        if [ -z "$best" ] || [ "$count" -lt "$best" ]; then
            best=$count
            sed "s|$new/||" "$json" > "benchmarks/record/$name-$file.json"
        fi
        [ "$count" -gt 0 ] || break
    done
done
echo "taken; now: HUGEFORK_GOLDEN=write cargo test -p hugefork-report --test measurements"
