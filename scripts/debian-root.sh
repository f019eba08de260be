#!/bin/bash
# Makes a minimal Debian in a directory, to install packages in: scripts/debian-root.sh DIR [SUITE] [MIRROR]
# It has what debootstrap calls minbase, with the lists of apt, and the packages that packaging/Containerfile installs in its cache, so
# that nothing is fetched later. Made once; later calls find it. It needs root and debootstrap.
set -euo pipefail
dir=${1:?"usage: scripts/debian-root.sh DIR [SUITE] [MIRROR]"}
suite=${2:-bookworm}
mirror=${3:-$({ sed -n 's/^URIs: *\([^ ]*\).*/\1/p' /etc/apt/sources.list.d/*.sources
    sed -n 's/^deb  *\(\[[^]]*\]  *\)\{0,1\}\([^ ]*\) .*/\2/p' /etc/apt/sources.list; } 2>/dev/null | head -n 1 || true)}
cached=fuse3
made_of="$suite minbase, $cached"
[ "$(cat "$dir/etc/weft-made-of" 2>/dev/null)" != "$made_of" ] || exit 0

new=$dir.new
rm -rf --one-file-system "$new" "$dir"
mkdir -p "$new"
log=$(mktemp)
trap 'rm -rf --one-file-system "$log" "$new"' EXIT
make() {
    debootstrap --variant=minbase "$suite" "$new" "$mirror"
    # How packages are reached from here.
    cp -r /etc/apt/apt.conf.d/. "$new/etc/apt/apt.conf.d/" 2>/dev/null || true
    rm -f "$new/etc/apt/apt.conf.d/docker-clean" # it would empty the cache
    cp /etc/resolv.conf /etc/hosts "$new/etc/" 2>/dev/null || true
    chroot "$new" apt-get update -q
    chroot "$new" apt-get install -y -q --no-install-recommends --download-only $cached
}
echo "making a minimal $suite in $dir" >&2
make >"$log" 2>&1 || { tail -n 20 "$log" >&2; exit 1; }
echo "$made_of" >"$new/etc/weft-made-of"
mv "$new" "$dir"
