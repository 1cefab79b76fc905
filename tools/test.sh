#!/usr/bin/env bash
# The checks and tests of a built tree. --all adds the slow ones and the sanitizer builds.
set -euo pipefail
cd "$(dirname "$0")/.."
all=${1:-}
jobs=$(nproc)

echo "== lint"
tools/lint.sh

if command -v nvcc > /dev/null; then
  echo "== CUDA kernels (compiled, not run: that takes a GPU)"
  cmake --preset gpu > build/.configure.gpu.log 2>&1 || { cat build/.configure.gpu.log; exit 1; }
  cmake --build --preset gpu -j "$jobs" --target fathom -- --quiet
fi

echo "== tests (release)"
slow="-LE slow"
[ "$all" = --all ] && slow=""
# shellcheck disable=SC2086
(cd build/release && ctest -j "$jobs" --output-on-failure --no-tests=error $slow)

configure() {  # preset
  cmake --preset "$1" > "build/.configure.$1.log" 2>&1 || { cat "build/.configure.$1.log"; exit 1; }
}
export LSAN_OPTIONS=suppressions=$PWD/tools/lsan.supp:print_suppressions=0
sanitize() {  # preset, label regex
  echo "== tests ($1)"
  configure "$1"
  cmake --build --preset "$1" -j "$jobs" -- --quiet
  (cd "build/$1" && ctest -j "$jobs" --output-on-failure --no-tests=error -L "$2" -LE slow)
}
if [ "$all" = --all ]; then
  sanitize asan-ubsan '.*'
  sanitize tsan 'base|event|ops|model|engine|session|observe|server|e2e'  # all that has threads
else
  echo "== parsers (asan-ubsan)"
  configure asan-ubsan
  cmake --build --preset asan-ubsan -j "$jobs" --target parsers_test -- --quiet
  build/asan-ubsan/bin/parsers_test --gtest_brief=1
fi
