#!/bin/bash
# Builds the Python package weftfs:
#   scripts/wheel.sh [OUT]        OUT/weftfs-VERSION-cp311-abi3-manylinux….whl, for Python 3.11 and later (OUT: dist)
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-dist}
PATH="$HOME/.cargo/bin:$PATH"
scripts/need.sh cc cargo venv
scripts/python-env.sh target/python
rm -f "$out"/weftfs-*.whl
target/python/bin/maturin build --quiet --release --locked --manifest-path crates/python/Cargo.toml --out "$out"
ls "$out"/weftfs-*.whl
