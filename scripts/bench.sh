#!/usr/bin/env bash
# Make every published number: results under docs/results, the page, and the tables of the docs.
#
#   scripts/bench.sh [steps|parity|offline|serve]...      default: all; about two hours on 2 cores
#
# Run it on a quiet machine: each result says how many cores other programs used, and the tables
# carry a warning above 0.15. LLAMA_DRAFT names the GGUF of the draft (docs/benchmarks.md).
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

for part in ${*:-steps parity offline serve}; do
    case $part in
    steps) run steps bench steps ;;
    parity) run parity parity text ;;
    offline)
        run offline bench offline --clients 1,8 --requests 8 --repeats 3 \
            --workloads chat,code,maths,context-1k,shared-prefix,repeated,sampled
        run synthetic bench offline --clients 1,8 --requests 8 --repeats 3 --workloads maths \
            --synthetic qwen3-8b-gsm8k-greedy
        ;;
    serve)
        arms="target-only async,target-only sync,DSpark async,mlx_lm,llama.cpp"
        draft=()
        if [ -n "${LLAMA_DRAFT:-}" ]; then
            arms+=",llama.cpp DSpark"
            draft=(--llama-draft "$LLAMA_DRAFT")
        fi
        run serve bench serve --clients 1,4,8,16 --requests 16 --tokens 48 --repeats 3 \
            --arms "$arms" ${draft[@]+"${draft[@]}"} --workloads chat,code,shared-prefix
        ;;
    *)
        echo "bench.sh: no part $part; choose from steps, parity, offline, serve" >&2
        exit 2
        ;;
    esac
done
"$tool" report "$results"/*.json -o "$results/report.html" --markdown "$results/report.md" \
    --into docs/benchmarks.md --into README.md
exit $status
