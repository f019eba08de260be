#!/bin/bash
# What quotas cost: files created, written and closed by a user who has limits, and by one who has none, in turns; of 4 KiB
# (with their bytes at the metadata server), of 64 KiB (striped, within what an open grants) and of 64 MiB (that ask for more).
set -euo pipefail
cd "$(dirname "$0")/.."
weft=${WEFT:-$PWD/target/release/weft}
runs=${WEFT_RUNS:-30}
user=${WEFT_USER:-65534}
scratch=$(mktemp -d /dev/shm/weft-quota.XXXXXX)
. bench/common.sh
finish_with

libraries=$(dirname "$weft")
cc -O2 -o "$scratch/small-files" -Icrates/capi/include bench/small-files.c -L"$libraries" -lweft -Wl,-rpath,"$libraries"
soname=$(objdump -p "$libraries/libweft.so" | awk '$1 == "SONAME" { print $2 }')
[ -z "$soname" ] || cp "$libraries/libweft.so" "$scratch/$soname"
cp "$libraries/libweft.so" "$scratch/"
chmod 755 "$scratch"; chmod -R a+rX "$scratch"
export LD_LIBRARY_PATH=$scratch

url=$("$weft" up --dir "$scratch/cluster" --io 4 --detach)
"$weft" key issue --uid "$user" --gid "$user" --out "$scratch/user.key" --config "$scratch/cluster/weft.toml" 2>/dev/null
chown "$user" "$scratch/user.key"
chmod a+rx "$scratch/cluster"
mkdir "$scratch/mnt"
"$weft" mount "$url" "$scratch/mnt"
chmod 1777 "$scratch/mnt"
"$weft" umount "$scratch/mnt"

measure() { # name bytes files processes
    local before
    before=$(processors_ms "$url")
    setpriv --reuid="$user" --regid="$user" --clear-groups env -u WEFT_URL HOME=/nonexistent WEFT_KEY_FILE="$scratch/user.key" \
        "$scratch/small-files" "$url?transport=shm" "$4" "$3" "$2" >>"$scratch/$1.$2.$4"
    echo $(($(processors_ms "$url") - before)) >>"$scratch/$1.$2.$4.cpu"
}

for ((turn = 0; turn < runs; turn++)); do
    order=(off on)
    [ $((turn % 2)) = 0 ] || order=(on off)
    for state in "${order[@]}"; do
        case $state in
            on) "$weft" quota set --user "$user" --bytes 1T --files 100000000 "$url" ;;
            off) "$weft" quota rm --user "$user" "$url" ;;
        esac
        for processes in 1 4; do
            measure "$state" 4096 4000 $processes
            measure "$state" 65536 1000 $processes
            measure "$state" 67108864 8 $processes
        done
    done
done

echo "thousands of files made per second by a user with limits / without; medians of $runs turns, and of the ratios turn by turn"
for bytes in 4096 65536 67108864; do
    for processes in 1 4; do
        for state in on off; do cut -d' ' -f1 "$scratch/$state.$bytes.$processes" >"$scratch/$state"; done
        printf '%9d bytes by %d: servers'"'"' processors %5.0f / %5.0f ms; ratio %s\n' $bytes $processes \
            "$(median <"$scratch/on.$bytes.$processes.cpu")" "$(median <"$scratch/off.$bytes.$processes.cpu")" \
            "$(paired "$scratch/on.$bytes.$processes.cpu" "$scratch/off.$bytes.$processes.cpu")"
        printf '%9d bytes by %d: %8.3f / %8.3f; ratio %s\n' $bytes $processes "$(median <"$scratch/on")" "$(median <"$scratch/off")" \
            "$(paired "$scratch/on" "$scratch/off")"
    done
done
