#!/bin/bash
# What metrics cost: names made, looked up and removed by a cluster with metrics and by one without, in turns; random reads of
# 4 KiB; and the time of a scrape with many clients.
set -euo pipefail
cd "$(dirname "$0")/.."
weft=${WEFT:-$PWD/target/release/weft}
runs=${WEFT_RUNS:-5}
clients=${WEFT_CLIENTS:-1000}
scratch=$(mktemp -d /dev/shm/weft-metrics.XXXXXX)
. bench/common.sh
finish_with
down() { "$weft" down --dir "$scratch/on" >/dev/null || true; "$weft" down --dir "$scratch/off" >/dev/null || true; }
trap 'down; finish' EXIT

on=$("$weft" up --dir "$scratch/on" --io 4 --port 7600 --metrics 9600 --detach)
off=$("$weft" up --dir "$scratch/off" --io 4 --port 7700 --detach)
names() { "$weft" bench meta --url "$1" --key "$2" --runs 1 --files 4000 --json | python3 -c '
import json, sys
print(*[round(row["value"]) for row in json.load(sys.stdin)["rows"] if row["unit"] == "per s"])'; }
for ((turn = 0; turn < runs; turn++)); do
    names "$on" "$scratch/on/client.key" >>"$scratch/names.on"
    names "$off" "$scratch/off/client.key" >>"$scratch/names.off"
done
what=([1]=creates [2]=stats [3]=unlinks)
columns=$(awk '{ print NF; exit }' "$scratch/names.on")
for ((column = 1; column <= columns; column++)); do
    with=$(cut -d' ' -f$column "$scratch/names.on" | median)
    without=$(cut -d' ' -f$column "$scratch/names.off" | median)
    awk -v c="${what[column]}" -v w="$with" -v o="$without" 'BEGIN { printf "%s: %8.0f with, %8.0f without, ratio %.3f\n", c, w, o, w / o }'
done

# Clients that are connected and do nothing.
for ((client = 0; client < clients; client++)); do
    WEFT_KEY_FILE=$scratch/on/client.key "$weft" stats --interval 3600 "$on" >/dev/null &
done
page() { curl -s http://127.0.0.1:9600/metrics; }
told() { page | awk '/^weft_clients/ { print $2 }'; }
while [ "$(told)" -lt "$clients" ]; do sleep 0.5; done
for ((turn = 0; turn < 21; turn++)); do
    curl -s -o /dev/null -w '%{time_total}\n' http://127.0.0.1:9600/metrics >>"$scratch/scrapes"
done
awk -v s="$(median <"$scratch/scrapes")" -v c="$(told)" 'BEGIN { printf "scrape with %d clients: %.1f ms\n", c, s * 1000 }'
kill $(jobs -p)
