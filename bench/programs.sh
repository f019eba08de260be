#!/bin/bash
# Unmodified programs on a mount, beside the local disk or the library: creates, stats and unlinks by four
# processes, the unpacking of a source tree, `git status` in it, and `find` over 100,000 files. Medians; alternating in one run.
# `bench/programs.sh count` instead counts the requests of each operation to the mount and to the servers.
set -euo pipefail
cd "$(dirname "$0")/.."
weft=${WEFT:-$PWD/target/release/weft}
runs=${WEFT_RUNS:-3}
disk=${WEFT_DISK:-/var/tmp}
tree_files=${WEFT_TREE_FILES:-5000}
find_files=${WEFT_FIND_FILES:-100000}
json=${WEFT_JSON:-}
scratch=$(mktemp -d /dev/shm/weft-programs.XXXXXX)
local=$(mktemp -d "$disk/weft-programs.XXXXXX")
mnt=$scratch/mnt

. bench/common.sh
finish_with "$local"

# seconds NAME COMMAND...: how long the command takes, added to the samples NAME.
seconds() {
    local name=$1 begin end
    shift
    begin=$EPOCHREALTIME
    "$@" >/dev/null
    end=$EPOCHREALTIME
    awk -v b="$begin" -v e="$end" 'BEGIN { printf "%.6f\n", e - b }' >>"$scratch/$name"
}

# A tree like that of a C project: directories of 24 files, most of a few KiB, some large.
make_tree() {
    local dir=$1 file=0 bytes
    head -c 262144 /dev/urandom | base64 >"$scratch/text"
    while ((file < tree_files)); do
        mkdir -p "$dir/part$((file / 240))/module$((file / 24))"
        bytes=$((500 + (file * 7919) % 12000))
        ((file % 50)) || bytes=$((bytes * 12))
        head -c "$bytes" "$scratch/text" >"$dir/part$((file / 240))/module$((file / 24))/source$file.c"
        file=$((file + 1))
    done
}

# After a commit git may continue housekeeping in the background.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=gc.auto GIT_CONFIG_VALUE_0=0

url=$("$weft" up --dir "$scratch/cluster" --io 4 --detach)
mkdir "$mnt"
mount_anew() {
    "$weft" umount "$mnt" 2>/dev/null || true
    "$weft" mount "$url" "$mnt"
}
mount_anew

# Operations of the servers so far, as "name count" lines.
operations() {
    "$weft" status "$url" --json | tr -d '\n ' | grep -o '"count":[0-9]*,"errors":[0-9]*,"operation":"[A-Za-z]*"' |
        sed 's/"count":\([0-9]*\),.*:"\([A-Za-z]*\)"/\2 \1/' | awk '$1 != "Status" && $1 != "ClusterMap" { n[$1] += $2 } END { for (o in n) print o, n[o] }' | sort
}

count() {
    local what=$1 daemon
    shift
    daemon=$(pgrep -f "mount $url $mnt" | head -1)
    operations >"$scratch/before"
    strace -f -qq -xx -s 8 -e trace=read,writev,sendmsg,recvmsg,poll,futex -o "$scratch/strace" -p "$daemon" &
    local tracer=$!
    sleep 1
    "$@"
    sleep 1
    kill "$tracer"
    wait "$tracer" || true
    operations >"$scratch/after"
    echo "== $what"
    echo "messages to servers:" $(awk 'NR == FNR { b[$1] = $2; next } $2 != b[$1] { printf "%s %d  ", $1, $2 - b[$1] }' "$scratch/before" "$scratch/after")
    # The fifth byte of a request is its kind.
    echo "requests of the kernel:" $(grep -o 'read.*"\\x..\\x..\\x..\\x..\\x..' "$scratch/strace" | sed 's/.*\\x//' | awk "$kinds"' { n[kind[$1] ? kind[$1] : $1]++ } END { for (k in n) printf "%s %d  ", k, n[k] }')
    echo "system calls of the mount:" $(awk '$3 != "resumed>" { sub(/\(.*/, "", $2); n[$2]++ } END { for (c in n) printf "%s %d  ", c, n[c] }' "$scratch/strace")
}
# shellcheck disable=SC2016
kinds='BEGIN { split("01 LOOKUP 02 FORGET 03 GETATTR 04 SETATTR 05 READLINK 06 SYMLINK 08 MKNOD 09 MKDIR 0a UNLINK 0b RMDIR 0c RENAME 0d LINK 0e OPEN 0f READ 10 WRITE 11 STATFS 12 RELEASE 14 FSYNC 15 SETXATTR 16 GETXATTR 17 LISTXATTR 19 FLUSH 1b OPENDIR 1c READDIR 1d RELEASEDIR 22 ACCESS 23 CREATE 2a BATCH_FORGET 2c READDIRPLUS", w, " "); for (i = 1; i in w; i += 2) kind[w[i]] = w[i + 1] }'

make_tree "$scratch/tree"
tar -C "$scratch" -cf "$scratch/tree.tar" tree

if [ "${1:-}" = count ]; then
    mkdir "$mnt/count"
    count "create, 100 times" python3 -c "import os
for i in range(100): os.close(os.open('$mnt/count/f%d' % i, os.O_CREAT | os.O_EXCL | os.O_WRONLY))"
    sleep 2
    count "stat, 100 times" python3 -c "import os
for i in range(100): os.stat('$mnt/count/f%d' % i)"
    sleep 2
    count "unlink, 100 times" python3 -c "import os
for i in range(100): os.unlink('$mnt/count/f%d' % i)"
    mkdir "$scratch/few"
    cp -r "$scratch/tree/part0" "$scratch/few/"
    tar -C "$scratch" -cf "$scratch/few.tar" few
    count "untar of 240 files in 11 directories" tar -C "$mnt" -xf "$scratch/few.tar"
    git -C "$mnt/few" init -q
    git -C "$mnt/few" add -A
    git -C "$mnt/few" -c user.name=weft -c user.email=weft@example.org commit -q -m few
    count "git status" git -C "$mnt/few" status -s
    count "git status again" git -C "$mnt/few" status -s
    count "find" find "$mnt/few/part0" -type f -path '*source1*'
    exit
fi

mkdir "$mnt/names"
"$weft" bench meta --url "$url" --mount "$mnt/names" --clients 4 --files 2500 --runs "$runs" --dir "$local" --json >"$scratch/names.json"
place() { if [ "$1" = local ]; then echo "$local"; else echo "$mnt"; fi; }
for ((run = 0; run < runs; run++)); do
    for where in local mount; do
        dir=$(place $where)
        [ ! -e "$dir/work" ] || seconds "remove-$where" rm -rf "$dir/work"
        mkdir "$dir/work"
        seconds "untar-$where" tar -C "$dir/work" -xf "$scratch/tree.tar"
    done
done
for where in local mount; do
    (
        cd "$(place $where)/work/tree"
        git init -q
        git add -A
        git -c user.name=weft -c user.email=weft@example.org commit -q -m tree
    ) >/dev/null
done
for ((run = 0; run < runs; run++)); do
    # As on another day: neither the kernel nor the mount has anything cached.
    mount_anew
    seconds cold-mount git -C "$mnt/work/tree" status
    seconds cold-local git -C "$local/work/tree" status
    for where in local mount local mount; do
        seconds "status-$where" git -C "$(place $where)/work/tree" status
    done
done
"$weft" bench meta --url "$url" --make /many --clients 10 --files "$((find_files / 10))" --dir "$scratch" >&2
mkdir "$local/many"
cp -r --attributes-only "$mnt/many" "$local/" 2>/dev/null
for ((run = 0; run < runs; run++)); do
    seconds find-local find "$local/many"
    mount_anew
    seconds find-mount find "$mnt/many"
    seconds find-again find "$mnt/many"
done

number() { tr -d '\n' <"$scratch/names.json" | sed "s/.*\"what\": \"$1\", *\"value\": \([0-9.]*\).*/\1/"; }
for op in creates stats unlinks; do
    echo "$op/s_by_4_processes $(number "$op, mount") $(number "$op") at_least 0.6"
done >"$scratch/rows"
row() { echo "$1 $(median <"$scratch/$2") $(median <"$scratch/$3") at_most $4"; }
{
    row "untar_of_${tree_files}_files_s" untar-mount untar-local 3
    row "git_status_s" status-mount status-local 2
    row "git_status,_mounted_anew_s" cold-mount cold-local 0
    row "rm_-r_s" remove-mount remove-local 0
    echo "find_entries/s $(awk -v n="$find_files" -v s="$(median <"$scratch/find-mount")" 'BEGIN { print n / s }') 50000 at_least 1"
    echo "find_again_entries/s $(awk -v n="$find_files" -v s="$(median <"$scratch/find-again")" 'BEGIN { print n / s }') 50000 at_least 1"
    echo "find_local_entries/s $(awk -v n="$find_files" -v s="$(median <"$scratch/find-local")" 'BEGIN { print n / s }') 50000 at_least 0"
} >>"$scratch/rows"
awk 'BEGIN { printf "%-32s %12s %12s %8s  %s\n", "", "mount", "beside it", "ratio", "bar" }
     { gsub("_", " ", $1); ok = $4 == "at_least" ? $2 / $3 >= $5 : $2 / $3 <= $5
       printf "%-32s %12.6g %12.6g %8.2f  %s\n", $1, $2, $3, $2 / $3, $5 == 0 ? "" : (($4 == "at_least" ? ">= " : "<= ") $5 (ok ? "" : "  NOT MET")) }' "$scratch/rows"
[ -z "$json" ] || awk 'BEGIN { printf "[" } { gsub("_", " ", $1); printf "%s\n  {\"what\": \"%s\", \"mount\": %s, \"beside\": %s, \"ratio\": %.4f}", (NR > 1 ? "," : ""), $1, $2, $3, $2 / $3 } END { print "\n]" }' "$scratch/rows" >"$json"
