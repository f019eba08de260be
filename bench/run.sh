#!/bin/bash
# Measures every bar. Results go to bench/figures/ as text, JSON and, for noncontiguous access, charts.
# `bench/run.sh quick` measures some cases of noncontiguous access only, in a few minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
case ${1:-full} in
    quick | full) set=${1:-full} ;;
    *) echo "usage: bench/run.sh [quick|full]" >&2; exit 2 ;;
esac
if [ -z "${WEFT:-}" ]; then
    scripts/need.sh cc cargo fuse
    cargo build --release --locked --quiet -p weft-cli -p weft-bench
    WEFT=$PWD/target/release/weft
fi
export WEFT
runs=${WEFT_RUNS:-5}
disk=${WEFT_DISK:-/var/tmp}
figures=bench/figures
mkdir -p "$figures"

measure() {
    local name=$1
    shift
    echo "== weft bench $*"
    "$WEFT" bench "$@" --runs "$runs" --save "$figures/$name.json" | tee "$figures/$name.txt"
}

# Noncontiguous access: with a chart, and the costs of each method.
access() {
    local name=$1
    shift
    measure "$name" "$@" --counters --svg "$figures/$name.svg"
}

# Was the servers' and the client's choice right, over all that was measured?
verdict() {
    awk '/ within 10 % of the fastest plan in / { right += $(NF - 3); all += $(NF - 1) }
         / slower than one access for each piece in / { not_slower += $(NF - 3); against += $(NF - 1) }
         END { printf "choices within 10 %% of the fastest plan: %d of %d; no more than 5 %% slower than an access for each piece: %d of %d\n",
                      right, all, not_slower, against }' "$@" | tee "$figures/verdict.txt"
}

if [ "$set" = quick ]; then
    access tile tile --element 24 --memory contiguous
    access block-column block-column --size 512,2048
    access transfer transfer --piece 128,8K --array 1024
    access blocks blocks --blocks 4,64
    access btio btio --class w
    access random random --piece 64,4K --file-bytes 256M
    access tile-uncached tile --element 3 --memory contiguous --uncached --dir "$disk"
    verdict "$figures"/{tile,block-column,transfer,blocks,btio,random,tile-uncached}.txt
    exit
fi

# RDMA and its comparisons; over RDMA itself if this host has an adapter (in guests: bench/rdma.sh).
figure() {
    local name=$1
    shift
    measure "$name" "$@" --svg "$figures/$name.svg"
}

figure registration-costs registration-costs
figure group-registration group-registration
figure small small
figure bulk bulk
figure subarray subarray
figure subarray-tile subarray --tile

measure limits limits
measure shared-file shared-file --clients 4 --io 4 --bytes 64M
measure scale shared-file --scale
measure latency latency
measure meta meta
measure meta-sync meta --sync
echo "== bench/small-files.sh"
bench/small-files.sh | tee "$figures/small-files.txt"
echo "== bench/rm.sh"
bench/rm.sh 100000 "$runs" | tee "$figures/rm.txt"
echo "== bench/mount.sh"
bench/mount.sh | tee "$figures/mount.txt"
if command -v mpicc.mpich >/dev/null; then
    cargo build --release --locked --quiet -p weft-capi -p weft-mpi
    echo "== bench/mpi.sh"
    bench/mpi.sh | tee "$figures/mpi.txt"
fi
echo "== bench/programs.sh"
WEFT_JSON=$figures/programs.json bench/programs.sh | tee "$figures/programs.txt"

access tile tile
access block-column block-column
access transfer transfer
access blocks blocks
access btio btio
access random random
# On a disk: not cached on the servers, and writes including the time until they are durable.
for name in tile block-column btio; do
    access "$name-uncached" "$name" --uncached --way read,rewrite --dir "$disk"
    access "$name-sync" "$name" --sync --way write --dir "$disk"
done
access random-uncached random --uncached --way read --file-bytes 256M --dir "$disk"
verdict "$figures"/{tile,block-column,btio}{,-uncached,-sync}.txt "$figures"/{transfer,blocks,random,random-uncached}.txt
