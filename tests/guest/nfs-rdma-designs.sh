#!/bin/bash
# A job of a guest: a gateway of the Read-Read design, and `weft nfs` that reads long replies out of its memory, on a real adapter.
# $WEFT_BIN is the program, $WEFT_TEST_HOST the address of the adapter.
#
#   for each way in which the gateway's memory is registered: a file of 5 MiB there and back, a long listing, a measurement; what was
#   exposed is so no more. Beside it the Read-Write design, in which nothing is exposed.
set -euo pipefail
weft=$WEFT_BIN
host=$WEFT_TEST_HOST
dir=/tmp/nfs-rdma-designs
export HOME=/tmp/home
mkdir -p "$HOME"
step() { echo "== $SECONDS s: $*"; }
fail() {
    echo "FAILED: $*"
    tail -n 30 "$dir"/log/*.log
    dmesg | tail -n 20
    "$weft" down --dir "$dir"
    exit 1
}
count() { "$weft" nfs status --dir "$dir" --json | grep -o "\"$1\": *[0-9]*" | grep -o '[0-9]*$'; }

"$weft" up --dir "$dir" --io 2 --nfs 127.0.0.1:2050 --detach > /tmp/url
url=$(cat /tmp/url)
head -c 5000001 /dev/urandom > /tmp/random
mkdir -p /tmp/many && (cd /tmp/many && seq -f 'a-name-of-some-length-%g' 300 | xargs touch)
"$weft" cp -r /tmp/many "$url" || fail "names for the gateway"
sed -i -e 's/^squash = .*/squash = "none"/' -e 's/^clients = .*/clients = ["*"]/' \
    -e "/^\[\[gateway\]\]/a rdma_addresses = [\"$host:20050\"]\nrdma_design = \"read-write\"\nrdma_memory = \"pool\"" "$dir/weft.toml"

serve() { # DESIGN MEMORY
    "$weft" down --dir "$dir" --only nfs0
    sed -i -e "s/^rdma_design = .*/rdma_design = \"$1\"/" -e "s/^rdma_memory = .*/rdma_memory = \"$2\"/" "$dir/weft.toml"
    "$weft" up --dir "$dir" --only nfs0 --detach > /dev/null
}
use() { # DESIGN MEMORY
    local how="transport=rdma&rdma-design=$1" place="nfs://$host:20050"
    step "$1, $2"
    serve "$1" "$2"
    "$weft" nfs cp /tmp/random "$place/$1-$2?$how" || fail "cp to the gateway"
    "$weft" nfs cp "$place/$1-$2?$how" /tmp/back || fail "cp from the gateway"
    cmp /tmp/random /tmp/back && rm /tmp/back || fail "what was read differs"
    [ "$("$weft" nfs ls "$place/many?$how" | grep -c a-name-of)" = 300 ] || fail "a listing"
    "$weft" nfs bench "$place?$how" --bytes 4M --block 256K --small-count 40 --files 20 --runs 1 || fail "bench"
    "$weft" cat "$url$1-$2" | cmp - /tmp/random || fail "weft cat"
    echo "exposed: $(count rdma_exposed_replies) replies of $(count rdma_exposed_bytes) bytes for $(count rdma_exposed_us) us"
    [ "$(count rdma_exposed_now_bytes)" = 0 ] || fail "replies are still exposed"
}
use read-write pool
[ "$(count rdma_exposed_replies)" = 0 ] || fail "the Read-Write design exposes replies"
for memory in pool cached each windows; do
    use read-read $memory
    [ "$(count rdma_exposed_bytes)" -ge 5000001 ] || fail "the file was not read out of the gateway's memory"
done
"$weft" fsck "$url" || fail "fsck"
"$weft" down --dir "$dir"
echo "all steps passed"
