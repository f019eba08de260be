#!/bin/bash
# MPI-IO by patterns and methods, beside the MPI's own implementation on a mount and on a local tmpfs, the C API, and a
# collective write by hand; opens, requests and memory counted. Medians; methods in turns.
#   bench/mpi.sh [--quick] [--alone] [--mpi mpich|openmpi]
set -euo pipefail
cd "$(dirname "$0")/.."
weft=${WEFT:-$PWD/target/release/weft}
runs=${WEFT_RUNS:-5}
family=mpich way=all quick=
while [ $# -gt 0 ]; do
    case $1 in
        --quick) quick=yes runs=2 ;;
        --alone) way=alone ;;
        --mpi) family=$2 && shift ;;
        *) sed -n '4s/^# */usage: /p' "$0" >&2; exit 2 ;;
    esac
    shift
done
scratch=$(mktemp -d /dev/shm/weft-mpi.XXXXXX)
. bench/common.sh
finish_with

libraries=$(dirname "$weft")
"mpicc.$family" -O2 -Wall -Icrates/capi/include -o "$scratch/mpi" bench/mpi.c -L"$libraries" -lweft -Wl,-rpath,"$libraries"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
url=$("$weft" up --dir "$scratch/cluster" --io 4 --detach)
export WEFT_URL=$url
mkdir "$scratch/mnt"
"$weft" mount "$url" "$scratch/mnt"
name=0

# own PROCESSES ARGUMENTS...: with the MPI's own MPI-IO; ours: with Weft's. What MPICH says about its own leaks is left out.
own() { timeout 300 "mpirun.$family" -n "$1" "$scratch/mpi" "${@:2}" 2> >(grep -v yaksa >&2); }
ours() { timeout 300 "mpirun.$family" -n "$1" env LD_PRELOAD="$libraries/libweft_mpi.so" "$scratch/mpi" "${@:2}" 2> >(grep -v yaksa >&2); }
middle() { awk -v name="$1" -v field="$2" '$1 == name { print $field }' "$3" | median; }
fresh() { name=$((name + 1)); place=/file$name; }

echo "MPI-IO: $family, 4 processes, 4 I/O servers, $runs runs, calls: $way, $(date -u +%F)"
echo
echo "== contiguous, 4 x 64 MiB, MiB/s written and read, and of the C API"
for call in 1 16; do
    for ((turn = 0; turn < runs; turn++)); do
        fresh
        ours 4 contiguous 64 $((call << 20)) "" $place
    done >"$scratch/contiguous"
    for kind in c_api at at_all; do
        awk -v kind=$kind -v call=$call -v w="$(middle $kind 2 "$scratch/contiguous")" -v r="$(middle $kind 3 "$scratch/contiguous")" \
            -v cw="$(middle c_api 2 "$scratch/contiguous")" -v cr="$(middle c_api 3 "$scratch/contiguous")" \
            'BEGIN { printf "%2d MiB %-7s %7.0f %4.0f %%  %7.0f %4.0f %%\n", call, kind, w, 100 * w / cw, r, 100 * r / cr }'
    done
done

methods="multiple sieve two_phase list auto"
[ $way = all ] || methods="multiple sieve list auto"
patterns="tile:24:1024 tile:3:1024 column:512 column:1024 column:2048 column:4096 column:8192 bt:64:10 volume:64:16"
[ -z "$quick" ] || patterns="tile:24:256 tile:3:1024 column:512 column:1024 bt:32:4 volume:32:16"
for pattern in $patterns; do
    : >"$scratch/rates"
    for ((turn = 0; turn < runs; turn++)); do
        fresh
        jobs=("warm::$scratch/warm")
        for method in $methods; do jobs+=("$method:weft_method=$method:weft:$place.$method"); done
        ours 4 pattern $way "$pattern" "${jobs[@]}" "tmpfs::$scratch/local" >>"$scratch/rates"
        own 4 pattern $way "$pattern" "mount::$scratch/mnt$place" >>"$scratch/rates"
    done
    echo
    echo "== $pattern: MiB/s; of multiple, mount, tmpfs"
    for direction in 2:write 3:read; do
        field=${direction%:*}
        for method in $methods mount tmpfs; do
            echo "$method $(middle "$method" "$field" "$scratch/rates")"
        done | awk -v way="${direction#*:}" -v pattern="$pattern" -v verdict="$scratch/verdict" '
            { name[NR] = $1; rate[$1] = $2; if ($1 !~ /auto|mount|tmpfs/ && $2 > best) { best = $2; which = $1 } }
            END {
                for (i = 1; i <= NR; i++) {
                    n = name[i]
                    printf "%-5s %-9s %8.1f %7.2fx %7.2fx %7.2fx\n", way, n, rate[n], rate[n] / rate["multiple"], rate[n] / rate["mount"], rate[n] / rate["tmpfs"]
                }
                printf "%-5s auto is %.0f %% of the best method, %s\n", way, 100 * rate["auto"] / best, which
                print pattern, way, rate["auto"] / best, rate["auto"] / rate["mount"], rate["auto"] / rate["tmpfs"], rate["list"] / rate["multiple"] >> verdict
            }'
    done
    [ $way = alone ] || ours 4 pattern all "$pattern" "auto:weft_explain=true:weft:$place.explained" 2>&1 |
        awk '/requests/ && !seen[$0]++ && n++ < 4 { sub(/weft-mpi: [^:]*: /, ""); print "predicted: " $0 }'
done
echo
awk '{ n++; near += $3 >= 0.95; mount += $4 >= 3; ahead += $4 >= 1; local += $5 >= 1 }
    END { printf "auto at least 95 %% of the best method: %d of %d; at least 3x the mount: %d, level: %d; level with tmpfs: %d\n", near, n, mount, ahead, local }' "$scratch/verdict"

echo
echo "== collective write of a 4-d array, and by hand: MiB/s"
strips="65536 262144 1048576" servers="1 2 3 4" volume=volume:64:16
[ -z "$quick" ] || strips=65536 servers="1 4" volume=volume:32:16
for strip in $strips; do
    for count in $servers; do
        fresh
        ours 4 by-hand $volume $strip $count "$runs" $place >"$scratch/hand"
        awk -v c="$(middle collective 2 "$scratch/hand")" -v h="$(middle by_hand 2 "$scratch/hand")" -v strip=$strip -v count=$count \
            'BEGIN { printf "strip %4d KiB, %d servers: collective %6.0f, by hand %6.0f: %.2fx\n", strip / 1024, count, c, h, c / h }'
    done
done

# opens: those of files, at the metadata server; a Create opens, too.
opens() { "$weft" status "$url" --json | tr -d '\n ' | grep -o '"count":[0-9]*,"errors":[0-9]*,"operation":"\(Open\|Create\)"' | sed 's/"count":\([0-9]*\).*/\1/' | awk '{ n += $1 } END { print n + 0 }'; }
echo
echo "== open and close, 10 times and once before: ms, Opens at the metadata server"
for processes in 1 4 16 64; do
    fresh
    before=$(opens)
    ours $processes opens 10 "weft:$place" | tr '\n' ' ' | sed "s/^/$processes processes: /"
    echo "Opens $(($(opens) - before))"
done

echo
echo "== requests of collective calls (a write and a read), by 4 processes, 4 servers"
for method in list two_phase; do
    for pattern in tile:24:256 volume:32:16; do
        fresh
        WEFT_MPI_STATS=1 ours 4 pattern all $pattern "$method:weft_method=$method:weft:$place" 2>&1 |
            awk -v method=$method -v pattern=$pattern '/requests to/ { sub(/,.*/, ""); print method, pattern ":", $(NF) }'
    done
done

echo
echo "== shared pointer, by 16 processes"
fresh
echo "ordered, 64 KiB, 20 times: $(ours 16 ordered 65536 20 "weft:$place")"
fresh
echo "shared, 4 KiB, 100 times: $(ours 16 shared 4096 100 "weft:$place")"

echo
echo "== 64 processes: seconds; memory of the largest process over its buffers"
for pattern in tile:24:64 column:1024 bt:64:2 volume:64:4; do
    fresh
    begin=$EPOCHREALTIME
    ours 64 pattern all $pattern "auto::weft:$place" "two_phase:weft_method=two_phase:weft:$place.two" >/dev/null
    awk -v b="$begin" -v e="$EPOCHREALTIME" -v p=$pattern 'BEGIN { printf "%s: finished, checked, %.1f s\n", p, e - b }'
done
for processes in 4 64; do
    for method in list two_phase; do
        fresh
        ours $processes memory bt:64:2 weft_method=$method "weft:$place" | sed "s/^added \(.*\)/$processes processes, $method: \1 KiB/"
    done
done
