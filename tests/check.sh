#!/usr/bin/env bash
# Every test, in sections; stops at the first that fails. check.sh BUILD_DIR VENV
#   ONLY="format e2e"  runs these sections only
#   FUZZ_SECONDS=60    per fuzz target (default 10)
set -euo pipefail
build=${1:?usage: check.sh BUILD_DIR VENV}
venv=${2:?usage: check.sh BUILD_DIR VENV}
cd "$(dirname "$0")/.."
build=$(mkdir -p "$build" && cd "$build" && pwd)
venv=$(cd "$venv" && pwd)
jobs=$(nproc)
fuzz_seconds=${FUZZ_SECONDS:-10}
times=()

# The sanitizers' shadow memory and a kernel's wide address randomisation exclude each other.
fixed_addresses=()
if setarch -R true 2>/dev/null; then
    fixed_addresses=(setarch -R)
fi

section() {
    local name=$1 began=$SECONDS
    shift
    if [ -n "${ONLY:-}" ] && [[ " $ONLY " != *" $name "* ]]; then
        return
    fi
    printf '\n== %s\n' "$name"
    if ! "$@"; then
        printf '\n== %s FAILED after %d s\n' "$name" $((SECONDS - began))
        exit 1
    fi
    times+=("$(printf '%-10s %4d s' "$name" $((SECONDS - began)))")
}

# A tree configured once; ninja notices what changed.
configure() { # TREE CMAKE_OPTIONS...
    local tree=$build/$1
    shift
    [ -f "$tree/build.ninja" ] || cmake -S . -B "$tree" -G Ninja -DSLUICE_WERROR=ON "$@" >"$tree.log" 2>&1 || {
        cat "$tree.log"
        return 1
    }
}

build_tree() { # TREE NINJA_TARGETS...
    local tree=$build/$1
    shift
    ninja -C "$tree" -j "$jobs" --quiet "$@"
}

run_tests() { # TREE CTEST_OPTIONS...
    local tree=$build/$1
    shift
    "${fixed_addresses[@]}" ctest --test-dir "$tree" -j "$jobs" --output-on-failure --no-tests=error "$@"
}

check_format() {
    git ls-files -z -- 'src/*.[ch]' 'include/*.h' 'tests/*.[ch]' 'examples/*.c' 'bench/*.[ch]' |
        xargs -0 -r clang-format-14 --dry-run -Werror
}

check_gcc() {
    configure gcc -DCMAKE_C_COMPILER=gcc && build_tree gcc && run_tests gcc
}

check_clang() {
    configure clang -DCMAKE_C_COMPILER=clang-14 && build_tree clang && run_tests clang
}

check_e2e() {
    SLUICE_BUILD=$build/gcc "$venv/bin/python" -m pytest -q -p no:cacheprovider tests
}

# Sanitized trees: -O1, as -O3 takes minutes on the largest kernels and finds no more.
sanitized=(-DCMAKE_C_COMPILER=clang-14 -DCMAKE_BUILD_TYPE=Sanitized "-DCMAKE_C_FLAGS_SANITIZED=-O1 -g1")

# Unit tests, and the program itself on good and bad input.
# Libraries of kernels come and go by dlopen: what the sanitizer noted of their threads' variables is of memory that is
# gone when it looks for leaks, so it does not note it.
check_asan() {
    configure asan "${sanitized[@]}" -DSLUICE_SANITIZE=address && build_tree asan &&
        ASAN_OPTIONS=intercept_tls_get_addr=0 run_tests asan &&
        SLUICE_BUILD=$build/asan "${fixed_addresses[@]}" "$venv/bin/python" -m pytest -q -p no:cacheprovider \
            tests/e2e/test_bad_input.py tests/e2e/test_cli.py tests/e2e/test_chat.py
}

# What runs in several threads: base (pool, memory touched ahead), experts (readers, mirrors), engine (scheduler), the core
# of gpu, kernels compiled side by side, and the devices whose stand-ins have threads of their own.
check_tsan() {
    configure tsan "${sanitized[@]}" -DSLUICE_SANITIZE=thread && build_tree tsan &&
        TSAN_OPTIONS=halt_on_error=1 run_tests tsan -L '^(base|experts|engine)$' &&
        TSAN_OPTIONS=halt_on_error=1 run_tests tsan -R '^test_(core_.*|gpu_warm|cuda_device|metal_.*)$'
}

fuzz_one() { # NAME
    local name=$1 found=$build/fuzz-found/$1
    mkdir -p "$found"
    # New inputs go to the first folder: the checked-in corpus is only read.
    if ! "${fixed_addresses[@]}" "$build/fuzz/$name" -max_total_time="$fuzz_seconds" -timeout=20 -rss_limit_mb=3000 \
        -artifact_prefix="$found/failed-" "$found" "tests/fuzz/corpus/$name" >"$found.log" 2>&1; then
        tail -n 60 "$found.log"
        echo "fuzz target $name failed; the input is in $found/failed-*"
        return 1
    fi
    echo "$name: $(grep -E '^Done|^#[0-9]+.*DONE' "$found.log" | tail -n 1)"
}

check_fuzz() {
    configure fuzz "${sanitized[@]}" -DSLUICE_SANITIZE=address -DSLUICE_FUZZ=ON && build_tree fuzz fuzzers || return 1
    local name running=() failed=0
    for name in $(basename -s .c tests/fuzz/fuzz_*.c); do
        [ -d "tests/fuzz/corpus/$name" ] || { echo "$name has no corpus"; return 1; }
        fuzz_one "$name" &
        running+=($!)
        if [ ${#running[@]} -eq "$jobs" ]; then
            wait "${running[0]}" || failed=1
            running=("${running[@]:1}")
        fi
    done
    for name in "${running[@]}"; do
        wait "$name" || failed=1
    done
    return $failed
}

section layers python3 tools/check_layers.py
section format check_format
section gcc check_gcc
section exports sh tools/check_exports.sh "$build/gcc"
section e2e check_e2e
section clang check_clang
section asan check_asan
section tsan check_tsan
section fuzz check_fuzz
section aarch64 bash tests/aarch64.sh "$build/aarch64"
section macos bash tests/macos.sh "$build/macos" "$venv"

printf '\n== all passed\n'
printf '   %s\n' "${times[@]}"
