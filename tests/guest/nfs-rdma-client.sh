#!/bin/bash
# A job of a guest: `weft nfs` over RDMA on the NFS server of the guest's kernel (svcrdma), and on a gateway. $WEFT_BIN is the
# program.
#
#   for each way in which memory is used: a file of 5 MiB there and back, a long listing, a long name, a measurement
set -euo pipefail
weft=$WEFT_BIN
export HOME=/tmp/home
mkdir -p "$HOME" /tmp/export /run/rpcbind
step() { echo "== $SECONDS s: $*"; }
dir=/tmp/nfs-rdma-client
fail() {
    echo "FAILED: $*"
    dmesg | tail -n 20
    if [ -d "$dir/log" ]; then tail -n 30 "$dir"/log/*.log && "$weft" down --dir "$dir"; fi
    exit 1
}

# What is done with a server: its place, further options, and where the same directory is here, if it is.
use() { # PLACE OPTIONS DIRECTORY
    local place=$1 here=$3 memory how
    for memory in each cached windows copied; do
        step "rdma-memory=$memory"
        how="transport=rdma&rdma-memory=$memory$2"
        "$weft" nfs cp /tmp/random "$place/$memory?$how" || fail "cp to the server"
        [ -z "$here" ] || cmp /tmp/random "$here/$memory" || fail "what was written differs"
        "$weft" nfs cp "$place/$memory?$how" /tmp/back || fail "cp from the server"
        cmp /tmp/random /tmp/back && rm /tmp/back || fail "what was read differs"
        "$weft" nfs cat "$place/$memory?$how" | cmp - /tmp/random || fail "cat"
        [ "$("$weft" nfs ls "$place/many?$how" | grep -c a-name-of)" = 300 ] || fail "a listing"
        "$weft" nfs cp /tmp/short "$place/$long?$how" && "$weft" nfs stat "$place/$long?$how" > /dev/null || fail "a long name"
        "$weft" nfs bench "$place?$how" --bytes 4M --block 256K --small-count 40 --files 20 --runs 1 || fail "bench"
    done
}

if ! command -v rpc.mountd > /dev/null; then
    echo "this job needs the kernel's NFS server: apt-get install nfs-kernel-server"
    exit 1
fi
step "the kernel's server"
modprobe -a nfsd rpcrdma
mount -t tmpfs none /var/lib/nfs && touch /var/lib/nfs/etab /var/lib/nfs/rmtab
mount -t nfsd none /proc/fs/nfsd
rpcbind -w
exportfs -o rw,no_root_squash,insecure,fsid=1 '*:/tmp/export'
rpc.nfsd --no-nfs-version 4 --no-tcp --no-udp --rdma=20049 4
rpc.mountd --no-nfs-version 4 --port 20048
grep -q rdma /proc/fs/nfsd/portlist || fail "the kernel does not serve RDMA"

head -c 5000001 /dev/urandom > /tmp/random
echo short > /tmp/short
long=$(printf 'n%.0s' $(seq 250))
mkdir -p /tmp/many /tmp/export && (cd /tmp/many && seq -f 'a-name-of-some-length-%g' 300 | xargs touch)
cp -r /tmp/many /tmp/export
use "nfs://10.0.0.1:20049/tmp/export" "&mountport=20048" /tmp/export
[ -z "$(dmesg | grep -i 'svcrdma.*fail\|BUG:\|WARNING:')" ] || fail "the kernel complains"

step "a gateway"
"$weft" up --dir "$dir" --io 2 --nfs 127.0.0.1:2050 --detach > /tmp/url
"$weft" cp -r /tmp/many "$(cat /tmp/url)" || fail "names for the gateway"
"$weft" down --dir "$dir" --only nfs0
sed -i 's/^squash = .*/squash = "none"/; s/^clients = .*/clients = ["*"]/; s/^addresses = \["127.0.0.1:2050"\]/&\nrdma_addresses = ["10.0.0.1:20050"]/' "$dir/weft.toml"
"$weft" up --dir "$dir" --only nfs0 --detach > /dev/null
# MOUNT is asked by the same connection.
use "nfs://10.0.0.1:20050" "" ""
"$weft" fsck "$(cat /tmp/url)" || fail "fsck"
"$weft" down --dir "$dir"
echo "all steps passed"
