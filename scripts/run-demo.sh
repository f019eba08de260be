#!/bin/bash
# Demonstrates a whole file system: builds, starts 1 metadata and 4 I/O servers, mounts, copies a tree in and
# out in every way, compares the copies, lets 4 processes write and read one shared 1 GiB file, prints what came of it,
# and stops everything.
#   WEFT_SCRATCH=DIR   scratch directory (default: /dev/shm if it has space, else /tmp)
#   WEFT_TREE=DIR      the tree to copy (default: /usr/include, else this repository's sources)
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"

scripts/need.sh cc cargo fuse
minutes=$(((12 + $(nproc)) / $(nproc)))
[ -x target/release/weft-bench ] || echo "weft: building, which takes about $minutes minutes the first time on $(nproc) processors" >&2
cargo build --release --locked --quiet -p weft-cli -p weft-bench
weft=$PWD/target/release/weft

room_kib() { df -Pk "$1" 2>/dev/null | awk 'NR == 2 { print $4 }'; }
default=/tmp
[ "$(room_kib /dev/shm || echo 0)" -gt $((6 << 20)) ] 2>/dev/null && default=/dev/shm
scratch=$(mktemp -d "${WEFT_SCRATCH:-$default}/weft-run.XXXXXX")
mount_pid= bench_pid=

finish() {
    trap - EXIT INT TERM HUP
    [ -z "$bench_pid" ] || { kill "$bench_pid" && wait "$bench_pid"; } 2>/dev/null || true
    if [ -n "$mount_pid" ]; then
        "$weft" umount "$scratch/mnt" 2>/dev/null || "$weft" umount --lazy "$scratch/mnt" 2>/dev/null || kill "$mount_pid" 2>/dev/null || true
        wait "$mount_pid" 2>/dev/null || true
    fi
    [ ! -e "$scratch/cluster/weft.toml" ] || "$weft" down --dir "$scratch/cluster" >/dev/null || true
    rm -rf "$scratch"
}
trap finish EXIT
trap 'finish; exit 130' INT
trap 'finish; exit 143' TERM HUP

sums() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum); }

tree=${WEFT_TREE:-/usr/include}
if [ ! -d "$tree" ]; then
    tree=$scratch/sources
    mkdir "$tree" && git ls-files -z | xargs -0 cp --parents -t "$tree"
fi

echo "weft: starting 1 metadata and 4 I/O servers, copying $tree in and out, then 4 processes on one file of 1 GiB; about a minute" >&2
export HOME=$scratch # the client key goes here, not to your own configuration
url=$("$weft" up --dir "$scratch/cluster" --io 4 --detach)
mkdir "$scratch/mnt" "$scratch/out"
setsid "$weft" mount --foreground "$url" "$scratch/mnt" 2>"$scratch/mount.log" &
mount_pid=$!
for _ in $(seq 100); do mountpoint -q "$scratch/mnt" && break; sleep 0.1; done
mountpoint -q "$scratch/mnt" || { cat "$scratch/mount.log" >&2; exit 1; }

"$weft" bench demo --url "$url" --mount "$scratch/mnt" --mount-pid "$mount_pid" \
    --source "$tree" --out "$scratch/out" --dir "$scratch" --runs "${WEFT_RUNS:-3}" >"$scratch/rates" &
bench_pid=$!
wait "$bench_pid"
bench_pid=

sums "$tree" >"$scratch/expected"
copies=(mnt/by-mount mnt/by-cp out/by-mount out/by-cp)
for copy in "${copies[@]}"; do
    sums "$scratch/$copy" | cmp - "$scratch/expected"
    diff -r --no-dereference "$tree" "$scratch/$copy"
done

echo
echo "$(wc -l <"$scratch/expected") files of $tree, copied by the mount and by weft cp, in and out: all 4 copies are identical."
echo
cat "$scratch/rates"
echo
echo "== details: the servers, in $scratch/cluster"
"$weft" status --dir "$scratch/cluster"
"$weft" df "$url"
echo
echo "Everything is stopped and removed again. Next, try:"
echo "  $weft up --dir ~/weft-demo --io 4 --detach      a file system that stays; README.md goes on from there"
echo "  $weft help start                                the first ten minutes"
