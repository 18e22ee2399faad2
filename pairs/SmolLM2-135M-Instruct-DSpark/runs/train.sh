#!/usr/bin/env bash
# The commands that made this draft, on a machine with two NVIDIA H200 GPUs (29 November 2026).
# GPU 1 wrote rows all the time while GPU 0 trained on those that were there; one GPU gives the
# same kind of draft if the rows are made first.
set -euo pipefail
target=${1:?usage: train.sh TARGET_FOLDER}   # vllm-dspark fetch-demo

# Fresh rows every 15 s. Stopped by hand after 64 shards: 262,144 rows, 134 M tokens.
CUDA_VISIBLE_DEVICES=1 vllm-dspark train data "$target" rows --num-shards 200 \
    --rows-per-shard 4096 --greedy-share 0.6 --max-answer 320 --seed 42 &
writer=$!
until [ -f rows/rows-00001.safetensors ]; do sleep 1; done

# Begun with --num-steps 24000, stopped at step 2,080 and gone on with from step 2,000 with
# --num-steps 21500, so that it would end inside the time that the machine was lent for.
CUDA_VISIBLE_DEVICES=0 vllm-dspark train fit "$target" run --data rows \
    --num-layers 3 --taps 1,8,14,20,27 --markov-rank 64 --mask-token-id 16 \
    --num-steps 21500 --num-anchors 96 --loss-rows 32768 --held-out-rows 48 \
    --evaluate-every 4000 --save-every 1000 --log-every 50 --seed 42
kill "$writer"

# Rows that the fit never saw, for the confidences.
vllm-dspark train data "$target" check --num-shards 1 --rows-per-shard 256 --greedy-share 1 \
    --max-answer 320 --seed 7
vllm-dspark train calibrate "$target" run/draft --data check --rows 256

python scripts/acceptance.py "$target" run/draft --prompts tests/data/held_out.jsonl
