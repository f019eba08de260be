#!/bin/bash
# A job of a guest: locks of the NFS client of its kernel, against a mount of Weft's. The cluster and the gateway are in a network
# namespace of their own, with a port mapper there, as another host; $WEFT_BIN is the program.
#
#   1 fcntl locks of both sides exclude each other     3 the gateway is killed: the kernel reclaims what it had
#   2 the kernel waits for the mount, and is called    4 what was reclaimed is given back
set -euo pipefail
weft=$WEFT_BIN
dir=/tmp/nfs-locks
export HOME=/tmp/home
mkdir -p "$HOME" /mnt/nfs /mnt/weft
step() { echo "== $SECONDS s: $*"; }
fail() {
    echo "FAILED: $*"
    tail -n 30 "$dir"/log/*.log
    dmesg | tail -n 20
    exit 1
}
command -v rpcbind rpc.statd > /dev/null || {
    echo "this job needs rpcbind and rpc.statd: apt-get install rpcbind nfs-common"
    exit 1
}

# Locks by fcntl(2): `lock FILE try|wait COMMAND...` runs the command with the file locked; 9: another has it.
lock=/tmp/lock.py
cat > $lock <<'PYTHON'
import fcntl, subprocess, sys
file = open(sys.argv[1], "r+")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if sys.argv[2] == "try" else 0), 10, 5)
except BlockingIOError:
    sys.exit(9)
sys.exit(subprocess.call(sys.argv[3:]))
PYTHON
lock() { /usr/bin/python3 $lock "$@"; }
is_free() { lock "$1" try true; }
is_held() { local status=0; lock "$1" try true || status=$?; [ $status = 9 ]; }
within() { # SECONDS COMMAND...
    local end=$((SECONDS + $1))
    until "${@:2}"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.2
    done
}

modprobe veth
ip netns add server
ip link add toserver type veth peer name toclient netns server
ip addr add 10.7.0.2/24 dev toserver && ip link set toserver up
ip netns exec server ip addr add 10.7.0.1/24 dev toclient
ip netns exec server ip link set toclient up
ip netns exec server ip link set lo up
ip link set lo up
mkdir -p /run/rpcbind /var/lib/nfs/sm /var/lib/nfs/sm.bak /var/lib/nfs/rpc_pipefs
mount -t tmpfs none /var/lib/nfs && mkdir -p /var/lib/nfs/sm /var/lib/nfs/sm.bak && touch /var/lib/nfs/state
# A host of its own has files in /run of its own.
host() { ip netns exec server unshare -m sh -c 'mount -t tmpfs none /run; mkdir /run/rpcbind; exec "$@"' sh "$@"; }
host rpcbind -f -w > /dev/null 2>&1 &
rpcbind -f -w > /dev/null 2>&1 &
within 20 rpcinfo -p 127.0.0.1 > /dev/null 2>&1 || fail "rpcbind"
rpc.statd --no-notify > /dev/null 2>&1 || fail "rpc.statd"

host "$weft" up --dir "$dir" --io 1 --nfs 10.7.0.1:2049 --detach > /dev/null
host "$weft" down --dir "$dir" > /dev/null
sed -i -e 's/^squash = .*/squash = "none"/' -e 's/^clients = .*/clients = ["*"]/' -e '/^\[\[gateway\]\]/a rpcbind = true' "$dir/weft.toml"
url=$(host "$weft" up --dir "$dir" --io 1 --detach)
modprobe nfsv3
within 20 rpcinfo -t 10.7.0.1 100021 4 > /dev/null || fail "the gateway is not registered"
mount -i -t nfs -o vers=3,proto=tcp,mountproto=tcp,addr=10.7.0.1,mountaddr=10.7.0.1,mountport=2049 10.7.0.1:/ /mnt/nfs || fail "mount"
nsenter --net=/run/netns/server "$weft" mount --key "$dir/client.key" "$url" /mnt/weft || fail "weft mount"
echo 0123456789012345678901234567890 > /mnt/nfs/f

step "each side's locks keep the other out"
within 20 [ -e /mnt/weft/f ] || fail "the file is not there"
lock /mnt/nfs/f wait sleep 1000 & by_nfs=$!
within 30 is_held /mnt/weft/f || fail "a lock by NFS does not hold on the mount"
pkill -P $by_nfs && wait $by_nfs || true
within 30 is_free /mnt/weft/f || fail "a lock by NFS is not given back"
lock /mnt/weft/f wait sleep 1000 & by_weft=$!
within 30 is_held /mnt/nfs/f || fail "a lock of the mount does not hold by NFS"

step "NFS waits for the mount"
(lock /mnt/nfs/f wait sleep 1000) & by_nfs=$!
sleep 2
begun=$SECONDS
pkill -P $by_weft && wait $by_weft || true
within 20 is_held /mnt/weft/f || fail "who waited by NFS has not got the lock"
[ $((SECONDS - begun)) -lt 20 ] || fail "the client was not called"

step "the gateway is killed: the kernel reclaims its lock"
pkill -9 -f 'serve .*--name nfs0' || fail "there is no gateway"
is_held /mnt/weft/f || fail "it is free when the gateway is killed"
sleep 30
is_held /mnt/weft/f || fail "the lock was not reclaimed"
grep -q "may reclaim their locks" "$dir"/log/nfs0.log || fail "no grace"

step "what was reclaimed is given back"
pkill -f 'sleep 1000' || true
within 30 is_free /mnt/weft/f || fail "a reclaimed lock is not given back"
is_free /mnt/nfs/f || fail "a new lock by NFS after the grace"
umount /mnt/nfs
umount /mnt/weft
host "$weft" down --dir "$dir" > /dev/null
echo "all steps passed"
