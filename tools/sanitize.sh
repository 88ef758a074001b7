#!/usr/bin/env bash
# Builds the native tests of the thread pool and of the collectives with sanitizers and runs them: sanitize.sh [FRAMES],
# the number of fuzzed frames (20,000). Ends with an error at the first finding.
set -euo pipefail
frames=${1:-20000}
tests=$(cd "$(dirname "$0")/../tests/native/collective" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

for sanitizers in address,undefined thread; do
  echo "== $sanitizers"
  bash "$tests/../executor/build.sh" "$folder/thread_pool_test" -g "-fsanitize=$sanitizers" -fno-sanitize-recover=all
  TSAN_OPTIONS=halt_on_error=1 "$folder/thread_pool_test"
  bash "$tests/build.sh" "$folder/$sanitizers" -g "-fsanitize=$sanitizers" -fno-sanitize-recover=all
  for source in "$tests"/*_test.cpp; do
    echo "== $sanitizers: $(basename "$source" .cpp)"
    TSAN_OPTIONS=halt_on_error=1 "$folder/$sanitizers/$(basename "$source" .cpp)"
  done
  TSAN_OPTIONS=halt_on_error=1 "$folder/$sanitizers/fuzz_frames" "$frames"
done
