#!/usr/bin/env bash
# Everything that can be checked on a GPU, in one call of a few minutes; goes on after failures, keeps a log of each step, and
# prints a table last. run.sh BUILD_DIR LOG_DIR [STEP...]
#   BUILD_DIR     has the test programs and sluice (built by cmake; a copy of them will do)
#   DEVICE        cuda (default), metal
#   SECONDS_ALL   most that all may take (default 460; QUICK: 108): what would begin later is left out, and said
#   SECONDS_EACH  most that a step may take (default 150; QUICK: 45)
#   SIZES         file with what tests/gpu/goldens.py asked of `sluice info` before
#   WORK          folder for models of some GB that are made and read (default: a temporary one)
# Steps: goldens tiers huge batch checker devices ops model. Default: all; with QUICK=1: the first five, the checker on
# two checkpoints and the smallest operations.
set -u
build=$(cd "${1:?usage: run.sh BUILD_DIR LOG_DIR [STEP...]}" && pwd)
logs=$(mkdir -p "${2:?usage: run.sh BUILD_DIR LOG_DIR [STEP...]}" && cd "$2" && pwd)
shift 2
quick=${QUICK:-}
if [ -n "$quick" ]; then steps=${*:-goldens tiers huge batch checker}; else steps=${*:-goldens tiers huge batch devices ops model checker}; fi
cd "$(dirname "$0")/../.."
repo=$PWD
export SLUICE_TEST_DEVICE=${DEVICE:-cuda}
most=${SECONDS_ALL:-$([ -n "$quick" ] && echo 108 || echo 460)}
each=${SECONDS_EACH:-$([ -n "$quick" ] && echo 45 || echo 150)}
work=${WORK:-$(mktemp -d)}
[ -n "${WORK:-}" ] || trap 'rm -rf "$work"' EXIT
jobs=$(nproc)
table=$logs/table.txt
: >"$table"
sluice=$build/sluice

# One step: its name, then the command. What it says goes to its log; a line of its own that begins with '= ' to the table.
step() {
    local name=$1 began=$SECONDS code left=$((most - SECONDS))
    shift
    if [ "$left" -lt 3 ]; then
        printf '%-34s       not run: %d s are over\n' "$name" "$most" >>"$table"
        return
    fi
    timeout -k 5 $((left < each ? left : each)) bash -c '"$@"' _ "$@" >"$logs/$name.log" 2>&1 # a function is one of this shell's, exported
    code=$?
    local said=ok
    [ $code -eq 124 ] && said="TIMED OUT"
    [ $code -ne 0 ] && [ $code -ne 124 ] && said="FAILED ($code)"
    grep -q "SKIP" "$logs/$name.log" && said="$said, some SKIPPED"
    { printf '%-34s %5d s  %s\n' "$name" $((SECONDS - began)) "$said"; sed -n "s/^= /    /p" "$logs/$name.log"; } >>"$table"
}

# Runs steps side by side, as many as there are cores.
in_parallel() {
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    step "$@" &
}

# ---- checkpoints of every architecture, their experts in slots of the device's memory, many and few -----------------------
run_goldens() {
    local many=()
    [ -n "$quick" ] && many=(--many gpt_oss,qwen3_5_moe,deepseek_v3,qwen3_next-mlx4,glm4_moe)
    step goldens check_goldens "${many[@]}"
}

check_goldens() {
    local code=0
    python3 tests/gpu/goldens.py "$sluice" "$work/goldens" --device "$SLUICE_TEST_DEVICE" --jobs "$jobs" ${SIZES:+--sizes "$SIZES"} "$@" || code=$?
    return $code
}

# ---- tiers: experts that do not fit the device's memory, from the host's and from the disk --------------------------------

# made in the background while checkpoints are run
make_models() {
    "$sluice" synth qwen3-30b-a3b "$work/tiers.gguf" --layers 6 --quiet || return 1
    "$sluice" synth qwen3.5-397b-a17b "$work/huge.gguf" --layers 4 --experts "$([ -n "$quick" ] && echo 128 || echo 512)" --quiet || return 1
}

# Slots for `experts` of the model's in the device's memory, over the least.
vram_for() {
    "$sluice" info "$1" --device "$SLUICE_TEST_DEVICE" --json --ctx 256 --chunk 64 --memory 24G |
        python3 -c 'import json, sys; d = json.load(sys.stdin); print(d["least_vram"] + int(sys.argv[1]) * d["bytes_per_expert"])' "$2"
}

bench() {
    "$sluice" bench "$@" --device "$SLUICE_TEST_DEVICE" --ids random --ctx 256 --chunk 64 --prefill 0 --quiet
}

# Every expert in pinned memory of the host, a tenth of them on the device; then few on the host, too.
host_tier() {
    bench "$work/tiers.gguf" --memory 24G --vram "$(vram_for "$work/tiers.gguf" 80)" --warmup 48 --tokens 48 --repeat 3 --no-replay
}
disk_tier() {
    bench "$work/tiers.gguf" --memory 24G --max-slots 64 --vram "$(vram_for "$work/tiers.gguf" 40)" --warmup 8 --tokens 24 --repeat 2
}
# Layers of the largest shape, larger than both tiers.
huge() {
    bench "$work/huge.gguf" --memory 3G --vram 3G --warmup 2 --tokens 12 --repeat 1
}
# 32 sequences, everything resident.
batch() {
    bench "$work/tiers.gguf" --memory 24G --warmup 24 --tokens 24 --repeat 1 --sequences 32
}

with_rows() {
    "$@" | sed '/tier\|decode\|vram\|GPU memory/s/^/= /'
    return "${PIPESTATUS[0]}"
}

run_tiers() {
    wait "${maker:-}"
    step host_tier with_rows host_tier
    step disk_tier with_rows disk_tier
}
run_huge() { step huge with_rows huge; }
run_batch() { step batch_32 with_rows batch; }

# ---- what was here before ---------------------------------------------------------------------------------------------------
run_devices() {
    in_parallel devices "$build/test_core_devices"
}

run_ops() {
    local t
    for t in "$build"/test_gpu_ops "$build"/test_gpu_step "$build"/test_kernels_* "$build"/test_router "$build"/test_golden_device; do
        case $t in *test_kernels_cuda | *test_kernels_spaces) continue ;; esac # compile only
        [ -x "$t" ] && in_parallel "$(basename "$t")" "$t"
    done
    wait
}

# Teacher-forced: the CPU's exact mode records, the device is compared with it.
eval_model() {
    local model=$1 text=$2
    "$sluice" eval "$model" "$text" --numeric exact --tokens 400 --record "$logs/reference.slref" --quiet || return 1
    "$sluice" eval "$model" --reference "$logs/reference.slref" --device "$SLUICE_TEST_DEVICE" --json --quiet "$text" || return 1
}

# The same text and log probabilities with every expert in memory, and with few slots.
same_for_any_cache() {
    local model=$1 slots
    for slots in 9 40 400; do
        "$sluice" run "$model" "Once there was a boat" --raw -n 24 --temp 0 --device "$SLUICE_TEST_DEVICE" --ctx 256 --chunk 32 --max-slots $slots \
            --logprobs 3 --json --quiet >"$logs/slots-$slots.json" || return 1
    done
    python3 - "$logs"/slots-{9,40,400}.json <<'PY'
import json, sys
documents = [json.load(open(p)) for p in sys.argv[1:]]
first = documents[0]
print(first["text"])
assert all(d["text"] == first["text"] and d.get("logprobs") == first.get("logprobs") for d in documents), "the cache shows in the result"
print("same bits with", [d["figures"].get("hit_rate") for d in documents])
PY
}

run_model() {
    step model_eval eval_model "$repo/models/sluice-smol-moe" "$repo/models/sluice-smol-moe/MODEL_CARD.md"
    step model_cache same_for_any_cache "$repo/models/sluice-smol-moe"
}

# ---- memory, races, synchronisation: on what is small -------------------------------------------------------------------------

# A golden checkpoint with few rows and with many; what goldens made is read.
checked_golden() {
    local tool=$1 name=$2 chunk=$3 model=$repo/tests/golden/arch/$2
    "$checker" --tool "$tool" --error-exitcode 9 "$sluice" eval "$model" --reference "$work/goldens/$name/exact" --record "$work/checked-$tool-$name-$chunk" \
        --device "$SLUICE_TEST_DEVICE" --chunk "$chunk" --memory 1G --quiet
}

run_checker() {
    local tool t
    checker=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
    [ -n "$checker" ] || { printf '%-34s          SKIP: no compute-sanitizer\n' checker >>"$table"; return; }
    export checker
    for t in gpt_oss qwen3_5_moe; do
        in_parallel "memcheck-$t-few" checked_golden memcheck $t 12
        in_parallel "memcheck-$t-many" checked_golden memcheck $t 72
    done
    for tool in racecheck synccheck; do
        in_parallel "$tool-gpu_step" "$checker" --tool $tool --error-exitcode 9 "$build/test_gpu_step"
    done
    if [ -z "$quick" ]; then
        for tool in memcheck racecheck synccheck; do
            in_parallel "$tool-gpu_ops" "$checker" --tool $tool --error-exitcode 9 "$build/test_gpu_ops"
        done
    fi
    wait
}

export -f eval_model same_for_any_cache check_goldens vram_for bench host_tier disk_tier huge batch with_rows checked_golden make_models
export build logs repo work jobs sluice quick
case " $steps " in *" tiers "* | *" huge "* | *" batch "*)
    step make_models make_models &
    maker=$!
    ;;
esac
for s in $steps; do
    "run_$s"
done
wait
printf '\n'
cat "$table"
! grep -q "FAILED\|TIMED OUT\|not run" "$table"
