#!/bin/bash
# Makes a Python environment for building and testing the wheel:
#   scripts/python-env.sh DIR        DIR/bin/python has maturin, numpy, fsspec, zarr, pandas, pytest and others
# Made once; later calls find it. Another version below makes it anew.
set -euo pipefail

[ $# = 1 ] || { echo "usage: scripts/python-env.sh DIR" >&2; exit 1; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
packages="maturin==1.16.0 numpy==2.4.6 fsspec==2026.9.0 zarr==3.1.6 pytest==9.2.0 pytest-asyncio==1.5.0 hypothesis==6.170.17 mypy==2.4.1"
# What reads and writes through fsspec and Zarr.
packages="$packages pandas==3.1.1 pyarrow==26.0.1 dask[dataframe]==2026.8.0 xarray==2026.9.0 datasets==5.2.0"

# Two callers do not make it at the same time.
exec 9> "$dir/lock"
flock 9
[ "$(cat "$dir/made-of" 2>/dev/null)" != "$packages" ] || exit 0
echo "making $dir of $packages" >&2
find "$dir" -mindepth 1 -maxdepth 1 ! -name lock -exec rm -rf {} +
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed" >&2; exit 1; }
python3 -m venv "$dir"
"$dir/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: $packages >&2
echo "$packages" > "$dir/made-of"
