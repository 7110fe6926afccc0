#!/bin/sh
# Measures two builds of hugefork, or one before and after a change of the machine, and compares them.
#
#   before_and_after.sh DIRECTORY COMMAND [BENCH OPTION...]
#
# COMMAND is run between the two: `git checkout branch && cargo install …`, or `sysctl …`. Exits with 1 if anything is surely
# worse by more than 10 %. Leaves both results and a page with both in DIRECTORY.
set -eu
[ $# -ge 2 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
directory=$1 change=$2
shift 2
mkdir -p "$directory"
hugefork bench "$@" --quiet --json "$directory/before.json"
sh -c "$change"
hugefork bench "$@" --quiet --json "$directory/after.json"
hugefork report "$directory/before.json" "$directory/after.json" -o "$directory/both.html"
hugefork bench compare "$directory/before.json" "$directory/after.json" --fail-above "${FAIL_ABOVE:-10}"
