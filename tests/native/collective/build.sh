#!/usr/bin/env bash
# Builds the native tests of the collectives, two files at a time: build.sh FOLDER [COMPILER OPTION...] leaves one program
# for each *_test.cpp, and fuzz_frames, in FOLDER.
set -euo pipefail
folder=$1
shift
tests=$(cd "$(dirname "$0")" && pwd)
engine=$(cd "$tests/../../../runtimes/native/collective" && pwd)
mkdir -p "$folder"
# A sanitizer build has one instruction set level: the choice among several runs before a sanitizer is ready.
options=(-std=c++17 -O1 -Wall -Wextra -Wpedantic -Werror -pthread -DLOWERKIT_ONE_LEVEL "-I$engine" "-I$tests" "$@")

printf '%s\n' "$engine"/*.cpp "$tests"/*.cpp |
  xargs -P 2 -I SOURCE bash -c 'folder=$1 source=$2; shift 2; c++ "$@" -c "$source" -o "$folder/$(basename "$source" .cpp).o"' \
    compile "$folder" SOURCE "${options[@]}"
objects=()
for source in "$engine"/*.cpp; do objects+=("$folder/$(basename "$source" .cpp).o"); done
for source in "$tests"/*.cpp; do
  name=$(basename "$source" .cpp)
  c++ "${options[@]}" "$folder/$name.o" "${objects[@]}" -o "$folder/$name"
done
