#!/usr/bin/env bash
# Train a draft for the tiny Qwen3 target from nothing, on a CPU, in under five minutes.
#
#   scripts/train_tiny.sh [FOLDER]      (default: build/tiny)
#
# Acceptance length goes from 1 to well above 2.5; then the confidences are calibrated.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/tiny}
target=tests/conformance/target
python=${PYTHON:-.venv/bin/python}
train() { "$python" -m vllm_dspark.cli.main train "$@"; }

train data "$target" "$out/rows" --format plain --num-shards 2 --rows-per-shard 96 \
    --row-length 192 --max-question 24 --seed 1
train fit "$target" "$out/run" --data "$out/rows" --num-layers 2 --taps 1,3,4 --markov-rank 24 \
    --mask-token-id 3 --num-steps 160 --batch-rows 8 --num-anchors 20 --held-out-rows 16 \
    --evaluate-every 40 --save-every 40 --log-every 10 --seed 1
train calibrate "$target" "$out/run/draft" --data "$out/rows" --rows 16
