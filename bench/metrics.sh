#!/bin/bash
# What metrics cost: names made, looked up and removed by a cluster with metrics and by one without, in turns; random reads of
# 4 KiB; each by the rate, and by the servers' processor time, which other load on the machine changes less; and the time of a scrape
# with many clients.
set -euo pipefail
cd "$(dirname "$0")/.."
weft=${WEFT:-$PWD/target/release/weft}
runs=${WEFT_RUNS:-60}
clients=${WEFT_CLIENTS:-1000}
scratch=$(mktemp -d /dev/shm/weft-metrics.XXXXXX)
. bench/common.sh
finish_with
down() { "$weft" down --dir "$scratch/on" >/dev/null || true; "$weft" down --dir "$scratch/off" >/dev/null || true; }
trap 'down; finish' EXIT

on=$("$weft" up --dir "$scratch/on" --io 4 --port 7600 --metrics 9600 --detach)
off=$("$weft" up --dir "$scratch/off" --io 4 --port 7700 --detach)
servers_ms() { WEFT_KEY_FILE=$scratch/$2/client.key processors_ms "$1"; }
names() { # URL DIR: appends to creates, stats, unlinks
    "$weft" bench meta --url "$1" --key "$scratch/$2/client.key" --runs 1 --files 2000 --json | python3 -c '
import json, sys
rows = [row["value"] for row in json.load(sys.stdin)["rows"] if row["unit"] == "per s"]
for name, value in zip(["creates", "stats", "unlinks"], rows): print(name, value)' |
        while read -r name value; do echo "$value" >>"$scratch/$name.$2"; done
}
reads() { # 4 KiB at random places, one request after the other, by four processes
    "$weft" bench random --url "$1" --key "$scratch/$2/client.key" --piece 4K --file-bytes 64M --pieces 20000 --clients 4 \
        --transport shm --method multiple --way read --runs 1 --json | python3 -c '
import json, sys
print(json.load(sys.stdin)["contests"][0]["methods"][0]["pieces_s"])' >>"$scratch/reads.$2"
}
# Whatever slows the machine down for a while meets both: who is first changes with each turn.
for ((turn = 0; turn < runs; turn++)); do
    for what in names reads; do
        order=(on off)
        [ $((turn % 2)) = 0 ] || order=(off on)
        for which in "${order[@]}"; do
            before=$(servers_ms "${!which}" "$which")
            $what "${!which}" "$which"
            echo $(($(servers_ms "${!which}" "$which") - before)) >>"$scratch/$what-cpu.$which"
        done
    done
done
echo "$runs turns, with metrics and without"
for what in creates stats unlinks reads; do
    printf '%-8s %8.0f / %8.0f per second; ratio %s\n' $what "$(median <"$scratch/$what.on")" "$(median <"$scratch/$what.off")" \
        "$(paired "$scratch/$what.on" "$scratch/$what.off")"
done

for what in names reads; do
    printf '%-8s %8.0f / %8.0f ms of servers'"'"' processors in a turn; ratio %s\n' $what "$(median <"$scratch/$what-cpu.on")" \
        "$(median <"$scratch/$what-cpu.off")" "$(paired "$scratch/$what-cpu.on" "$scratch/$what-cpu.off")"
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
