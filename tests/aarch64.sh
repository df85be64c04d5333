#!/usr/bin/env bash
# base, quant and cpu and their unit tests, cross-built for aarch64 and run under qemu: NEON's bits are the scalar code's
# (test_matmul, test_ops, test_attention), and both are x86's (test_bits compares with numbers in its source).
#   aarch64.sh BUILD_DIR
# Needs Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user.
set -euo pipefail
build=${1:?usage: aarch64.sh BUILD_DIR}
cd "$(dirname "$0")/.."
build=$(mkdir -p "$build" && cd "$build" && pwd)
cc=aarch64-linux-gnu-gcc
sysroot=/usr/aarch64-linux-gnu
parts='base|quant|cpu'

# cmocka for arm64 would need a foreign architecture in the package manager of the machine: a stand-in is compiled instead.
$cc -O2 -Wall -Wextra -Werror -Itests/aarch64 -c tests/aarch64/cmocka.c -o "$build/cmocka.o"
aarch64-linux-gnu-ar rcs "$build/libcmocka.a" "$build/cmocka.o"

# No pkg-config: the machine's own libraries are not for aarch64, and these parts need none.
[ -f "$build/build.ninja" ] || PKG_CONFIG_LIBDIR=/nonexistent cmake -S . -B "$build" -G Ninja -DSLUICE_WERROR=ON \
    -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=$cc \
    -DCMAKE_C_FLAGS="-I$PWD/tests/aarch64" -DCMOCKA_LIBRARY="$build/libcmocka.a" \
    -DCMAKE_CROSSCOMPILING_EMULATOR="qemu-aarch64;-L;$sysroot;-cpu;max" >"$build/configure.log" 2>&1 || {
    cat "$build/configure.log"
    exit 1
}

tests=$(basename -s .c tests/unit/{base,quant,cpu}/test_*.c)
# shellcheck disable=SC2086 # names of targets, one word each
ninja -C "$build" --quiet -j "${JOBS:-$(nproc)}" $tests
ctest --test-dir "$build" -j "${JOBS:-$(nproc)}" --output-on-failure --no-tests=error -L "^($parts)\$"

# Without dot products under this emulator the tests would compare scalar code with itself.
grep -q 'best set of this machine: neon' "$build/Testing/Temporary/LastTest.log" || {
    echo "the NEON kernels did not run"
    exit 1
}
