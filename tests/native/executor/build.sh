#!/usr/bin/env bash
# Builds the native test of the thread pool: build.sh PROGRAM [COMPILER OPTION...].
set -euo pipefail
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
native=$(cd "$tests/../../../runtimes/native/executor" && pwd)
program=$1
shift
hook=(-include "$tests/around_claim.h" "-DLOWERKIT_AROUND_CLAIM=around_claim")
c++ -std=c++17 -O1 -Wall -Wextra -Wpedantic -Werror -pthread "-I$native" "${hook[@]}" "$@" \
  "$tests/thread_pool_test.cpp" "$native/thread_pool.cpp" -o "$program"
