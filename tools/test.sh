#!/usr/bin/env bash
# The whole test suite: format, lint, types, then native and Python tests. Ends with pytest's own closing line.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "== environment"
bash tools/setup.sh test
export PATH="$PWD/.venv/bin:$PATH"
export HF_HUB_OFFLINE=1

echo "== browser"
bash tools/browser.sh

echo "== ruff"
ruff format --check .
ruff check .

echo "== pyright"
pyright

echo "== pytest"
# Two workers on two cores; each test that runs threads of its own is bounded by OMP_NUM_THREADS.
OMP_NUM_THREADS=1 pytest -n 2 --dist loadscope "$@"
