#!/bin/bash
# A job of a guest: `weft nfs` over RDMA on the NFS server of the guest's kernel (svcrdma). $WEFT_BIN is the program.
#
#   for each way in which memory is used: a file of 5 MiB there and back, a long listing, a long name, a measurement
set -euo pipefail
weft=$WEFT_BIN
export HOME=/tmp/home
mkdir -p "$HOME" /tmp/export /run/rpcbind
step() { echo "== $SECONDS s: $*"; }
fail() {
    echo "FAILED: $*"
    dmesg | tail -n 20
    exit 1
}

if ! command -v rpc.mountd > /dev/null; then
    echo "skipped: the package nfs-kernel-server is not installed"
    exit 0
fi
step "the kernel's server"
modprobe -a nfsd rpcrdma
mount -t tmpfs none /var/lib/nfs && touch /var/lib/nfs/etab /var/lib/nfs/rmtab
mount -t nfsd none /proc/fs/nfsd
rpcbind -w
exportfs -o rw,no_root_squash,insecure,fsid=1 '*:/tmp/export'
rpc.nfsd --no-nfs-version 4 --rdma=20049 4
rpc.mountd --no-nfs-version 4 --port 20048
grep -q rdma /proc/fs/nfsd/portlist || fail "the kernel does not serve RDMA"

head -c 5000001 /dev/urandom > /tmp/random
mkdir /tmp/export/many && (cd /tmp/export/many && seq -f 'a-name-of-some-length-%g' 300 | xargs touch)
place="nfs://10.0.0.1:20049/tmp/export"
long=$(printf 'n%.0s' $(seq 250))
for memory in each cached windows copied; do
    step "rdma-memory=$memory"
    how="transport=rdma&rdma-memory=$memory&mountport=20048"
    "$weft" nfs cp /tmp/random "$place/$memory?$how" || fail "cp to the server"
    cmp /tmp/random "/tmp/export/$memory" || fail "what was written differs"
    "$weft" nfs cp "$place/$memory?$how" /tmp/back || fail "cp from the server"
    cmp /tmp/random /tmp/back && rm /tmp/back || fail "what was read differs"
    "$weft" nfs cat "$place/$memory?$how" | cmp - /tmp/random || fail "cat"
    [ "$("$weft" nfs ls "$place/many?$how" | grep -c a-name-of)" = 300 ] || fail "a listing"
    echo x > "/tmp/export/$long"
    "$weft" nfs stat "$place/$long?$how" > /dev/null || fail "a long name"
    "$weft" nfs bench "$place?$how" --bytes 4M --block 256K --small-count 40 --files 20 --runs 1 || fail "bench"
done
[ -z "$(dmesg | grep -i 'svcrdma.*fail\|BUG:\|WARNING:')" ] || fail "the kernel complains"
echo "all steps passed"
