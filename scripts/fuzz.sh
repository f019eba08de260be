#!/bin/bash
# Fuzzes every decoder in turn, for SECONDS_EACH (600) each, and prints how often each was executed. A target is a test that calls
# weft_test_fuzz::run; here it is built so that it knows which code an input reaches, with overflow checks and debug assertions.
#   KEEP=1    adds the inputs that reached new code to tests/fuzz/corpus
#   scripts/fuzz.sh [TARGET…]
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
scripts/need.sh cc cargo

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/fuzz
export RUSTFLAGS="-C passes=sancov-module -C llvm-args=-sanitizer-coverage-level=3 -C llvm-args=-sanitizer-coverage-inline-8bit-counters
    -C codegen-units=1 -C opt-level=2"
# For a target of its own, so that build scripts, which lack the counters' functions, are built without them.
host=$(rustc -vV | sed -n 's/^host: //p')
export WEFT_FUZZ_SECONDS=${SECONDS_EACH:-600}
[ -z "${KEEP:-}" ] || export WEFT_FUZZ_KEEP=1

failed=0
# package, kind of its tests, and the target, of each call of `run`.
while IFS=: read -r file _ line; do
    target=$(sed -n 's/.*run("\([a-z-]*\)".*/\1/p' <<< "$line")
    [ $# = 0 ] || [[ " $* " == *" $target "* ]] || continue
    package=weft-$(cut -d/ -f2 <<< "$file")
    kind=--lib
    [[ $file == */tests/*.rs && $file != */src/* ]] && kind="--test $(basename "$file" .rs)"
    name=$(awk -v target="run(\"$target\"" '/^ *fn /{ sub(/.*fn /, ""); sub(/\(.*/, ""); name = $0 } index($0, target) { print name }' "$file")
    cargo test --quiet --locked --target "$host" -p "$package" $kind -- "$name" --nocapture --test-threads 1 | grep '^fuzz ' ||
        { failed=$((failed + 1)); echo "FAILED: $target"; }
done < <(grep -rn 'weft_test_fuzz::run("' crates --include='*.rs')
[ "$failed" = 0 ]
