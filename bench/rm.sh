#!/bin/bash
# Removes a directory of many names with `rm -rf` on a mount: processor time of the metadata server and of the mount, and elapsed time,
# per name. `taskset -c 0 bench/rm.sh` leaves out what it costs to wake another processor.
# bench/rm.sh [NAMES [ROUNDS]]. $WEFT: the program, with weft-bench beside it. $BEFORE: that of another build, in turns with it.
set -euo pipefail
cd "$(dirname "$0")/.."
now=${WEFT:-$PWD/target/release/weft}
names=${1:-100000}
rounds=${2:-5}
scratch=$(mktemp -d /dev/shm/weft-rm.XXXXXX)
weft=$now
. bench/common.sh
finish_with
export WEFT_KEY_FILE=$scratch/cluster/client.key

# processor_us PID: processor time of all threads of a process, in µs.
processor_us() { awk '{ ns += $1 } END { printf "%d\n", ns / 1000 }' "/proc/$1"/task/*/schedstat; }

# round NAME WEFT: one removal, in a cluster of its own.
round() {
    weft=$2
    local url meta mount begun server_us mount_us
    url=$("$weft" up --dir "$scratch/cluster" --detach)
    mkdir "$scratch/mnt"
    "${weft%/*}/weft-bench" meta --url "$url" --clients 2 --files $((names / 2)) --make /many >/dev/null
    "$weft" mount "$url" "$scratch/mnt"
    meta=$(pgrep -f "serve --config $scratch/cluster/weft.toml --name meta0")
    mount=$(pgrep -f "mount .*$scratch/mnt")
    # What the creation left to be merged.
    sleep 3
    server_us=$(processor_us "$meta") mount_us=$(processor_us "$mount") begun=$(date +%s%N)
    rm -rf "$scratch/mnt/many"
    echo "$(($(processor_us "$meta") - server_us)) $(($(processor_us "$mount") - mount_us)) $((($(date +%s%N) - begun) / 1000))" |
        awk -v names="$names" '{ printf "%.1f %.1f %.1f\n", $1 / names, $2 / names, $3 / names }' >>"$scratch/$1"
    "$weft" umount "$scratch/mnt"
    rmdir "$scratch/mnt"
    "$weft" down --dir "$scratch/cluster" >/dev/null
    rm -rf "$scratch/cluster"
}

for _ in $(seq "$rounds"); do
    [ -z "${BEFORE:-}" ] || round before "$BEFORE"
    round now "$now"
done
for build in before now; do
    [ -e "$scratch/$build" ] || continue
    echo "$build: server $(cut -d' ' -f1 "$scratch/$build" | median) µs, mount $(cut -d' ' -f2 "$scratch/$build" | median) µs," \
        "elapsed $(cut -d' ' -f3 "$scratch/$build" | median) µs a name; server of each: $(cut -d' ' -f1 "$scratch/$build" | tr '\n' ' ')"
done
