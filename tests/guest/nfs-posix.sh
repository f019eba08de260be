#!/bin/bash
# A job of a guest: the rules of POSIX (tests/posix) on a mount of the NFS client of its kernel, over TCP, of a gateway in the same
# guest. $WEFT_BIN and $WEFT_POSIX are the programs; the arguments are those of weft-posix, without its directory.
set -euo pipefail
weft=$WEFT_BIN
dir=/tmp/nfs-posix
export HOME=/tmp/home
mkdir -p "$HOME" /mnt/nfs
fail() {
    echo "FAILED: $*"
    tail -n 30 "$dir"/log/*.log
    dmesg | tail -n 20
    umount -fl /mnt/nfs 2> /dev/null
    "$weft" down --dir "$dir"
    exit 1
}

"$weft" up --dir "$dir" --io 2 --nfs 127.0.0.1:2049 --detach > /tmp/url
"$weft" down --dir "$dir" --only nfs0
sed -i 's/^squash = .*/squash = "none"/' "$dir/weft.toml"
"$weft" up --dir "$dir" --only nfs0 --detach > /dev/null
modprobe nfsv3
options=vers=3,proto=tcp,port=2049,mountproto=tcp,mountport=2049,nolock,addr=127.0.0.1,mountaddr=127.0.0.1
mount -i -t nfs -o "$options" 127.0.0.1:/ /mnt/nfs || fail "mount"
"$WEFT_POSIX" "$@" /mnt/nfs || fail "rules of POSIX"
umount /mnt/nfs
"$weft" fsck "$(cat /tmp/url)" || fail "fsck"
"$weft" down --dir "$dir"
