#!/usr/bin/env bash
# The commands that made this draft, on machines with two NVIDIA H200 GPUs (29 November 2026), in two
# sessions. GPU 1 wrote rows all the time while GPU 0 trained on those that were there; one GPU gives
# the same kind of draft if the rows are made first.
set -euo pipefail
target=${1:?usage: train.sh TARGET_FOLDER}   # vllm-dspark fetch-demo
calibration=$(dirname "$0")/calibration_prompts.jsonl
shape="--num-layers 3 --taps 1,8,14,20,27 --markov-rank 64 --mask-token-id 16"
shape="$shape --num-anchors 96 --loss-rows 32768 --held-out-rows 48"
shape="$shape --evaluate-every 4000 --save-every 1000 --log-every 50"

# Stage 1, with the question templates of commit 68446e9. Fresh rows every 15 s; stopped by hand
# after 64 shards: 262,144 rows, 134 M tokens.
CUDA_VISIBLE_DEVICES=1 vllm-dspark train data "$target" rows_1 --num-shards 200 \
    --rows-per-shard 4096 --greedy-share 0.6 --max-answer 320 --seed 42 &
writer=$!
until [ -f rows_1/rows-00001.safetensors ]; do sleep 1; done
# Begun with --num-steps 24000, stopped at step 2,080 and gone on with from step 2,000 with
# --num-steps 21500, so that it would end inside the time that the machine was lent for.
CUDA_VISIBLE_DEVICES=0 vllm-dspark train fit "$target" run_1 --data rows_1 $shape \
    --num-steps 21500 --seed 42
kill "$writer"

# Stage 2, with the wider templates of commit df0a192: from the weights of stage 1, half the peak
# rate. The writer was paused for 145 s (races on its GPU) and stopped after 61 shards; the fit had
# seen 217,088 rows, 111 M tokens. run_1/draft was called "pair" there (fit_settings_2.json). The
# draft is that of step 24,000, whose held-out acceptance was the longest.
CUDA_VISIBLE_DEVICES=1 vllm-dspark train data "$target" rows_2 --num-shards 200 \
    --rows-per-shard 4096 --greedy-share 0.65 --min-answer 64 --max-answer 320 --seed 43 &
writer=$!
until [ -f rows_2/rows-00000.safetensors ]; do sleep 1; done
CUDA_VISIBLE_DEVICES=0 vllm-dspark train fit "$target" run_2 --data rows_2 --from run_1/draft $shape \
    --num-steps 25000 --learning-rate 0.002 --seed 43
kill "$writer"

# Rows that no fit saw, for the confidences: half from free prompts, half from the templates.
vllm-dspark train data "$target" check --prompts "$calibration" --own-share 0.5 --num-shards 1 \
    --rows-per-shard 142 --greedy-share 1 --max-answer 320 --seed 8
vllm-dspark train calibrate "$target" run_2/draft --data check --rows 142

# Without TF32 MLX's float32 is float32 on a GPU, too.
export MLX_ENABLE_TF32=0
forty=src/vllm_dspark/data/prompts.jsonl
for prompts in tests/data/held_out.jsonl $forty; do
    python scripts/acceptance.py "$target" run_2/draft --prompts $prompts
done
for dtype in bfloat16 float32; do
    python scripts/speed.py "$target" run_2/draft --prompts $forty --dtype $dtype --json race_$dtype.json
done
