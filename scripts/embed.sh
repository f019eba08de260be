#!/bin/bash
# Puts libraries into a program, so that one file is enough to be copied: scripts/embed.sh PROGRAM LIBRARY…
# Each becomes a section named by its file, without what is for debuggers. `weft run` takes them from there where they are not
# installed (crates/cli/src/embedded.rs).
set -euo pipefail
program=$1
shift
work=$(mktemp -d "${TMPDIR:-/tmp}/weft-embed.XXXXXX")
trap 'rm -rf "$work"' EXIT
arguments=()
for library in "$@"; do
    name=$(basename "$library")
    strip -o "$work/$name" "$library"
    arguments+=(--remove-section ".$name" --add-section ".$name=$work/$name")
done
objcopy "${arguments[@]}" "$program" "$work/program"
chmod --reference="$program" "$work/program"
mv "$work/program" "$program"
