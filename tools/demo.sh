#!/bin/sh
# The demo: the small mixture of experts in models/, its experts streamed from disk under a budget that holds a part of them. Nothing is downloaded.
# demo.sh BUILD_DIR
set -eu
build=${1:?usage: demo.sh BUILD_DIR}
model=$(dirname "$0")/../models/sluice-smol-moe
options="--ctx 512 --chunk 16" # small chunks keep the scratch memory small

say() { # what is typed, and what comes of it
    printf '\n$ sluice'
    for word; do
        case $word in
        *[!A-Za-z0-9_./-]*) printf ' "%s"' "$word" ;;
        *) printf ' %s' "$word" ;;
        esac
    done
    echo
    "$build/sluice" "$@"
}

# A budget below the size of the model: all of it, the process too, in less memory than the file's weights.
size=$(wc -c <"$model/model.safetensors")
budget=$(((size - 1) / 1048576))M

# shellcheck disable=SC2086
{
    say info "$model" $options
    say run "$model" --memory "$budget" $options -n 160 --temp 0.7 --min-p 0.1 --repeat-penalty 1.2 --seed 1 --timing \
        "Tell me a story about a fox who finds a lantern."
    say run "$model" --memory "$budget" $options "Turn this order into JSON: 3 red pens, 12 yellow lemons"
}
echo
echo "28 of its 52 million weights work on a token: fluent, seldom right. Talk with it: $build/sluice chat $model"
