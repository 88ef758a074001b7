#!/usr/bin/env bash
# The test suite: format, lint, types, then native and Python tests. Ends with pytest's own closing line.
#
#   test.sh             what continuous integration runs: every value of every parameter of every test
#   test.sh --quick     lint, architecture, one test of each family, the main path of each front end and target
#   test.sh --changed   the tests that a change can affect (tools/suite/changed.py); --since REVISION compares with another commit
#   test.sh --all       every combination of parameters, and the sweeps
#   test.sh --record    all tests under coverage.py: what each executes, and which lines only --all reaches
#
# What follows goes to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/steps.sh

tier=default
case "${1:-}" in
    --quick | --changed | --all | --record)
        tier=${1#--}
        shift
        ;;
esac
since=()
if [ "$tier" = changed ] && [ "${1:-}" = --since ]; then
    since=(--since "$2")
    shift 2
fi

step "environment" bash tools/setup.sh test
export PATH="$PWD/.venv/bin:$PATH"
export HF_HUB_OFFLINE=1
unset PYTHONDONTWRITEBYTECODE # pytest keeps the tests as it has compiled them
# Two workers on two cores; each test that runs threads of its own is bounded by OMP_NUM_THREADS.
export OMP_NUM_THREADS=1
workers=(-n 2 --dist loadscope --no-loadscope-reorder)

step "format" ruff format --check --quiet .
step "lint" ruff check --quiet .

case $tier in
    quick)
        mapfile -t tests < <(grep '^tests/' tests/quick.txt)
        echo "== pytest"
        exec pytest "${workers[@]}" --tier default "${tests[@]}" "$@"
        ;;
    changed)
        mkdir -p build
        python -m tools.suite.changed "${since[@]}" >build/changed-tests.txt
        mapfile -t files < <(python -m tools.suite.changed "${since[@]}" --files)
        if [ ${#files[@]} -gt 0 ]; then
            step "types of the files that changed" pyright --threads 2 "${files[@]}"
        fi
        tests=(@build/changed-tests.txt)
        if [ "$(cat build/changed-tests.txt)" = everything ]; then
            tests=()
        fi
        echo "== pytest"
        exec pytest "${workers[@]}" --tier default "${tests[@]}" "$@"
        ;;
esac

step "browser" bash tools/browser.sh
step "types" pyright --threads 2

echo "== pytest"
case $tier in
    default) exec pytest "${workers[@]}" --tier default "$@" ;;
    all) exec pytest "${workers[@]}" --tier all "$@" ;;
    record) exec python -m tools.suite.record "$@" ;;
esac
