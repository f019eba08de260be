#!/bin/bash
# Sequential writes and reads of 1 MiB through the mount, beside one native client: medians of MiB/s.
set -euo pipefail
cd "$(dirname "$0")/.."
weft=${WEFT:-$PWD/target/release/weft}
runs=${WEFT_RUNS:-5}
mib=${WEFT_MIB:-1024}
scratch=$(mktemp -d /dev/shm/weft-mount.XXXXXX)
. bench/common.sh
finish_with

rate() { rate_of "$mib" dd "$@"; }

url=$("$weft" up --dir "$scratch/cluster" --io 4 --detach)
mkdir "$scratch/mnt"
"$weft" mount "$url" "$scratch/mnt"
native=$("$weft" bench shared-file --url "$url" --clients 1 --bytes "${mib}M" --transport shm --memory any --runs "$runs" --dir "$scratch" --json)
native_of() { printf '%s' "$native" | tr -d '\n' | sed "s/.*\"what\": \"shm, any memory, $1\", *\"value\": \([0-9.]*\).*/\1/"; }
for ((run = 0; run < runs; run++)); do
    rm -f "$scratch/mnt/file"
    rate if=/dev/zero of="$scratch/mnt/file" bs=1M count="$mib" conv=fsync >>"$scratch/write"
    # Mounted again, so that the kernel has nothing of the file cached.
    "$weft" umount "$scratch/mnt"
    "$weft" mount "$url" "$scratch/mnt"
    rate if="$scratch/mnt/file" of=/dev/null bs=1M >>"$scratch/read"
done
for way in write read; do
    mount=$(median <"$scratch/$way")
    awk -v way="$way" -v mount="$mount" -v native="$(native_of "$way")" \
        'BEGIN { printf "mount, 1 MiB sequential %-5s  %6.0f MiB/s  %3.0f %% of native (%.0f MiB/s)\n", way, mount, 100 * mount / native, native }'
done
