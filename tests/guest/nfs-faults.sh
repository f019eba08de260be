#!/bin/bash
# A job of a guest: the NFS client of its kernel, over TCP and mounted hard, while what it needs fails under load. The cluster and the
# gateway are in a network namespace of their own, as another host; $WEFT_BIN is the program.
#
#   1 the gateway, an I/O server, the metadata server are killed and start again     2 the network is cut, and heals
#
# After each, what was acknowledged is there, also for Weft's own clients, and the client goes on.
set -euo pipefail
weft=$WEFT_BIN
dir=/tmp/nfs-faults
export HOME=/tmp/home
mkdir -p "$HOME" /mnt/nfs
step() { echo "== $SECONDS s: $*"; }
fail() {
    echo "FAILED: $*"
    tail -n 30 "$dir"/log/*.log
    dmesg | tail -n 20
    umount -fl /mnt/nfs 2> /dev/null
    "$weft" down --dir "$dir"
    exit 1
}

modprobe veth
ip netns add server
ip link add toserver type veth peer name toclient netns server
ip addr add 10.7.0.2/24 dev toserver && ip link set toserver up
ip netns exec server ip addr add 10.7.0.1/24 dev toclient
ip netns exec server ip link set toclient up
ip netns exec server ip link set lo up
ip link set lo up
host() { ip netns exec server "$@"; }

url=$(host "$weft" up --dir "$dir" --io 2 --nfs 10.7.0.1:2049 --detach)
host "$weft" down --dir "$dir" --only nfs0
sed -i -e 's/^squash = .*/squash = "none"/' -e 's/^clients = .*/clients = ["*"]/' "$dir/weft.toml"
host "$weft" up --dir "$dir" --only nfs0 --detach > /dev/null
modprobe nfsv3
options=vers=3,proto=tcp,port=2049,mountproto=tcp,mountport=2049,nolock,hard,addr=10.7.0.1,mountaddr=10.7.0.1
mount -i -t nfs -o "$options" 10.7.0.1:/ /mnt/nfs || fail "mount"

dd if=/dev/urandom of=/tmp/random bs=1M count=16 status=none
# What a program was told: the number of each line is in /tmp/told when fsync has returned for it.
cat > /tmp/writer.py <<'PYTHON'
import os, sys
log, told, end = sys.argv[1:]
file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
number = 0
while not os.path.exists(end):
    number += 1
    line = b"line %08d\n" % number
    assert os.write(file, line) == len(line)
    os.fsync(file)
    with open(told + ".new", "w") as out:
        out.write(str(number))
    os.rename(told + ".new", told)
PYTHON

# Load: lines with fsync, and copies of a file, each committed once and compared without the client's cache. Names are only created: of a
# gateway that was killed, a repeated mkdir or rename may fail (docs/nfs.md).
copies() { # NAME: until /tmp/end is there
    local count=0
    while [ ! -e /tmp/end ]; do
        count=$((count + 1))
        dd if=/tmp/random of="/mnt/nfs/$1.$count" bs=256k conv=fsync status=none || return 1
        dd if="/mnt/nfs/$1.$count" bs=256k iflag=direct status=none | cmp - /tmp/random || return 1
    done
    echo "$count" > "/tmp/copies.$1"
}
under_load() { # NAME COMMAND...
    local name=$1 lines copied number writer copier
    rm -f /tmp/end /tmp/told
    /usr/bin/python3 /tmp/writer.py "/mnt/nfs/$name.log" /tmp/told /tmp/end & writer=$!
    copies "$name" & copier=$!
    until [ -e /tmp/told ]; do sleep 0.1; done
    sleep 1
    "${@:2}"
    # It goes on: it is told of more than during the fault.
    number=$(cat /tmp/told)
    for _ in $(seq 300); do [ "$(cat /tmp/told)" -gt $((number + 3)) ] && break; sleep 0.2; done
    [ "$(cat /tmp/told)" -gt $((number + 3)) ] || fail "$name: the writer does not go on"
    touch /tmp/end
    wait $writer || fail "$name: the writer got an error"
    wait $copier || fail "$name: a copy differs, or got an error"
    lines=$(cat /tmp/told) copied=$(cat "/tmp/copies.$name")
    echo 3 > /proc/sys/vm/drop_caches
    seq -f 'line %08g' "$lines" | cmp - "/mnt/nfs/$name.log" || fail "$name: lines are lost or doubled"
    host "$weft" cat "${url}$name.log" | cmp - "/mnt/nfs/$name.log" || fail "$name: weft cat of the lines"
    for number in $(seq "$copied"); do
        host "$weft" cat "${url}$name.$number" | cmp - /tmp/random || fail "$name: copy $number differs"
        rm "/mnt/nfs/$name.$number"
    done
    echo "$lines lines and $copied copies"
}
# Its supervisor waits longer each time before it starts a server again that ends soon.
kill_server() { # NAME
    for _ in $(seq 300); do
        pkill -9 -f "serve .*--name $1" && return
        sleep 0.1
    done
    fail "there is no $1"
}
killed() { # NAME TIMES
    for _ in $(seq "$2"); do
        kill_server "$1"
        sleep 2
    done
}
cut_network() { # SECONDS
    host ip link set toclient down
    sleep 1
    local before
    before=$(cat /tmp/told)
    sleep "$1"
    [ "$(cat /tmp/told)" = "$before" ] || fail "the network is not cut"
    host ip link set toclient up
}

step "the gateway is killed"
under_load gateway killed nfs0 3
step "an I/O server is killed"
under_load io killed io0 3
step "the metadata server is killed"
under_load meta killed meta0 2
step "the network is cut"
under_load cut cut_network 20
umount /mnt/nfs
host "$weft" fsck "$url" || fail "fsck"
host "$weft" down --dir "$dir"
echo "all steps passed"
