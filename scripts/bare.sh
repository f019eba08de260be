#!/bin/bash
# Installs a package in a bare Debian, made for it and removed again, and times the way to the first file there:
#   scripts/bare.sh dist/weft_*.deb [SUITE] [MIRROR]
# It needs root and debootstrap. The time is that of what a user types: apt install, weft up, weft cp.
set -euo pipefail
package=${1:?"usage: scripts/bare.sh PACKAGE.deb [SUITE] [MIRROR]"}
suite=${2:-bookworm}
root=$(mktemp -d "${TMPDIR:-/var/tmp}/weft-bare.XXXXXX")
finish() {
    trap - EXIT
    chroot "$root" weft down --dir /demo >/dev/null 2>&1 || true
    for below in dev/shm dev/null dev/urandom dev/fuse proc; do umount -l "$root/$below" 2>/dev/null || true; done
    rm -rf --one-file-system "$root"
}
trap finish EXIT

"$(dirname "$0")/debian-root.sh" "$root" "$suite" ${3:+"$3"}
cp "$package" "$root/weft.deb"
# As a container has them: the processes of its own, and a few devices.
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev/shm" 2>/dev/null || { mkdir -p "$root/dev/shm"; mount -t tmpfs tmpfs "$root/dev/shm"; }
for device in null urandom; do
    [ -e "$root/dev/$device" ] || : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done

begun=$(date +%s.%N)
chroot "$root" sh -euc '
    export DEBIAN_FRONTEND=noninteractive HOME=/root
    apt-get update -q
    apt-get install -y -q --no-install-recommends /weft.deb
    weft version
    export WEFT_URL=$(weft up --dir /demo --detach)
    weft cp /etc/os-release weft:/first
    weft cat weft:/first | cmp - /etc/os-release
    weft run -- cat /weft/first | cmp - /etc/os-release
    weft down --dir /demo
' >"$root/said" 2>&1 || { cat "$root/said" >&2; exit 1; }
ended=$(date +%s.%N)
grep '^weft ' "$root/said" | head -n 1
echo "$suite: from nothing to the first file in $(echo "$ended $begun" | awk '{ printf "%.1f", $1 - $2 }') s"
