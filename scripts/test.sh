#!/bin/bash
# Runs every check. The last line has the sums. Leaves nothing behind, even when interrupted.
set -uo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"

scripts/need.sh cc cargo fuse rsync git sqlite ip tar make python3 perl vim patch ssh || exit 1
# A browser without a screen, for weft dashboard.
scripts/need.sh chromium rpm zsh fish || exit 1
# Power cuts of local file systems. Without root or loop devices the tests report that they are skipped.
if [ "$(id -u)" = 0 ] && [ -e /dev/loop-control ]; then
    scripts/need.sh mkfs.ext4 mkfs.xfs || exit 1
fi

# An NFS server that is not Weft's, for the client of NFS. Without root the tests report that they are skipped.
if [ "$(id -u)" = 0 ]; then
    scripts/need.sh ganesha || exit 1
fi

# MPI libraries, for the tests of MPI-IO: Debian's, and newer ones. Where they were made they must work.
scripts/need.sh mpich openmpi gfortran venv h5py pnetcdf netcdf libnfs prometheus stress-ng fio || exit 1
if scripts/mpi-wheels.sh target/mpi; then
    export WEFT_TEST_MPI=$PWD/target/mpi
else
    echo "scripts/mpi-wheels.sh failed: tests with newer MPI libraries are skipped" >&2
fi

# A minimal Debian, for the Debian package and the image. Without root the tests report that they are skipped.
if [ "$(id -u)" = 0 ]; then
    if scripts/need.sh debootstrap && scripts/debian-root.sh target/debian; then
        export WEFT_TEST_DEBIAN=$PWD/target/debian
    else
        echo "scripts/debian-root.sh failed: tests of packages in a minimal Debian are skipped" >&2
    fi
fi

# Python's packages that the wheel is built and tested with.
if scripts/python-env.sh target/python; then
    export WEFT_TEST_PYTHON=$PWD/target/python
    if scripts/torch-env.sh target/torch target/python; then
        export WEFT_TEST_TORCH=$PWD/target/torch
    else
        echo "scripts/torch-env.sh failed: tests with PyTorch are skipped" >&2
    fi
else
    echo "scripts/python-env.sh failed: tests of the Python package are skipped" >&2
fi

passed=0 failed=0
log=$(mktemp)
# Tests use these directories, in memory and on the disk. The first one also marks all processes that are started
# from here, by their environment.
memory=/tmp
[ -w /dev/shm ] && memory=/dev/shm
WEFT_TEST_DIR=$(mktemp -d "$memory/weft-tests.XXXXXX")
TMPDIR=$(mktemp -d)
chmod 755 "$WEFT_TEST_DIR" "$TMPDIR" # some tests run as other users
export WEFT_TEST_DIR TMPDIR

ours() { grep -lzx "WEFT_TEST_DIR=$marked" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3; }

finish() {
    trap - EXIT INT TERM HUP
    local marked=$WEFT_TEST_DIR
    export -n WEFT_TEST_DIR # processes that are started from here on must not end themselves
    ours | xargs -r kill 2>/dev/null
    for _ in $(seq 50); do [ -z "$(ours)" ] && break; sleep 0.1; done
    ours | xargs -r kill -9 2>/dev/null
    awk -v one="$WEFT_TEST_DIR/" -v other="$TMPDIR/" 'index($2, one) == 1 || index($2, other) == 1 { print $2 }' /proc/self/mounts |
        tac | xargs -r -n 1 umount -l 2>/dev/null
    # Network namespaces left by tests (tests/tests/hosts.rs, dead_server.rs).
    ip netns list 2>/dev/null | sed -n 's/^\(weft[a-z]*\([0-9]*\)x[^ ]*\).*/\2 \1/p' |
        while read -r pid name; do [ -d "/proc/$pid" ] || ip netns del "$name"; done
    rm -rf "$log" "$WEFT_TEST_DIR" "$TMPDIR"
}
trap finish EXIT
trap 'finish; exit 130' INT
trap 'finish; exit 143' TERM HUP

# In the background, so that a signal to this script is noticed at once.
run() { "$@" & wait $!; }

# One check that passes or fails.
holds() {
    local what=$1
    shift
    printf '== %s\n' "$what"
    if run "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $what"; fi
}

logged() { "$@" 2>&1 | tee "$log"; }

holds "formatting" cargo fmt --all --check
holds "clippy" cargo clippy --workspace --all-targets --locked -- -D warnings
# All at once, and xtask with the rest: where cargo builds a package alone, it compiles crates anew with the features that this one needs.
holds "the build" cargo build --workspace --all-targets --locked --quiet
xtask=${CARGO_TARGET_DIR:-target}/debug/xtask
holds "the repository's own rules" "$xtask" check
holds "the reference of the C interface" scripts/docs.sh --only-c
holds "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet

# Reports failed and skipped tests at the end, and the sums: "P passed, F failed, S skipped, I ignored".
run logged "$xtask" test
read -r p _ f _ s _ < <(tail -n 1 "$log" | grep ' passed, ') || { p=0 f=1 s=0; echo "FAILED: the tests could not be run"; }
passed=$((passed + p)) failed=$((failed + f))
echo "$passed passed, $failed failed, $s skipped"
[ "$failed" = 0 ]
