#!/bin/bash
# Everything that must hold before a change is taken; the last line counts.
set -uo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"

scripts/need.sh cc cargo fuse rsync git sqlite ip tar make || exit 1

passed=0 failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# One check that either holds or not.
holds() {
    local what=$1
    shift
    printf '== %s\n' "$what"
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $what"; fi
}

# Tests, counted by what they say.
tests() {
    printf '== %s\n' "$*"
    "$@" 2>&1 | tee "$log"
    local status=${PIPESTATUS[0]} good bad
    good=$(awk '/^test result:/ { sum += $4 } END { print sum + 0 }' "$log")
    bad=$(awk '/^test result:/ { sum += $6 } END { print sum + 0 }' "$log")
    [ "$status" = 0 ] || [ "$bad" -gt 0 ] || bad=1
    passed=$((passed + good)) failed=$((failed + bad))
}

holds "formatting" cargo fmt --all --check
holds "clippy" cargo clippy --workspace --all-targets --locked -- -D warnings
holds "the repository's own rules" cargo run --quiet --locked -p xtask -- check
holds "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
tests cargo test --workspace --locked --no-fail-fast

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
