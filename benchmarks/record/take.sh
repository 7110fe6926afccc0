#!/bin/bash
# Takes the record anew, as root: benchmarks/record/take.sh NAME [CASE ...], where NAME is a word for the machine
# (epyc-2cpu-vm). Each case of `hugefork bench --full` becomes a file; all of them unless some are named.
#
# It refuses to begin while something else runs. A virtual machine that hands free memory back to its host is told to
# keep it meanwhile (page_reporting_order above all that there are), and all of it is touched once: memory that is new
# from the host makes a first touch take as long as the host likes. DAMON, which scans all memory for up to 14 ms at a
# stretch, is off meanwhile. shmem_enabled stays as it is; --tune grows the hugetlb pool for the rivals. The script waits
# before each file until the machine is quiet again, and measures a file anew, up to three times in all, while one of
# hugefork's leading figures varies more than 1.3-fold from round to round; the steadiest is kept (TRIES=1: once, some 25
# minutes in all). NAME.log gets a line for each try: steal time, and the variation.
set -euo pipefail
cd "$(dirname "$0")/../.."

VARIES=1.3
TRIES=${TRIES:-3}
QUIET=3 # percent of all CPUs

CASES="clear copy first-touch anon-w-seq anon-cow-seq snapshot reset changes lazy-free read-after"

usage() { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# -ge 1 ] || usage
name=$1
shift
case $name in -* | *[!a-z0-9-]*) usage ;; esac
files=${*:-$CASES}
for file in $files; do
    case " $CASES " in *" $file "*) ;; *) echo "there is no case $file; take some of: $CASES" >&2; exit 2 ;; esac
done
[ "$(id -u)" = 0 ] || { echo "take.sh needs root: the kernel's subjects need hugetlb pages and settings" >&2; exit 1; }
command -v python3 >/dev/null || { echo "take.sh needs python3 to look at samples" >&2; exit 1; }

# busy, stolen and all ticks of the CPUs
ticks() { awk '/^cpu /{print $2+$3+$4+$7+$8, $9, $2+$3+$4+$5+$6+$7+$8+$9}' /proc/stat; }
# The part that others use, in percent, over so many seconds in which this script only sleeps.
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
    best=
    for try in $(seq $TRIES); do
        for _ in $(seq 20); do [ "$(load 3)" -le $QUIET ] && break; done
        [ "$(load 3)" -le $QUIET ] || { echo "the machine has been busy for a minute; stopped before $file" >&2; exit 1; }
        json=$new/$name-$file.json
        before=$(ticks)
        # Single kernels are no figures of a document, and there are many.
        only=
        case $file in
            clear) only="--subjects hugefork,memset,target-last/rep" ;;
            copy) only="--subjects hugefork,memcpy,target-last/rep" ;;
        esac
        # shellcheck disable=SC2086
        $hugefork bench "$file" --full --tune $only -q --json "$json"
        after=$(ticks)
        # The leading figure of a subject is its first. Counts those that vary, and tells the worst.
        told=$(python3 - "$json" "$VARIES" <<'PY'
import json, sys
results, limit = json.load(open(sys.argv[1]))["results"], float(sys.argv[2])
seen, varies = set(), []
for one in results:
    who = (one["case"], one["subject"], json.dumps(one["params"], sort_keys=True))
    samples = one["samples"]
    if who in seen or one["subject"] != "hugefork" or min(samples) <= 0:
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
echo "taken; docs/measurements.md is made of these files"
