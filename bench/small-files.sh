#!/bin/bash
# Files of few bytes: created, written and closed; opened, read and closed; removed. With their bytes at the metadata
# server and, in turns, with small_file_bytes = 0, where they are striped; and the same straight on tmpfs. Medians.
set -euo pipefail
cd "$(dirname "$0")/.."
weft=${WEFT:-$PWD/target/release/weft}
runs=${WEFT_RUNS:-5}
files=${WEFT_FILES:-4000}
bytes=${WEFT_BYTES:-4096}
transport=${WEFT_TRANSPORT:-shm}
scratch=$(mktemp -d /dev/shm/weft-small-files.XXXXXX)
. bench/common.sh
finish_with

libraries=$(dirname "$weft")
cc -O2 -o "$scratch/small-files" -Icrates/capi/include bench/small-files.c -L"$libraries" -lweft -Wl,-rpath,"$libraries"
ln -sf "$libraries/libweft.so" "$scratch/$(objdump -p "$libraries/libweft.so" | awk '$1 == "SONAME" { print $2 }')"
export LD_LIBRARY_PATH=$scratch

# A cluster for each, one after the other: two would share the processors.
measure() {
    local name=$1 bound=$2 processes url
    url=$("$weft" up --dir "$scratch/$name" --io 4 --detach)
    if ! grep -q "^small_file_bytes = $bound$" "$scratch/$name/weft.toml"; then
        "$weft" down --dir "$scratch/$name" >/dev/null
        sed -i "s/^small_file_bytes = .*/small_file_bytes = $bound/" "$scratch/$name/weft.toml"
        url=$("$weft" up --dir "$scratch/$name" --io 4 --detach)
    fi
    for processes in 1 4; do
        "$scratch/small-files" "$url?transport=$transport" "$processes" "$files" "$bytes" >>"$scratch/$name.$processes"
    done
    "$weft" down --dir "$scratch/$name" >/dev/null
    rm -rf "${scratch:?}/$name"
}

for ((turn = 0; turn < runs; turn++)); do
    measure small 16384
    measure striped 0
    for processes in 1 4; do
        mkdir "$scratch/tmpfs"
        "$scratch/small-files" "$scratch/tmpfs" "$processes" "$files" "$bytes" >>"$scratch/tmpfs.$processes"
        rm -rf "$scratch/tmpfs"
    done
done

echo "$bytes bytes over $transport, thousands of files per second"
column() { cut -d' ' -f"$2" "$scratch/$1" | median; }
for processes in 1 4; do
    place=0
    for what in "create, write, close" "open, read, close" "unlink"; do
        place=$((place + 1))
        printf '%s by %s: %6.1f small, %6.1f striped, %6.1f on tmpfs\n' "$what" "$processes" \
            "$(column "small.$processes" $place)" "$(column "striped.$processes" $place)" "$(column "tmpfs.$processes" $place)"
    done
done
