#!/usr/bin/env bash
# Everything that can be checked on a GPU, in one call of a few minutes; goes on after failures, keeps a log of each step, and
# prints a table last. run.sh BUILD_DIR LOG_DIR [STEP...]
#   BUILD_DIR  has the test programs and sluice (built by cmake; a copy of them will do)
#   DEVICE     cuda (default), metal
#   SECONDS_EACH  most that a step may take (default 150)
# Steps: devices ops model checker; default: all.
set -u
build=$(cd "${1:?usage: run.sh BUILD_DIR LOG_DIR [STEP...]}" && pwd)
logs=$(mkdir -p "${2:?usage: run.sh BUILD_DIR LOG_DIR [STEP...]}" && cd "$2" && pwd)
shift 2
steps=${*:-devices ops model checker}
cd "$(dirname "$0")/../.."
repo=$PWD
export SLUICE_TEST_DEVICE=${DEVICE:-cuda}
limit=${SECONDS_EACH:-150}
jobs=$(nproc)
table=$logs/table.txt
: >"$table"

# One step: its name, then the command. What it says goes to its log.
step() {
    local name=$1 began=$SECONDS code
    shift
    timeout -k 5 "$limit" bash -c '"$@"' _ "$@" >"$logs/$name.log" 2>&1 # a function is one of this shell's, exported
    code=$?
    local said=ok
    [ $code -eq 124 ] && said="TIMED OUT"
    [ $code -ne 0 ] && [ $code -ne 124 ] && said="FAILED ($code)"
    grep -q "SKIP" "$logs/$name.log" && said="$said, some SKIPPED"
    printf '%-34s %5d s  %s\n' "$name" $((SECONDS - began)) "$said" >>"$table"
}

# Runs steps side by side, as many as there are cores.
in_parallel() {
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    step "$@" &
}

run_devices() {
    in_parallel devices "$build/test_core_devices"
}

run_ops() {
    for t in gpu_ops gpu_step kernels_attention_prepare kernels_attention_decode kernels_attention_prefill kernels_attention_wide kernels_delta kernels_expert kernels_matmul kernels_matvec kernels_moe kernels_rows router golden_device; do
        [ -x "$build/test_$t" ] && in_parallel "$t" "$build/test_$t"
    done
}

# Teacher-forced: the CPU's exact mode records, the device is compared with it.
eval_model() {
    local model=$1 text=$2
    "$build/sluice" eval "$model" "$text" --numeric exact --tokens 400 --record "$logs/reference.slref" --quiet || return 1
    "$build/sluice" eval "$model" --reference "$logs/reference.slref" --device "$SLUICE_TEST_DEVICE" --json --quiet "$text" || return 1
}

# The same text and log probabilities with every expert in memory, and with few slots.
same_for_any_cache() {
    local model=$1 slots text
    for slots in 9 40 400; do
        "$build/sluice" run "$model" "Once there was a boat" --raw -n 24 --temp 0 --device "$SLUICE_TEST_DEVICE" --ctx 256 --chunk 32 --max-slots $slots \
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

# Memory, races, synchronisation: on the operations, whose inputs are small.
run_checker() {
    local checker
    checker=$(command -v compute-sanitizer) || { printf '%-34s          SKIP: no compute-sanitizer\n' checker >>"$table"; return; }
    for tool in memcheck racecheck synccheck; do
        for t in gpu_ops gpu_step; do
            in_parallel "$tool-$t" "$checker" --tool $tool --error-exitcode 9 "$build/test_$t"
        done
    done
}

export -f eval_model same_for_any_cache
export build logs repo
for s in $steps; do
    "run_$s"
done
wait
printf '\n'
sort "$table"
! grep -q "FAILED\|TIMED OUT" "$table"
