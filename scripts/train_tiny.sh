#!/usr/bin/env bash
# Train a draft for the tiny Qwen3 target from nothing, on a CPU, in under five minutes.
#
#   scripts/train_tiny.sh [FOLDER]      (default: build/tiny)
#
# Acceptance length goes from 1 to about 4; then the confidences are calibrated.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/tiny}
target=tests/conformance/target
python=${PYTHON:-.venv/bin/python}
train() { "$python" -m vllm_dspark.cli.main train "$@"; }

train data "$target" "$out/rows" --format plain --num-shards 2 --rows-per-shard 96 \
    --row-length 192 --max-question 24 --seed 1
train fit "$target" "$out/run" --data "$out/rows" --num-layers 2 --taps 1,3,4 --markov-rank 24 \
    --mask-token-id 3 --num-steps 100 --batch-rows 8 --num-anchors 20 --held-out-rows 16 \
    --evaluate-every 50 --save-every 50 --log-every 10 --seed 1
train data "$target" "$out/check" --format plain --num-shards 1 --rows-per-shard 48 \
    --row-length 192 --max-question 24 --greedy-share 1 --seed 2
train calibrate "$target" "$out/run/draft" --data "$out/check" --rows 48
