#!/bin/bash
# Counts the instructions of servers, clients and mounts for the same work, which no other load of the machine changes: to see whether a
# build does more than another, call it for both. bench/count.sh [WORK...]: names, copy, mount, run, locks. $WEFT: the program, with weft-bench
# and libweft_preload.so beside it. Needs valgrind.
set -euo pipefail
cd "$(dirname "$0")/.."
weft=${WEFT:-$PWD/target/release/weft}
scratch=$(mktemp -d /dev/shm/weft-count.XXXXXX)
. bench/common.sh
finish_with
export WEFT_KEY_FILE=$scratch/cluster/client.key

# counted NAME PROGRAM...: runs a program, whose instructions go to NAME.
counted() {
    local name=$1
    shift
    valgrind --tool=callgrind --trace-children=yes --callgrind-out-file=/dev/null --log-file="$scratch/$name.%p.count" "$@"
}

# instructions NAME: in thousands, of all processes that were counted as NAME.
instructions() {
    cat "$scratch/$1".*.count 2>/dev/null | awk '/Collected/ { sum += $4 } END { printf "%d\n", sum / 1000 }'
}

names() { counted client "${weft%/*}/weft-bench" meta --url "$url" --clients 1 --files 2000 --runs 1 >/dev/null; }

copy() {
    head -c 64M /dev/zero >"$scratch/file"
    counted client "$weft" cp "$scratch/file" "$url/file"
    counted client "$weft" cat "$url/file" >/dev/null
}

mount() {
    mkdir "$scratch/mnt"
    counted mount "$weft" mount --foreground "$url" "$scratch/mnt" &
    until mountpoint -q "$scratch/mnt"; do sleep 0.1; done
    python3 bench/count.py "$scratch/mnt"
    "$weft" umount "$scratch/mnt"
    wait $!
    rmdir "$scratch/mnt"
}

run() {
    counted client "$weft" run --url "$url" -- dd if=/dev/zero of=/weft/dd bs=4k count=3000 status=none
    counted client "$weft" run --url "$url" -- dd if=/weft/dd of=/dev/null bs=4k status=none
}

# Waits of many processes for exclusive locks of different bytes that overlap, each of which is granted in turn.
locks() {
    mkdir "$scratch/mnt"
    "$weft" mount "$url" "$scratch/mnt"
    python3 bench/locks.py "$scratch/mnt/file" "${WAITS:-200}"
    "$weft" umount "$scratch/mnt"
    rmdir "$scratch/mnt"
}

[ $# -gt 0 ] || set -- names copy mount run locks
printf '%-8s %12s %12s %12s %12s\n' thousands meta io client mount
for work in "$@"; do
    url=$("$weft" up --dir "$scratch/cluster" --io 2 --detach)
    "$weft" down --dir "$scratch/cluster" >/dev/null
    servers=()
    for name in meta0 io0 io1; do
        counted "${name%[0-9]}" "$weft" serve --config "$scratch/cluster/weft.toml" --name "$name" 2>/dev/null &
        servers+=($!)
    done
    until "$weft" ls "$url" >/dev/null 2>&1; do sleep 0.2; done
    "$work"
    "$weft" down --dir "$scratch/cluster" >/dev/null
    wait "${servers[@]}" || true
    printf '%-8s %12s %12s %12s %12s\n' "$work" "$(instructions meta)" "$(instructions io)" "$(instructions client)" "$(instructions mount)"
    rm -rf "$scratch"/*.count "$scratch/cluster"
done
