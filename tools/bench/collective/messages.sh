#!/usr/bin/env bash
# Measures messages and all_reduce over TCP on this machine: messages.sh [RANKS], 2 by default.
set -euo pipefail
root=$(cd "$(dirname "$0")/../../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bash "$root/tests/native/collective/build.sh" "$folder" "$root/tools/bench/collective/messages.cpp" -O3
"$folder/messages" "${1:-2}"
