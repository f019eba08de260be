#!/bin/bash
# `weft sync` of a tree beside `weft cp -r`: the first time, in turns, and unchanged. Seconds; medians.
set -euo pipefail
cd "$(dirname "$0")/.."
weft=${WEFT:-$PWD/target/release/weft}
runs=${WEFT_RUNS:-5}
tree=${WEFT_TREE:-/usr/include}
scratch=$(mktemp -d /dev/shm/weft-sync.XXXXXX)
. bench/common.sh
finish_with

url=$("$weft" up --dir "$scratch/cluster" --io 4 --detach)
seconds() { local begun=$EPOCHREALTIME; "$@" >/dev/null; awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }'; }
for ((turn = 0; turn < runs; turn++)); do
    seconds "$weft" cp -q -r "$tree" "${url}cp$turn" >>"$scratch/cp"
    seconds "$weft" cp -q -rp "$tree" "${url}cpp$turn" >>"$scratch/cp-p"
    seconds "$weft" sync -q "$tree" "${url}sync$turn" >>"$scratch/first"
    seconds "$weft" sync -q "$tree" "${url}sync$turn" >>"$scratch/again"
    mkdir -p "$scratch/local"
    seconds rsync -a "$tree/" "$scratch/local/" >>"$scratch/rsync"
    seconds rsync -a "$tree/" "$scratch/local/" >>"$scratch/rsync-again"
    rm -rf "$scratch/local"
    for name in cp cpp sync; do "$weft" rm -rf "$url$name$turn"; done
done
echo "$(find "$tree" -type f | wc -l) files of $tree, seconds"
for what in cp cp-p first again rsync rsync-again; do
    printf '%-12s %6.2f\n' "$what" "$(median <"$scratch/$what")"
done
