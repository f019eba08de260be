#!/bin/bash
# Measures every bar; figures go to bench/figures/ as text and as JSON.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
if [ -z "${WEFT:-}" ]; then
    scripts/need.sh cc cargo fuse
    cargo build --release --locked --quiet -p weft-cli
    WEFT=$PWD/target/release/weft
fi
export WEFT
runs=${WEFT_RUNS:-5}
figures=bench/figures
mkdir -p "$figures"

measure() {
    local name=$1
    shift
    echo "== weft bench $*"
    "$WEFT" bench "$@" --runs "$runs" --save "$figures/$name.json" | tee "$figures/$name.txt"
}

measure limits limits
measure shared-file shared-file --clients 4 --io 4 --bytes 64M
measure scale shared-file --scale
measure latency latency
measure meta meta
measure meta-sync meta --sync
echo "== bench/mount.sh"
bench/mount.sh | tee "$figures/mount.txt"
