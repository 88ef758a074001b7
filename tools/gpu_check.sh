#!/usr/bin/env bash
# Everything that a card can say about lowerkit, in one command, without network: parity, sanitizer, benchmark, and
# words by which the simulated device is calibrated. Prints a summary and writes gpu_check.json and calibration.npz.
#
#   bash tools/gpu_check.sh [--prepare-only] [--device cuda:1] [--output FOLDER]
#
# What the card runs is compiled first into build/gpu_check, here or on another machine: that needs the development
# environment (tools/setup.sh). The run itself needs Python, numpy, msgspec and the native module of lowerkit alone.
set -euo pipefail
cd "$(dirname "$0")/.."

python="${PYTHON:-.venv/bin/python}"
[ -x "$python" ] || python=python3
bundle=build/gpu_check
if [ ! -f "$bundle/bundle.json" ]; then
    "$python" tools/gpu/prepare.py "$bundle"
fi
if [ "${1:-}" = "--prepare-only" ]; then
    exit 0
fi
exec "$python" tools/gpu/run.py "$bundle" "$@"
