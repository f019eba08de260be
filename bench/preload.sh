#!/bin/bash
# Unmodified programs under `weft run`, beside Weft's own calls: one C program built both ways, alternating; dd and
# fio; and the time that the library adds to the start of a program that does not use Weft. Medians.
set -euo pipefail
cd "$(dirname "$0")/.."
weft=${WEFT:-$PWD/target/release/weft}
runs=${WEFT_RUNS:-7}
mib=${WEFT_MIB:-512}
starts=${WEFT_STARTS:-100}
scratch=$(mktemp -d /dev/shm/weft-preload.XXXXXX)
. bench/common.sh
finish_with

libraries=$(dirname "$weft")
cc -O2 -o "$scratch/unmodified" bench/preload.c
cc -O2 -DNATIVE -Icrates/capi/include -o "$scratch/native" bench/preload.c -L"$libraries" -lweft -Wl,-rpath,"$libraries"
url=$("$weft" up --dir "$scratch/cluster" --io 4 --detach)
export WEFT_URL=$url WEFT_TRANSPORT=shm
run=("$weft" run --url "$url" --)

dd_rate() { rate_of "$mib" "${run[@]}" dd "$@"; }

# fio_field FIELD ARGUMENTS...: a field of fio's terse line.
fio_field() {
    "${run[@]}" fio --name=job --filename=/weft/file --size="${mib}M" --ioengine=psync --fallocate=none --minimal "${@:2}" | cut -d';' -f"$1"
}

for ((turn = 0; turn < runs; turn++)); do
    read -r a b c < <("$scratch/native" /native "$mib")
    read -r d e f < <("${run[@]}" "$scratch/unmodified" /weft/file "$mib")
    awk -v a="$a" -v b="$b" -v c="$c" -v d="$d" -v e="$e" -v f="$f" 'BEGIN { print 100 * d / a, 100 * e / b, 100 * c / f }' >>"$scratch/ratios"
    echo "$a $b $c $d $e $f" >>"$scratch/all"
    dd_rate if=/weft/file of=/dev/null bs=1M >>"$scratch/dd-read"
    dd_rate if=/dev/zero of=/weft/file bs=1M count="$mib" conv=notrunc >>"$scratch/dd-write"
    # Bandwidth of reads in KiB/s.
    fio_field 7 --rw=read --bs=1M | awk '{ printf "%.0f\n", $1 / 1024 }' >>"$scratch/fio-read"
    fio_field 7 --rw=randread --bs=4k --number_ios=20000 | awk '{ printf "%.1f\n", 4e6 / $1 }' >>"$scratch/fio-random"
done

column() { cut -d' ' -f"$1" "$scratch/$2" | median; }
line() { printf '%-32s %8.1f %-6s %3.0f %% of native (%.1f)\n' "$1" "$2" "$3" "$4" "$5"; }
line "1 MiB sequential write" "$(column 4 all)" MiB/s "$(column 1 ratios)" "$(column 1 all)"
line "1 MiB sequential read" "$(column 5 all)" MiB/s "$(column 2 ratios)" "$(column 2 all)"
line "4 KiB random read, p50" "$(column 6 all)" us "$(column 3 ratios)" "$(column 3 all)"
printf 'dd, 1 MiB: written %.0f, read %.0f MiB/s; fio psync: 1 MiB read %.0f MiB/s, 4 KiB random read %.1f us each\n' \
    "$(median <"$scratch/dd-write")" "$(median <"$scratch/dd-read")" "$(median <"$scratch/fio-read")" "$(median <"$scratch/fio-random")"

# Starts of `true`, in alternating batches. `env` itself is started without the library.
batch() {
    local begin=$EPOCHREALTIME end n
    for ((n = 0; n < starts; n++)); do env "$@" /bin/true; done
    end=$EPOCHREALTIME
    awk -v b="$begin" -v e="$end" -v n="$starts" 'BEGIN { printf "%.4f\n", (e - b) * 1000 / n }'
}
for ((turn = 0; turn < runs; turn++)); do
    plain=$(batch A=b C=d)
    ours=$(batch LD_PRELOAD="$libraries/libweft_preload.so" WEFT_PREFIX="/weft=$url")
    awk -v o="$ours" -v p="$plain" 'BEGIN { printf "%.4f\n", o - p }' >>"$scratch/added"
    echo "$plain" >>"$scratch/plain"
done
printf 'start of true: %.2f ms added by the library to %.2f ms with env before it\n' "$(median <"$scratch/added")" "$(median <"$scratch/plain")"
