#!/usr/bin/env bash
# Builds the native tests of the messages: build.sh FOLDER [COMPILER OPTION...] leaves messages_test, operations_test,
# processes_test and fuzz_frames in FOLDER.
set -euo pipefail
folder=$1
shift
tests=$(cd "$(dirname "$0")" && pwd)
engine=$(cd "$tests/../../../runtimes/native/collective" && pwd)
mkdir -p "$folder"
options=(-std=c++17 -O1 -Wall -Wextra -Wpedantic -Werror -pthread "-I$engine" "-I$tests" "$@")

# Until the engine's own reductions lie beside it, slow ones stand in for them.
reductions=$engine/reduce.cpp
if [[ ! -e $reductions ]]; then
  reductions=$tests/stand_in/reduce.cpp
  options+=("-I$tests/stand_in")
fi

objects=()
for source in "$engine"/{operation,frame,tcp_stream,ring_stream,stream_link,loopback_link,simulated_link}.cpp \
  "$engine"/messenger*.cpp "$engine"/message_*.cpp "$engine/exchange.cpp" "$reductions"; do
  object=$folder/$(basename "$source" .cpp).o
  c++ "${options[@]}" -c "$source" -o "$object"
  objects+=("$object")
done
for test in messages_test operations_test processes_test fuzz_frames; do
  c++ "${options[@]}" "$tests/$test.cpp" "${objects[@]}" -o "$folder/$test"
done
