#!/usr/bin/env bash
# All of Sluice cross-compiled for macOS on arm64, the program and the tests of gpu and ops linked into Mach-O files, which are checked;
# and where the arguments of Objective-C messages land there. Nothing runs: there is no Mac here.
#   macos.sh BUILD_DIR VENV
# Needs the Python package ziglang in VENV, clang-14, and the headers of the third-party libraries, whose code is left to dynamic lookup.
set -euo pipefail
build=${1:?usage: macos.sh BUILD_DIR VENV}
venv=${2:?usage: macos.sh BUILD_DIR VENV}
cd "$(dirname "$0")/.."
root=$PWD
build=$(mkdir -p "$build" && cd "$build" && pwd)
export ZIG_GLOBAL_CACHE_DIR=$build/zig ZIG_LOCAL_CACHE_DIR=$build/zig
zig="$venv/bin/python -m ziglang"

$venv/bin/python tests/macos/calls.py clang-14 .

# Of Debian's headers only these: the C library's are zig's.
mkdir -p "$build/include"
for header in pcre2 utf8proc jansson jansson_config xxhash histedit cmocka; do
    ln -sf "/usr/include/$header.h" "$build/include/$header.h"
done

files=$(echo src/gpu/msl/prelude/*.h src/gpu/soft/soft_abi.h src/kernels/*.metal src/kernels/*.h | tr ' ' ',')
cmake -DPART=gpu -DFILES="$files" -DOUT="$build/gpu_texts.c" -P cmake/embed.cmake

warnings='-Wall -Wextra -Wshadow -Wstrict-prototypes -Wpointer-arith -Wno-unused-parameter -Werror'
numbers='-ffp-contract=off -fno-math-errno -fno-trapping-math'
{
    echo "rule cc
  command = $zig cc -target aarch64-macos.13.0 -O1 -fno-sanitize=undefined -std=gnu17 -D_GNU_SOURCE -DSLUICE_VERSION=\\\"0\\\" \
-DSL_SOURCE_DIR=\\\"/src\\\" -DSL_SHARED_DATA=\\\"/data\\\" $warnings $numbers -fvisibility=hidden -I$root/include -I$root/src \
-isystem $build/include -MD -MF \$out.d -c \$in -o \$out
  depfile = \$out.d
  deps = gcc
rule ar
  command = rm -f \$out && $zig ar rcs \$out \$in
rule link
  command = $zig cc -target aarch64-macos.13.0 -Wl,-undefined,dynamic_lookup \$in -o \$out"
    compile() { # SOURCE...: OBJECT names in $objects
        local source
        objects=
        for source; do
            local object=o/${source//\//_}.o
            echo "build $object: cc $(realpath "$source")"
            objects+=" $object"
        done
    }
    mapfile -t library < <(find src -name '*.c' ! -path 'src/cli/*' ! -name '*_avx*' ! -name '*_uring.c' | sort)
    compile "${library[@]}" "$build/gpu_texts.c"
    echo "build libsluice.a: ar$objects"
    compile src/cli/*.c
    echo "build sluice: link$objects libsluice.a"
    programs=sluice
    for part in gpu ops; do
        support=
        if compgen -G "tests/unit/$part/support_*.c" >/dev/null; then
            compile tests/unit/$part/support_*.c
            support=$objects
        fi
        for test in tests/unit/"$part"/test_*.c; do
            compile "$test"
            name=$(basename "$test" .c)
            echo "build $name: link$objects$support libsluice.a"
            programs+=" $name"
        done
    done
    echo "default $programs"
    echo "$programs" >"$build/programs"
} >"$build/build.ninja"
ninja -C "$build" --quiet -j "${JOBS:-$(nproc)}"

cd "$build"
# shellcheck disable=SC2046 # names of programs, one word each
"$venv/bin/python" "$root/tests/macos/macho.py" $(cat programs)
