#!/bin/bash
# Works on a mounted file system for minutes with tools that others wrote: the stressors of stress-ng's filesystem class that concern a
# file system, and fio's jobs that verify what they wrote. With `--check S` also the checker (tests/tests/checker.rs) for S seconds.
#
#   tests/long.sh [--seconds S] [--check S] [STRESSOR | fio …]
#
# Each stressor runs for S seconds (5). The last line counts. Leaves nothing behind.
set -uo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"

seconds=5 check_s=0 wanted=()
while [ $# -gt 0 ]; do
    case $1 in
        --seconds) seconds=$2; shift ;;
        --check) check_s=$2; shift ;;
        *) wanted+=("$1") ;;
    esac
    shift
done
for tool in stress-ng fio; do
    command -v $tool > /dev/null || { echo "tests/long.sh needs $tool: apt-get install $tool"; exit 1; }
done

# All of the class but these:
#   bind-mount binderfs eventfd procfs ioprio io   touch no file of the mount (other file systems, the machine as a whole)
#   chattr inode-flags verity file-ioctl fiemap    ask by ioctl for what FUSE does not pass on to a file system like this
stressors=(access chdir chmod chown copy-file dentry dir dirdeep dirmany dnotify dup fallocate fanotify fcntl filename flock fpunch
    fsize fstat getdent handle hdd inotify iomix lease link locka lockf lockofd mknod open rename symlink sync-file touch utime xattr)

weft=${WEFT_BIN:-target/debug/weft}
[ -n "${WEFT_BIN:-}" ] || cargo build --quiet --locked --package weft-cli --bin weft || exit 1
base=/tmp
[ -w /dev/shm ] && base=/dev/shm
dir=$(mktemp -d "$base/weft-long.XXXXXX")
mkdir "$dir/mount"
finish() {
    trap - EXIT
    cd /
    "$weft" umount "$dir/mount" 2> /dev/null || umount -l "$dir/mount" 2> /dev/null
    "$weft" down --dir "$dir/storage" > /dev/null 2>&1
    rm -rf "$dir"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP
weft=$(realpath "$weft")
export HOME=$dir
"$weft" up --detach --io 3 --dir "$dir/storage" > "$dir/up" || exit 1
url=$(grep -o 'weft://[^ ]*' "$dir/up" | head -1)
"$weft" mount "$url" "$dir/mount" || exit 1

passed=0 failed=0
# The rest of the arguments must end with success, and with everything removed that it made.
run() {
    local name=$1
    shift
    mkdir -p "$dir/mount/work"
    if "$@" > "$dir/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok      $name"
    else
        failed=$((failed + 1))
        echo "FAILED  $name"
        grep -v 'dispatching\|setting to a' "$dir/log" | tail -n 15 | sed 's/^/        /'
    fi
    rm -rf "$dir/mount/work"
}
is_wanted() {
    [ ${#wanted[@]} = 0 ] || [[ " ${wanted[*]} " == *" $1 "* ]]
}

for stressor in "${stressors[@]}"; do
    is_wanted "$stressor" || continue
    run "stress-ng $stressor" timeout $((seconds * 4 + 60)) \
        stress-ng --temp-path "$dir/mount/work" --"$stressor" 2 --timeout "${seconds}s" --verify --metrics-brief \
        --hdd-bytes 64m --fallocate-bytes 64m --iomix-bytes 64m --sync-file-bytes 32m --copy-file-bytes 128m
done

fio_job() {
    local name=$1
    shift
    is_wanted fio || is_wanted "fio-$name" || return 0
    run "fio $name" timeout 300 fio --name="$name" --directory="$dir/mount/work" --size=48m --verify=crc32c --verify_fatal=1 --verify_state_save=0 \
        --do_verify=1 --group_reporting --minimal "$@"
}
fio_job sequential --rw=write --bs=128k --ioengine=psync --numjobs=2
fio_job random --rw=randwrite --bs=4k --ioengine=psync --numjobs=2 --fsync=64
fio_job odd-sizes --rw=randwrite --bsrange=512-100k --bs_unaligned --ioengine=psync --norandommap=0
fio_job vectored --rw=randwrite --bs=16k --ioengine=pvsync2 --numjobs=2
fio_job direct --rw=randwrite --bs=64k --ioengine=libaio --iodepth=16 --direct=1
fio_job ring --rw=randwrite --bs=32k --ioengine=io_uring --iodepth=16
fio_job mapped --rw=randwrite --bs=4k --ioengine=mmap --numjobs=2
fio_job mixed --rw=randrw --bs=8k --ioengine=psync --verify_backlog=256 --numjobs=2
fio_job trimmed --rw=write --bs=64k --ioengine=falloc --verify=0 --do_verify=0
fio_job over-time --rw=randwrite --bs=8k --ioengine=libaio --iodepth=8 --direct=1 --time_based --runtime="$((seconds * 4))"

if [ "$check_s" -gt 0 ]; then
    run "checker" env WEFT_CHECK_S="$check_s" cargo test --locked --package weft-tests --test checker
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
