# Functions for the scripts in this directory. They set the program `weft`, and a directory `scratch` with a
# cluster in cluster/ and optionally a mount on mnt/.
# shellcheck shell=bash disable=SC2154
export HOME=$scratch

# finish_with DIRECTORY...: however the script ends, removes its mount, its servers, `scratch` and these
# directories.
finish_with() {
    leftovers=("$scratch" "$@")
    trap finish EXIT
    trap 'finish; exit 130' INT
    trap 'finish; exit 143' TERM HUP
}

finish() {
    trap - EXIT INT TERM HUP
    [ ! -d "$scratch/mnt" ] || "$weft" umount "$scratch/mnt" 2>/dev/null || "$weft" umount --lazy "$scratch/mnt" 2>/dev/null || true
    [ ! -e "$scratch/cluster/weft.toml" ] || "$weft" down --dir "$scratch/cluster" >/dev/null || true
    rm -rf "${leftovers[@]}"
}

# processors_ms URL: processor time that all servers have used, in ms.
processors_ms() {
    "$weft" status --json "$1" | python3 -c 'import json, sys; print(sum(server["cpu_ms"] for server in json.load(sys.stdin)["servers"]))'
}

median() { sort -n | awk '{ v[NR] = $1 } END { print (NR % 2) ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

# rate_of MIB DD...: MiB/s of a dd that moves this much, from its last line: "… bytes … copied, 0.5 s, …".
rate_of() {
    local mib=$1
    shift
    LC_ALL=C "$@" 2>&1 | awk -v mib="$mib" '/copied/ { for (i = 1; i < NF; i++) if ($(i + 1) ~ /^s,?$/) { printf "%.0f\n", mib / $i } }'
}

# paired WITH WITHOUT: the median of the ratios of two files with a number on each line, line by line, and the interval that has the
# true median with 95 %.
paired() {
    paste -d' ' "$1" "$2" | awk '{ print $1 / $2 }' | sort -n | awk '{ v[NR] = $1 } END {
        median = (NR % 2) ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2
        low = int(NR / 2 - 0.98 * sqrt(NR)); high = NR + 1 - low
        if (low < 1) { low = 1; high = NR }
        printf "%.3f (%.3f to %.3f)", median, v[low], v[high] }'
}
