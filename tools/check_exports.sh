#!/bin/sh
# Checks that libsluice.so and libsluice.a export what the public headers declare SL_API, all of it and nothing else.
# check_exports.sh BUILD_TREE
set -eu
tree=${1:?usage: check_exports.sh BUILD_TREE}
root=$(dirname "$0")/..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A declaration may go over lines: joined, the name is the last word before the first parenthesis.
sed 's/^#.*//' "$root"/include/sluice/sluice.h "$root"/include/sluice/gpu.h | tr '\n' ' ' | tr ';' '\n' |
    sed -n 's/.*SL_API[^(]*[ *]\(sl_[a-z0-9_]*\)(.*/\1/p' | sort -u >"$work/declared"
nm -D --defined-only "$tree/libsluice.so" | awk '$3 !~ /^_(init|fini|end|edata)|^__bss_start/ { print $3 }' | sort -u >"$work/shared"
nm -g --defined-only "$tree/libsluice.a" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort -u >"$work/static"

[ -s "$work/declared" ] || { echo "check_exports.sh: no SL_API declarations found"; exit 1; }
status=0
for kind in shared static; do
    if ! diff "$work/declared" "$work/$kind" >"$work/difference"; then
        echo "the $kind libsluice (>) differs from what the public headers declare (<):"
        grep '^[<>]' "$work/difference"
        status=1
    fi
done
[ $status -ne 0 ] || echo "exports: $(wc -l <"$work/declared") functions, in both libraries, nothing else"
exit $status
