#!/bin/bash
# The benchmarks over RDMA in emulated guests with software adapters (tests/guest): one guest, then two on a link.
# Counts are as on any adapter; times are meaningless. Results go to bench/figures/rdma/ as text, JSON and charts.
#
# `bench/rdma.sh alone` and `bench/rdma.sh pair` measure one of the two. WEFT is the program.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-both} in
    both) sets="alone pair" ;;
    alone | pair) sets=$1 ;;
    *) echo "usage: bench/rdma.sh [alone|pair]" >&2; exit 2 ;;
esac
weft=$(realpath "${WEFT:-target/release/weft}")
seconds=${WEFT_SECONDS:-1500}
figures=$PWD/bench/figures/rdma
jobs=$(mktemp -d "$PWD/target/guest-bench.XXXXXX")
trap 'rm -rf "$jobs"' EXIT
mkdir -p "$figures"

# Guests have their own /tmp. The program has the same path as on the host.
case $weft in /tmp/* | /run/* | /dev/shm/*) echo "WEFT must not be in /tmp, /run or /dev/shm" >&2; exit 2 ;; esac

prelude() {
    cat <<JOB
set -u
weft='$weft'
failed=0
measure() {
    local name=\$1
    shift
    echo "== weft bench \$*"
    timeout 400 "\$weft" bench "\$@" --save "/share/\$name.json" > "/share/\$name.txt" 2>&1 || failed=1
    cat "/share/\$name.txt"
}
JOB
}

# With a chart, and the operations of the adapters.
alone_job() {
    prelude
    cat <<'JOB'
figure() { measure "$@" --svg "/share/$1.svg"; }
figure registration-costs registration-costs --runs 3 --rounds 5 --pages 1024
figure group-registration group-registration --runs 3
figure small small --transport rdma --runs 1 --rounds 10 --size 128,4K,16K,64K --counters
figure bulk bulk --transport rdma --runs 1 --rounds 1 --bytes 8M --unit 64K,1M,8M --counters
figure subarray subarray --transport rdma --runs 1 --rounds 2 --array 1024,2048 --counters
figure subarray-tile subarray --tile 256x192 --transport rdma --runs 1 --rounds 1 --counters
exit $failed
JOB
}

server_job() {
    prelude
    cat <<'JOB'
"$weft" up --dir /run/cluster --io 4 --bind 10.0.0.1 --detach && cp /run/cluster/client.key /share/client.key
until [ -e /share/measured ]; do sleep 1; done
"$weft" down --dir /run/cluster
JOB
}

client_job() {
    prelude
    cat <<'JOB'
for _ in $(seq 120); do [ -s /share/client.key ] && break; sleep 1; done
elsewhere="--url weft://10.0.0.1:7400/ --key /share/client.key"
measure shared-file shared-file $elsewhere --transport rdma,tcp --memory any --clients 2 --bytes 8M --runs 1
measure tile tile $elsewhere --transport rdma,tcp --element 24 --method multiple,list --way write,read --least-bytes 1M --tile 256x192 \
    --runs 1 --counters
touch /share/measured
exit $failed
JOB
}

alone_job > "$jobs/alone"
server_job > "$jobs/server"
client_job > "$jobs/client"
status=0
for set in $sets; do
    share=$jobs/share-$set
    mkdir "$share"
    case $set in
        alone) tests/guest/guest.sh run --seconds "$seconds" --share "$share" "$jobs/alone" || status=$? ;;
        pair) tests/guest/guest.sh pair --seconds "$seconds" --share "$share" "$jobs/server" "$jobs/client" || status=$? ;;
    esac
    find "$share" \( -name '*.json' -o -name '*.txt' -o -name '*.svg' \) -exec cp {} "$figures/" \;
done
exit $status
