#!/usr/bin/env bash
# Everything that reads the code without running it. Files that did not change since clang-tidy last
# passed them (same bytes, same headers, same checks) are skipped: stamps lie in build/tidy.
set -uo pipefail
cd "$(dirname "$0")/.."
build=build/${PRESET:-release}
failed=0

sources=$(git ls-files 'src/*' 'tests/*' 'bench/*' | grep -E '\.(h|cc|inc|cu|cuh)$' || true)
if ! echo "$sources" | xargs clang-format-14 --dry-run -Werror 2> build/format.log; then
  echo "not formatted (make format):"
  grep -o '^[^:]*' build/format.log | sort -u
  failed=1
fi

python3 tools/check_layers.py || failed=1
tools/check_isa_objects.sh "$build"/src/kernels/CMakeFiles/fathom_kernels_cpu_*.dir/cpu/*.o || failed=1
python3 tools/clang_tidy.py "$build" || failed=1
exit $failed
