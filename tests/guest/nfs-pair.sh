#!/bin/bash
# A job of each of two guests: `nfs-pair.sh serves` has a cluster, a gateway and a mount of Weft's, `nfs-pair.sh asks` mounts the
# gateway by the NFS client of its kernel. Both count in one file and append to another, under fcntl(2) locks of both, at the same time; each
# sees all that the other has done. $WEFT_BIN is the program.
#
# ```text
#   serves   gateway, mount ── /share/pair.serves ──►   ┐   count 1 2 4 …   ┐ both have the same lines: 1, 2, 3, … without
#   asks     mount by NFS   ── /share/pair.asks   ──►   ┘   count 3 5 6 …   ┘ a gap, and so has `weft cat`
# ```
set -euo pipefail
weft=$WEFT_BIN
side=$1
rounds=60
dir=/tmp/nfs-pair
here=$([ "$side" = serves ] && echo /mnt/weft || echo /mnt/nfs)
export HOME=/tmp/home
mkdir -p "$HOME" "$here" /run/rpcbind
step() { echo "== $SECONDS s: $*"; }
fail() {
    echo "FAILED: $*"
    if [ -d "$dir" ]; then tail -n 30 "$dir"/log/*.log; fi
    dmesg | tail -n 20
    exit 1
}
within() { # SECONDS COMMAND...
    local end=$((SECONDS + $1))
    until "${@:2}"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.2
    done
}
command -v rpcbind rpc.statd > /dev/null || {
    echo "this job needs rpcbind and rpc.statd: apt-get install rpcbind nfs-common"
    exit 1
}
rpcbind -f -w > /dev/null 2>&1 &
within 20 rpcinfo -p 127.0.0.1 > /dev/null 2>&1 || fail "rpcbind"

serve() {
    "$weft" up --dir "$dir" --io 2 --nfs 10.0.0.1:2049 --detach > /tmp/url
    "$weft" down --dir "$dir" --only nfs0
    sed -i -e 's/^squash = .*/squash = "none"/' -e 's/^clients = .*/clients = ["10.0.0.2"]/' \
        -e '/^\[\[gateway\]\]/a rpcbind = true' "$dir/weft.toml"
    "$weft" up --dir "$dir" --only nfs0 --detach > /dev/null
    within 20 rpcinfo -t 10.0.0.1 100021 4 > /dev/null || fail "the gateway is not registered"
    "$weft" mount --key "$dir/client.key" "$(cat /tmp/url)" "$here" || fail "weft mount"
    echo 0 > "$here/counter"
    touch "$here/log"
}
mount_by_nfs() {
    mount -t tmpfs none /var/lib/nfs && mkdir -p /var/lib/nfs/sm /var/lib/nfs/sm.bak && touch /var/lib/nfs/state
    rpc.statd --no-notify > /dev/null 2>&1 || fail "rpc.statd"
    modprobe nfsv3
    local options=vers=3,proto=tcp,mountproto=tcp,addr=10.0.0.1,mountaddr=10.0.0.1,mountport=2049,hard
    mount -i -t nfs -o "$options" 10.0.0.1:/ "$here" || fail "mount"
}

# Each round: the locks, the number in `counter`, which the last line of `log` has to have, the next number into both. A client of NFS
# has another's data of a file, and others have its own, only where that file was locked.
cat > /tmp/count.py <<'PYTHON'
import fcntl, os, sys
side, here, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
counter = os.open(here + "/counter", os.O_RDWR)
log = os.open(here + "/log", os.O_RDWR | os.O_APPEND)
for turn in range(rounds):
    for file in (counter, log):
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
    number = int(os.pread(counter, 20, 0))
    lines = os.pread(log, 1 << 20, 0).decode().splitlines()
    last = int(lines[-1].split()[0]) if lines else 0
    assert last == number, f"{side}: the counter says {number}, the log {last}"
    assert len(lines) == number, f"{side}: {len(lines)} lines at {number}"
    os.write(log, f"{number + 1} {side} {turn}\n".encode())
    os.pwrite(counter, f"{number + 1}\n".encode(), 0)
    for file in (log, counter):
        fcntl.lockf(file, fcntl.LOCK_UN, 1, 0)
PYTHON

if [ "$side" = serves ]; then
    step "a cluster, a gateway and a mount"
    serve
    touch /share/pair.serves
    within 240 [ -e /share/pair.asks ] || fail "the other guest has not mounted"
else
    within 240 [ -e /share/pair.serves ] || fail "the other guest does not serve"
    step "a mount by NFS"
    mount_by_nfs
    touch /share/pair.asks
fi
step "both count"
/usr/bin/python3 /tmp/count.py "$side" "$here" "$rounds" || fail "what the other guest has done is not seen"
touch "/share/pair.$side.counted"
within 240 [ -e /share/pair.asks.counted ] && within 240 [ -e /share/pair.serves.counted ] || fail "the other guest has not counted"

step "both have all lines"
# Under a lock, as NFS promises no more.
flock "$here/counter" true && flock "$here/log" true
awk '{ print $1 }' "$here/log" | cmp - <(seq $((2 * rounds))) || fail "numbers are lost or doubled"
[ "$(cat "$here/counter")" = $((2 * rounds)) ] || fail "the counter"
for name in serves asks; do
    awk -v side=$name '$2 == side { print $3 }' "$here/log" | cmp - <(seq 0 $((rounds - 1))) || fail "lines of $name"
done
turns=$(awk '$2 != side { count++; side = $2 } END { print count }' "$here/log")
echo "$((2 * rounds)) lines, the side changed $turns times"
[ "$turns" -ge 6 ] || fail "they did not count at the same time"

if [ "$side" = asks ]; then
    umount "$here"
else
    "$weft" cat "$(cat /tmp/url)log" | cmp - "$here/log" || fail "weft cat"
    within 120 [ -e /share/nfs-pair-asks.done ] || fail "the other guest does not end"
    umount "$here"
    "$weft" fsck "$(cat /tmp/url)" || fail "fsck"
    "$weft" down --dir "$dir"
fi
echo "all steps passed"
