#!/usr/bin/env bash
# Everything that can be checked on a GPU, in one call of a few minutes; goes on after failures, keeps a log of each step, and
# prints a table last. run.sh BUILD_DIR LOG_DIR [STEP...]
#   BUILD_DIR     has the test programs and sluice (built by cmake; a copy of them will do)
#   DEVICE        cuda (default), metal
#   SECONDS_ALL   most that all may take (default 460; QUICK: 240): what would begin later is left out, and said
#   SECONDS_EACH  most that a step may take (default 150; QUICK: 60)
#   SIZES         file with what tests/gpu/goldens.py asked of `sluice info` before
#   GOLDENS       names of checkpoints by commas (default: all)
#   WORK          folder for models of some GB that are made and read (default: a temporary one)
#   SHAPE, HUGE   what is made for tiers, whole, batch and peer; for huge (default: shapes of real models with few layers)
#   MEMORY, TOKENS, PROMPT  of their runs (24G, 48, 512)
#   LLAMA_BENCH   llama.cpp's llama-bench (default: the one on the path)
#   CHECKER       compute-sanitizer (default: the one on the path, or in /usr/local/cuda/bin)
#   PYTHON        has numpy (default: python3)
# Steps: goldens tiers checker whole batch peer huge devices ops model. Default: all; with QUICK=1: the first seven, the
# checker on two checkpoints and the smallest operations.
#
# Where the device fails in a checkpoint, or the program crashes, one such checkpoint is run kernel by kernel and under
# memcheck, which name the kernel, and nothing else is begun.
set -u
build=$(cd "${1:?usage: run.sh BUILD_DIR LOG_DIR [STEP...]}" && pwd)
logs=$(mkdir -p "${2:?usage: run.sh BUILD_DIR LOG_DIR [STEP...]}" && cd "$2" && pwd)
shift 2
quick=${QUICK:-}
if [ -n "$quick" ]; then steps=${*:-goldens tiers checker whole batch peer huge}; else steps=${*:-goldens tiers checker whole batch peer huge devices ops model}; fi
cd "$(dirname "$0")/../.." || exit 2
repo=$PWD
export SLUICE_TEST_DEVICE=${DEVICE:-cuda}
most=${SECONDS_ALL:-$([ -n "$quick" ] && echo 240 || echo 460)}
each=${SECONDS_EACH:-$([ -n "$quick" ] && echo 60 || echo 150)}
work=${WORK:-$(mktemp -d)}
[ -n "${WORK:-}" ] || trap 'rm -rf "$work"' EXIT
jobs=$(nproc)
python=${PYTHON:-python3}
shape=${SHAPE:-qwen3-30b-a3b --layers 6}
huge_shape=${HUGE:-qwen3.5-397b-a17b --layers 4 --experts $([ -n "$quick" ] && echo 128 || echo 512)}
memory=${MEMORY:-24G} tokens=${TOKENS:-48} prompt=${PROMPT:-512}
checker=${CHECKER:-$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)}
llama_bench=${LLAMA_BENCH:-$(command -v llama-bench)}
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
    local name chunk
    first_broken >"$logs/broken" || return 0
    read -r name chunk <"$logs/broken"
    step kernel_by_kernel broken_golden "$name" "$chunk"
    [ -z "$checker" ] || step memcheck-broken checked_golden memcheck "$name" "$chunk"
    printf '%-34s          %s with %s rows: the two steps before; the rest is left out\n' stopped "$name" "$chunk" >>"$table"
    stopped=1
}

# "NAME ROWS" of the first checkpoint with which the device failed or the program crashed.
first_broken() {
    sed -n '/CUDA_ERROR\|: status -\|timed out/s/^WRONG  *\([^ ]*\) *chunk \([0-9]*\):.*/\1 \2/p' "$logs/goldens.log" | head -n 1 | grep .
}

# Kernels one by one: the last that is named before the error is the one.
broken_golden() {
    local model code
    model=$(golden_model "$1")
    CUDA_LAUNCH_BLOCKING=1 SLUICE_DEBUG=2 "$sluice" eval "$model" --reference "$(golden_reference "$1")" --record "$work/broken" \
        --device "$SLUICE_TEST_DEVICE" --chunk "$2" --memory 1G >"$logs/kernels.log" 2>&1
    code=$?
    tail -n 40 "$logs/kernels.log"
    [ $code -ne 0 ] || echo "= one by one none fails: look at graphs, and at what runs side by side"
    grep "CUDA_ERROR" "$logs/kernels.log" | head -n 1 | cut -c1-400 | sed 's/^/= /'
    return $code
}

golden_model() {
    "$python" -c 'import json, sys; print(sys.argv[1] + "/" + json.load(open(sys.argv[1] + "/golden.json"))["model"])' "$repo/tests/golden/arch/$1"
}

# What the CPU's exact mode recorded, or the tokens alone.
golden_reference() {
    local folder=$work/goldens/$1
    if [ -e "$folder/exact" ]; then echo "$folder/exact"; else echo "$folder/tokens"; fi
}

check_goldens() {
    local code=0
    "$python" tests/gpu/goldens.py "$sluice" "$work/goldens" --device "$SLUICE_TEST_DEVICE" --jobs "$jobs" ${SIZES:+--sizes "$SIZES"} ${GOLDENS:+--only "$GOLDENS"} "$@" || code=$?
    return $code
}

# ---- tiers: experts that do not fit the device's memory, from the host's and from the disk --------------------------------

# NAME SHAPE OPTION...
synth() {
    local name=$1 kind=$2
    shift 2
    "$sluice" synth "$kind" "$work/$name.gguf" "$@" --quiet
}

# made in the background while checkpoints are run
make_models() {
    # shellcheck disable=SC2086 # a shape and its options
    synth tiers $shape && synth huge $huge_shape
}

# Slots for `experts` of the model's in the device's memory, over the least.
vram_for() {
    "$sluice" info "$1" --device "$SLUICE_TEST_DEVICE" --json --ctx 256 --chunk 64 --memory "$memory" |
        "$python" -c 'import json, sys; d = json.load(sys.stdin); print(d["least_vram"] + int(sys.argv[1]) * d["bytes_per_expert"])' "$2"
}

bench() {
    "$sluice" bench "$@" --device "$SLUICE_TEST_DEVICE" --ids random --ctx 256 --chunk 64 --prefill 0 --quiet
}

# Every expert in pinned memory of the host, a tenth of them on the device; then few on the host, too.
host_tier() {
    bench "$work/tiers.gguf" --memory "$memory" --vram "$(vram_for "$work/tiers.gguf" 80)" --warmup "$tokens" --tokens "$tokens" --repeat 3 --no-replay
}
disk_tier() {
    bench "$work/tiers.gguf" --memory "$memory" --max-slots 64 --vram "$(vram_for "$work/tiers.gguf" 40)" --warmup 8 --tokens "$((tokens / 2))" --repeat 2
}
# Layers of the largest shape, larger than both tiers.
huge() {
    bench "$work/huge.gguf" --memory 3G --vram 3G --warmup 2 --tokens "$((tokens / 4))" --repeat 1
}
# One sequence, everything resident: its tokens and its prompt.
whole() {
    "$sluice" bench "$work/tiers.gguf" --device "$SLUICE_TEST_DEVICE" --ids random --memory "$memory" --ctx "$((prompt + 4 * tokens + 64))" \
        --prefill "$prompt" --warmup 32 --tokens "$tokens" --repeat 3 --no-replay --quiet
}
# The same file with llama.cpp.
peer() {
    "$llama_bench" -m "$work/tiers.gguf" -ngl 99 -p "$prompt" -n "$tokens" | sed '/pp[0-9]\|tg[0-9]/s/^/= /'
    return "${PIPESTATUS[0]}"
}
# 32 sequences, everything resident.
batch() {
    bench "$work/tiers.gguf" --memory "$memory" --warmup "$((tokens / 2))" --tokens "$((tokens / 2))" --repeat 1 --sequences 32
}

with_rows() {
    "$@" | sed '/tier\|decode\|prefill\|vram\|GPU memory/s/^/= /'
    return "${PIPESTATUS[0]}"
}

models_are_made() {
    wait "${maker:-}" 2>/dev/null # the second time it is no child any more
}
run_tiers() {
    models_are_made
    step host_tier with_rows host_tier
    step disk_tier with_rows disk_tier
}
run_huge() {
    models_are_made
    step huge with_rows huge
}
run_whole() {
    models_are_made
    step whole with_rows whole
}
run_batch() {
    models_are_made
    step batch_32 with_rows batch
}
run_peer() {
    models_are_made
    if [ -n "$llama_bench" ]; then step llama.cpp peer; else printf '%-34s          SKIP: no llama-bench\n' llama.cpp >>"$table"; fi
}

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
    "$python" - "$logs"/slots-{9,40,400}.json <<'PY'
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
    local tool=$1 name=$2 chunk=$3 model
    model=$(golden_model "$name")
    "$checker" --tool "$tool" --error-exitcode 9 "$sluice" eval "$model" --reference "$(golden_reference "$name")" --record "$work/checked-$tool-$name-$chunk" \
        --device "$SLUICE_TEST_DEVICE" --chunk "$chunk" --memory 1G --quiet
}

run_checker() {
    local tool t
    [ -n "$checker" ] || { printf '%-34s          SKIP: no compute-sanitizer\n' checker >>"$table"; return; }
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

export -f eval_model same_for_any_cache check_goldens broken_golden golden_model golden_reference vram_for bench host_tier disk_tier huge whole batch peer \
    with_rows checked_golden synth make_models
export build logs repo work jobs sluice quick python shape huge_shape memory tokens prompt checker llama_bench
case " $steps " in *" tiers "* | *" whole "* | *" batch "* | *" peer "* | *" huge "*)
    step make_models make_models &
    maker=$!
    ;;
esac
stopped=
for s in $steps; do
    "run_$s"
    [ -z "$stopped" ] || break
done
wait
printf '\n'
cat "$table"
! grep -q "FAILED\|TIMED OUT\|not run\|stopped" "$table"
