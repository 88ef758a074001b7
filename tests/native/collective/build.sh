#!/usr/bin/env bash
# Builds programs over the messages: build.sh FOLDER [PROGRAM.cpp...] [COMPILER OPTION...]. Without programs: the native
# tests. Each lies in FOLDER under its name without .cpp.
set -euo pipefail
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
engine=$(cd "$tests/../../../runtimes/native/collective" && pwd)
folder=$1
shift
options=(-std=c++17 -O1 -Wall -Wextra -Wpedantic -Werror -pthread "-I$engine" "-I$tests")
programs=()
for argument in "$@"; do
  case $argument in
    *.cpp) programs+=("$argument") ;;
    *) options+=("$argument") ;;
  esac
done
if [[ ${#programs[@]} == 0 ]]; then
  programs=("$tests"/{messages_test,operations_test,processes_test,fuzz_frames}.cpp)
fi

# Until the engine's own reductions lie beside it, slow ones stand in for them.
reductions=$engine/reduce.cpp
if [[ ! -e $reductions ]]; then
  reductions=$tests/stand_in/reduce.cpp
  options+=("-I$tests/stand_in")
fi

mkdir -p "$folder"
objects=()
for source in "$engine"/{operation,frame,tcp_stream,ring_stream,stream_link,loopback_link,simulated_link}.cpp \
  "$engine"/messenger*.cpp "$engine"/message_*.cpp "$engine/exchange.cpp" "$reductions"; do
  object=$folder/$(basename "$source" .cpp).o
  c++ "${options[@]}" -c "$source" -o "$object"
  objects+=("$object")
done
for program in "${programs[@]}"; do
  c++ "${options[@]}" "$program" "${objects[@]}" -o "$folder/$(basename "$program" .cpp)"
done
