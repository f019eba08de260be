#!/bin/bash
# Times the first lock that a program gets on a mount after the metadata server was killed and started again, while
# another mount holds a lock. bench/lock-restart.sh [ROUNDS]. $WEFT: the program. Compare two builds by two calls.
set -euo pipefail
cd "$(dirname "$0")/.."
weft=${WEFT:-$PWD/target/release/weft}
rounds=${1:-5}
scratch=$(mktemp -d /dev/shm/weft-locks.XXXXXX)
servers=()
unset WEFT_LOG
export HOME=$scratch

clean_up() {
    [ -z "${holder:-}" ] || kill "$holder" 2>/dev/null || true
    for mount in "$scratch"/mnt?; do "$weft" umount --force "$mount" 2>/dev/null || true; done
    [ ${#servers[@]} -eq 0 ] || kill -9 "${servers[@]}" 2>/dev/null || true
    rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

serve() { # NAME
    "$weft" serve --config "$scratch/cluster/weft.toml" --name "$1" >>"$scratch/$1.log" 2>&1 &
    servers+=($!)
    disown
    [ "$1" != meta0 ] || meta=$!
}

port=$((20000 + $$ % 10000))
"$weft" init --dir "$scratch/cluster" --meta "127.0.0.1:$port:$scratch/meta" --io "127.0.0.1:$((port + 1)):$scratch/io" \
    >/dev/null 2>&1
export WEFT_KEY_FILE=$scratch/cluster/client.key
for name in meta0 io0; do
    "$weft" serve --config "$scratch/cluster/weft.toml" --name $name --format 2>/dev/null
    serve $name
done
url=weft://127.0.0.1:$port/
until "$weft" ls "$url" >/dev/null 2>&1; do sleep 0.1; done
for mount in "$scratch"/mnt{1,2}; do
    mkdir "$mount"
    "$weft" mount "$url" "$mount"
done
touch "$scratch"/mnt1/{held,free}
flock --no-fork "$scratch/mnt1/held" sleep 1000 >/dev/null 2>&1 &
holder=$!
disown
sleep 1
for _ in $(seq "$rounds"); do
    kill -9 "$meta"
    serve meta0
    begun=$(date +%s%N)
    until "$weft" ls "$url" >/dev/null 2>&1; do sleep 0.01; done
    flock "$scratch/mnt2/free" true
    echo "the first lock after a restart: $((($(date +%s%N) - begun) / 1000000)) ms"
    flock -n "$scratch/mnt2/held" echo "the lock that was held is lost" || true
done
