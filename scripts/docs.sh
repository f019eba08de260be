#!/bin/bash
# Makes the reference of the C interface (target/doc/c) and of the Rust interface (target/doc/weft_client).
#   scripts/docs.sh [--only-c]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/need.sh doxygen
out=target/doc/c
rm -rf "$out" && mkdir -p "$out"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# Comments of weft.h are for readers of the file; for doxygen they get its marks: of what follows, of the line before,
# and titles of sections.
filter=$(mktemp)
said=$(mktemp)
trap 'rm -f "$filter" "$said"' EXIT
cat >"$filter" <<'FILTER'
awk '
NR == 1 { sub("^/[*]", "/** @file") }
/^\/[*] ---- / {
    gsub("^/[*] -* *| *-* *[*]/$", "")
    $0 = (opened ? "/** @} */ " : "") "/** @name " $0 " */ /** @{ */"
    opened = 1
}
/^#ifdef __cplusplus/ && opened { $0 = "/** @} */\n" $0; opened = 0 }
{ sub("^ */[*] ", "/** "); print }
' "$1" | sed -E 's,([;\,{]) */\* ,\1 /**< ,'
FILTER
doxygen - >"$said" 2>&1 <<DOXYFILE || { cat "$said" >&2; exit 1; }
PROJECT_NAME = Weft
PROJECT_NUMBER = $version
PROJECT_BRIEF = "the C interface"
INPUT = crates/capi/include/weft.h
INPUT_FILTER = "sh $filter"
OUTPUT_DIRECTORY = $out
HTML_OUTPUT = .
GENERATE_LATEX = NO
HAVE_DOT = NO
EXTRACT_ALL = YES
OPTIMIZE_OUTPUT_FOR_C = YES
JAVADOC_AUTOBRIEF = YES
MARKDOWN_SUPPORT = NO
QUIET = YES
WARN_AS_ERROR = FAIL_ON_WARNINGS
PREDEFINED = __attribute__(x)=
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
DOXYFILE
echo "$out/weft_8h.html"
[ "${1:-}" = --only-c ] && exit 0
RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --locked --quiet -p weft-client -p weft-layout -p weft-nfs-client
echo "target/doc/weft_client/index.html"
