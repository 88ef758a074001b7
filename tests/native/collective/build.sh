#!/usr/bin/env bash
# Builds programs over the collectives, two files at a time: build.sh FOLDER [PROGRAM.cpp...] [COMPILER OPTION...]. Without
# programs: the native tests. Each lies in FOLDER under its name without .cpp.
set -euo pipefail
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
engine=$(cd "$tests/../../../runtimes/native/collective" && pwd)
folder=$1
shift
# One instruction set level: the reductions are what is tested here, not how the compiler makes vectors of them.
options=(-std=c++17 -O1 -Wall -Wextra -Wpedantic -Werror -pthread -DLOWERKIT_ONE_LEVEL "-I$engine" "-I$tests")
programs=()
for argument in "$@"; do
  case $argument in
    *.cpp) programs+=("$argument") ;;
    *) options+=("$argument") ;;
  esac
done
if [[ ${#programs[@]} == 0 ]]; then
  programs=("$tests"/*.cpp)
fi

mkdir -p "$folder"
# The files of each of the engine's folders are compiled as one: headers and templates are read once. So what a file has
# for itself alone has a name that no other file of its folder uses.
sources=()
while read -r part; do
  unit=$folder/engine_$(basename "$part").cpp
  find "$part" -maxdepth 1 -name '*.cpp' | sort | sed 's/.*/#include "&"/' >"$unit"
  sources+=("$unit")
done < <(find "$engine" -name '*.cpp' -not -path '*/bindings/*' -printf '%h\n' | sort -u)
options+=(-Wno-subobject-linkage)  # classes of one file have fields of types that only this file knows

# What most files include of the standard library is read once.
printf '#include <%s>\n' algorithm atomic chrono cstdint cstring deque functional map memory mutex random string thread vector \
  >"$folder/standard.h"
c++ "${options[@]}" -x c++-header "$folder/standard.h" -o "$folder/standard.h.gch"
options+=(-include "$folder/standard.h")
printf '%s\n' "${sources[@]}" "${programs[@]}" |
  xargs -P 2 -I SOURCE bash -c \
    'folder=$1 source=$2; shift 2; c++ "$@" -c "$source" -o "$folder/$(basename "$source" .cpp).o" || exit 255' \
    compile "$folder" SOURCE "${options[@]}"
objects=()
for source in "${sources[@]}"; do objects+=("$folder/$(basename "$source" .cpp).o"); done
for program in "${programs[@]}"; do
  name=$(basename "$program" .cpp)
  c++ "${options[@]}" "$folder/$name.o" "${objects[@]}" -o "$folder/$name"
done
