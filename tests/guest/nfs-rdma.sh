#!/bin/bash
# A job of a guest: the NFS client of its kernel, over RDMA, on a cluster and a gateway in the same guest. $WEFT_BIN is the program,
# $WEFT_TEST_HOST the address of the adapter.
#
#   1 files of many sizes, without the client's cache      3 names, a large directory, a long symbolic link
#   2 the gateway's counters: payloads went by RDMA        4 the gateway is killed under load, and starts again
set -euo pipefail
weft=$WEFT_BIN
host=$WEFT_TEST_HOST
dir=/tmp/nfs-rdma
mnt=/mnt/nfs-rdma
mkdir -p $mnt
step() { echo "== $SECONDS s: $*"; }
fail() {
    echo "FAILED: $*"
    tail -n 30 "$dir"/log/*.log
    dmesg | tail -n 20
    "$weft" nfs status --dir "$dir" || true
    umount -fl $mnt 2> /dev/null || true
    "$weft" down --dir "$dir"
    exit 1
}

"$weft" up --dir "$dir" --io 2 --nfs "$host:2049" --detach > /tmp/nfs-rdma.url
url=$(cat /tmp/nfs-rdma.url)
"$weft" down --dir "$dir" --only nfs0
sed -i -e 's/^squash = .*/squash = "none"/' -e 's/^clients = .*/clients = ["*"]/' \
    -e "/^\[\[gateway\]\]/a rdma_addresses = [\"$host:20049\"]" "$dir/weft.toml"
"$weft" up --dir "$dir" --only nfs0 --detach > /dev/null
"$weft" nfs status --dir "$dir" | grep -q "$host:20049 (rdma)" || fail "the gateway does not listen over RDMA"
modprobe -a nfsv3 rpcrdma
options=vers=3,proto=rdma,port=20049,mountproto=tcp,mountport=2049,nolock,addr=$host,mountaddr=$host
mount -i -t nfs -o "$options" "$host:/" $mnt || fail "mount"
"$weft" nfs clients --dir "$dir" | grep -q rdma || fail "the client is not shown with its transport"

count() { "$weft" nfs status --dir "$dir" --json | grep -o "\"$1\": *[0-9]*" | grep -o '[0-9]*$'; }
uncached() { echo 3 > /proc/sys/vm/drop_caches; }

step "files of many sizes"
cd $mnt
dd if=/dev/urandom of=/tmp/random bs=1M count=8 status=none
wrong=
sizes="0 1 3 500 3900 4096 5000 65536 262147 1048576 3145735"
for size in $sizes; do head -c "$size" /tmp/random > "size-$size"; done
sync size-* && uncached
for size in $sizes; do head -c "$size" /tmp/random | cmp - "size-$size" || wrong="$wrong $size"; done
[ -z "$wrong" ] || fail "files of these sizes differ:$wrong"
cp /tmp/random big && sync big && uncached && cmp /tmp/random big || fail "a file of 8 MiB differs"
# Inside, not at words, and without the page cache.
dd if=/tmp/random of=big bs=4097 seek=100 count=300 conv=notrunc status=none && sync big && uncached
dd if=big bs=4097 skip=100 count=300 status=none | cmp - <(head -c $((4097 * 300)) /tmp/random) || fail "a part differs"
dd if=/tmp/random of=direct bs=1M count=2 oflag=direct status=none
dd if=direct bs=512k iflag=direct status=none | cmp - <(head -c 2M /tmp/random) || fail "direct access differs"

step "payloads went by RDMA"
read=$(count rdma_read_bytes) written=$(count rdma_written_bytes)
echo "read $read of $(count written_bytes) bytes of WRITEs, written $written for $(count read_bytes) bytes of READs"
[ "$read" -ge $((12 << 20)) ] && [ "$written" -ge $((12 << 20)) ] || fail "payloads did not go by RDMA"

step "names"
mkdir -p tree/deep && cp /usr/include/linux/f*.h tree/deep && tar -C tree -cf /tmp/tree.tar deep && uncached
mkdir again && tar -C again -xf /tmp/tree.tar && diff -r tree again || fail "trees differ"
mkdir many && (cd many && seq 150 | sed 's/^/a-name-that-is-rather-long-/' | xargs touch) && uncached
[ "$(ls many | wc -l)" = 150 ] || fail "a directory of 150 names"
long=$(printf 'x%.0s' $(seq 1000))
ln -s "$long" link && uncached && [ "$(readlink link)" = "$long" ] || fail "a long symbolic link"
mv again/deep moved && rm -r tree again many moved link size-* && [ "$(ls)" = "$(printf 'big\ndirect')" ] || fail "rm"

step "the gateway is killed under load"
(for n in $(seq 30); do echo "line $n" >> log && sync log; done) &
writer=$!
sleep 1
pkill -9 -f 'serve .*--name nfs0' || fail "there is no gateway"
wait $writer || fail "the writer got an error"
uncached && [ "$(cat log)" = "$(seq -f 'line %g' 30)" ] || fail "lines are lost or doubled"

step "both sides see the same"
"$weft" cat "${url}direct" | cmp - <(head -c 2M /tmp/random) || fail "weft cat"
cd /
umount $mnt
"$weft" fsck "$url" || fail "fsck"
"$weft" down --dir "$dir"
echo "all steps passed"
