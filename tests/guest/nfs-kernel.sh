#!/bin/bash
# A job of a guest: the NFS client of its kernel, over TCP, on a cluster and a gateway in the same guest. $WEFT_BIN is the program.
#
#   1 coreutils, find and tar on a tree     4 two users, and root without its rights
#   2 git                                   5 the gateway is killed under load, and starts again
#   3 sqlite                                6 what was written by NFS is there for Weft's own clients, and the other way round
set -euo pipefail
weft=$WEFT_BIN
dir=/tmp/nfs-kernel
export HOME=/tmp/home
mkdir -p "$HOME" /mnt/nfs

# A tree of some files: an emulated gateway takes tens of milliseconds for a call.
tree=/tmp/tree
mkdir -p $tree/below
cp $(ls -d /usr/include/linux/*.h | head -n 30) $tree/below
step() { echo "== $SECONDS s: $*"; }
fail() {
    echo "FAILED: $*"
    tail -n 30 "$dir"/log/*.log
    dmesg | tail -n 20
    # Jobs after this one find no gateway that they did not start.
    umount -fl /mnt/nfs 2> /dev/null
    "$weft" down --dir "$dir"
    exit 1
}

"$weft" up --dir "$dir" --io 2 --nfs 127.0.0.1:2049 --detach > /tmp/url
url=$(cat /tmp/url)
"$weft" down --dir "$dir" --only nfs0
sed -i 's/^squash = .*/squash = "none"/' "$dir/weft.toml"
"$weft" up --dir "$dir" --only nfs0 --detach > /dev/null
modprobe nfsv3
options=vers=3,proto=tcp,port=2049,mountproto=tcp,mountport=2049,nolock,addr=127.0.0.1,mountaddr=127.0.0.1
mount -i -t nfs -o "$options" 127.0.0.1:/ /mnt/nfs || fail "mount"

step "coreutils, find and tar"
cd /mnt/nfs
mkdir -p tree/deep/er
cp -r $tree tree/headers
diff -r $tree tree/headers || fail "the copied tree differs"
tar -C tree -cf tree.tar headers
mkdir again && tar -C again -xf tree.tar
diff -r tree/headers again/headers || fail "what tar unpacked differs"
[ "$(find again -type f | wc -l)" = "$(find $tree -type f | wc -l)" ] || fail "find counts other files"
step "a large file, links, attributes"
dd if=/dev/urandom of=/tmp/random bs=1M count=20 status=none
cp /tmp/random big && sync big && cmp /tmp/random big || fail "a file of 20 MiB differs"
ln big hard && ln -s big soft && [ "$(stat -c %h big)" = 2 ] && cmp soft /tmp/random || fail "links"
mv hard deep && chmod 640 deep && [ "$(stat -c %a big)" = 640 ] || fail "rename and mode"
truncate -s 12345678 big && [ "$(stat -c %s deep)" = 12345678 ] || fail "truncate"
touch -d 2001-02-03T04:05:06Z big && [ "$(stat -c %Y big)" = 981173106 ] || fail "times"
mkfifo fifo && [ -p fifo ] || fail "a fifo"
rm -r again tree.tar deep soft fifo && [ ! -e again ] || fail "rm"
step "a large directory"
mkdir many && (cd many && seq 200 | xargs touch) && [ "$(ls many | wc -l)" = 200 ] || fail "a directory of 200 names"
rm -r many

if command -v git > /dev/null; then
    step "git"
    git init -q --template= repository && cd repository
    git config user.email a@b && git config user.name A
    for n in 1 2 3 4 5; do echo "file $n" > "$n"; done
    git add . && git commit -qm one
    echo x >> 3 && [ "$(git status --porcelain | wc -l)" = 1 ] || fail "git status"
    git clone -q --template= . ../clone && git fsck --strict > /dev/null || fail "git fsck"
    cd ..
fi

if command -v sqlite3 > /dev/null; then
    step "sqlite"
    sqlite3 db "create table t (n integer); begin; $(seq -f 'insert into t values (%g);' 500) commit;"
    [ "$(sqlite3 db 'select sum(n) from t; pragma integrity_check;' | tr '\n' ' ')" = "125250 ok " ] || fail "sqlite"
fi

step "users"
mkdir -m 755 mine && chown 1000:1000 mine
as() { setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"; }
as 1000 sh -c 'echo secret > mine/secret && chmod 600 mine/secret' || fail "a user in its own directory"
! as 1001 cat mine/secret 2> /dev/null || fail "another user reads a private file"
! as 1001 touch mine/other 2> /dev/null || fail "another user writes to the directory"
[ "$(stat -c %u:%g mine/secret)" = 1000:1000 ] || fail "the owner"

step "the gateway is killed under load"
(for n in $(seq 100); do echo "line $n" >> /mnt/nfs/log && sync /mnt/nfs/log; done) &
writer=$!
# The supervisor waits longer each time before it starts a server again that ends soon.
kill_gateway() {
    for _ in $(seq 200); do
        pkill -9 -f 'serve .*--name nfs0' && return
        sleep 0.1
    done
    fail "there is no gateway"
}
for _ in 1 2 3; do
    sleep 1
    kill_gateway
    sleep 0.5
done
wait $writer || fail "the writer got an error"
[ "$(cat /mnt/nfs/log)" = "$(seq -f 'line %g' 100)" ] || fail "lines are lost or doubled"

step "both sides see the same"
"$weft" cat "$url"log | cmp - /mnt/nfs/log || fail "weft cat"
"$weft" cp /tmp/random "${url}by-weft" 2> /dev/null && cmp /tmp/random /mnt/nfs/by-weft || fail "weft cp"
cd /
umount /mnt/nfs
"$weft" fsck "$url" || fail "fsck"
"$weft" down --dir "$dir"
echo "all steps passed"
