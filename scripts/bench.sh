#!/usr/bin/env bash
# Make every published number: results under docs/results, the page, and the tables of the docs.
#
#   scripts/bench.sh [PART]...      default: all, about two hours on 2 cores. Parts:
#     steps      where a step's time goes       parity   every way to run, against two references
#     offline    workloads in process           widths   the planner against every fixed width
#     grid       the planner against the target alone, by clients, context and kind of request
#     serve      servers under one client, others' included
#
# Run it on a quiet machine: each result says how many cores other programs used, and the tables
# carry a warning above 0.15. LLAMA_DRAFT names the GGUF of the draft (docs/benchmarks.md), and
# MLX_DSPARK_PYTHON the python of an environment that has mlx-dspark.
set -euo pipefail
cd "$(dirname "$0")/.."
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE # the fastest kernels of this processor, not those of a test
tool=.venv/bin/vllm-dspark
results=docs/results
mkdir -p "$results"
status=0

run() { # run NAME COMMAND...: keep going after a mismatch, and fail at the end
    local name=$1
    shift
    echo "== $name"
    "$tool" "$@" -o "$results/$name.json" >"$results/$name.log" 2>&1 || {
        status=1
        tail -n 5 "$results/$name.log"
    }
}

for part in ${*:-steps parity offline grid widths serve}; do
    case $part in
    steps) run steps bench steps --requests 1,4,8 --contexts 128,1024 --drafts 3,7 --repeats 8 ;;
    parity) run parity parity text ;;
    offline)
        run offline bench offline --clients 1,8 --requests 8 --tokens 48 --repeats 3 \
            --workloads chat,code,maths,context-1k,repeated,sampled
        run synthetic bench offline --clients 1,8 --requests 8 --tokens 48 --repeats 3 \
            --workloads maths --synthetic qwen3-8b-gsm8k-greedy
        ;;
    grid)
        bases="short shared-prefix shared-4k"
        workloads=$(for base in $bases; do printf '%s,%s+sampled,%s+json,' "$base" "$base" "$base"; done)
        run grid bench offline --clients 1,4,8,16 --requests 4 --tokens 32 --repeats 3 \
            --max-model-len 6144 --arms "target-only async,DSpark async adaptive" \
            --workloads "$workloads"
        ;;
    widths)
        arms="target-only async,DSpark async adaptive"
        for width in 1 2 3 4 5 6 7; do arms+=",DSpark async K=$width"; done
        run widths bench offline --clients 1,8 --requests 8 --tokens 48 --repeats 3 --arms "$arms" \
            --workloads short,short+sampled,shared-prefix
        ;;
    serve)
        arms="target-only async,target-only sync,DSpark async,mlx_lm,mlx-dspark,llama.cpp"
        options=(${MLX_DSPARK_PYTHON:+--mlx-dspark-python "$MLX_DSPARK_PYTHON"})
        if [ -n "${LLAMA_DRAFT:-}" ]; then
            arms+=",llama.cpp DSpark"
            options+=(--llama-draft "$LLAMA_DRAFT")
        fi
        run serve bench serve --clients 1,8 --requests 35 --tokens 64 --repeats 3 \
            --arms "$arms" ${options[@]+"${options[@]}"} --workloads short
        ;;
    *)
        echo "bench.sh: no part $part; choose from steps, parity, offline, grid, widths, serve" >&2
        exit 2
        ;;
    esac
done
"$tool" report "$results"/*.json -o "$results/report.html" --markdown "$results/report.md" \
    --into docs/benchmarks.md --into README.md
exit $status
