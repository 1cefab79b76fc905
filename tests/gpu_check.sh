#!/usr/bin/env bash
# gpu_check.sh OUT [minutes]: everything that needs a GPU, in one go: builds the program (or takes the
# one that FATHOM names in the environment), checks every attention kernel against references, runs
# compute-sanitizer on small cases, then times the benchmark's rows.
# Logs and JSON go to the directory OUT. Exit code 1 when a check failed. A step that would run past
# the limit (10 minutes unless given) is cut off; those before it have printed what they found.
# Checks run beside each other, what is timed runs alone.
set -u
out=${1:?usage: gpu_check.sh OUT [minutes]}
minutes=${2:-10}
if ! [[ $minutes =~ ^[1-9][0-9]{0,2}$ ]]; then
  echo "gpu_check.sh: $minutes minutes: expected a whole number from 1 to 999" >&2
  exit 2
fi
limit=$((minutes * 60))
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$root"
rm -f "$out/failed"

left() { echo $((limit - SECONDS - 5)); }

# step NAME SECONDS COMMAND...: its output goes to NAME.log, the end of it to the terminal.
step() {
  local name=$1 most=$2
  shift 2
  local seconds
  seconds=$(left)
  if ((seconds < 10)); then
    echo "== $name: no time left"
    echo "$name" >>"$out/failed"
    return 1
  fi
  if ((seconds > most)); then seconds=$most; fi
  local begin=$SECONDS
  timeout "$seconds" "$@" >"$out/$name.log" 2>&1
  local status=$?
  echo "== $name: exit code $status, $((SECONDS - begin)) s"
  if ((status != 0)); then
    echo "$name" >>"$out/failed"
    tail -n 15 "$out/$name.log"
  fi
  return $status
}

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit --format=csv \
  >"$out/gpu.csv" 2>&1
if [ -z "${FATHOM:-}" ]; then
  step configure 60 cmake --preset gpu || exit 1
  step build 400 cmake --build --preset gpu --target fathom || exit 1
  FATHOM=build/gpu/bin/fathom
fi
bench=("$FATHOM" bench attention)

# Small cases under the tools. racecheck follows neither named barriers nor copies by the copy engine
# that mbarriers announce: kernels built on them are left to tests/cuda/order_test.cc.
ops=(decode prefill write backward merge)
for op in "${ops[@]}"; do
  step "check_$op" 120 "${bench[@]}" --check --op "$op" --json "$out/check_$op.json" &
  if command -v compute-sanitizer >/dev/null; then
    step "memcheck_$op" 120 compute-sanitizer --tool memcheck --error-exitcode 1 "${bench[@]}" \
      --check --small --op "$op" &
    only=()
    case $op in
      decode) only=(--only "d128 f16") ;;
      prefill) only=(--only lists) ;;  # all of them take longer than everything else together
    esac
    step "racecheck_$op" 120 compute-sanitizer --tool racecheck --error-exitcode 1 "${bench[@]}" \
      --check --small --op "$op" "${only[@]}" &
  fi
done
wait
for op in "${ops[@]}"; do grep FAILED "$out/check_$op.log"; done

# The rows that say most first: time may run out.
step time_mla 60 "${bench[@]}" --time --op decode --only "mla" --json "$out/time_mla.json"
step time_prefill 90 "${bench[@]}" --time --op prefill --json "$out/time_prefill.json"
step time_gqa 90 "${bench[@]}" --time --op decode --only "gqa" --json "$out/time_gqa.json"
step time_write 30 "${bench[@]}" --time --op write --json "$out/time_write.json"
step time_backward 40 "${bench[@]}" --time --op backward --json "$out/time_backward.json"
step time_merge 20 "${bench[@]}" --time --op merge --json "$out/time_merge.json"
step time_micro 20 "${bench[@]}" --time --op micro --json "$out/time_micro.json"
step peers 120 python3 bench/attention/peers.py --json "$out/peers.json"
for table in mla prefill gqa write backward merge micro; do
  grep -v "batch-invariant\|spans" "$out/time_$table.log"
done
if [ -e "$out/failed" ]; then
  echo "$SECONDS s in all; FAILED: $(tr '\n' ' ' <"$out/failed")"
  exit 1
fi
echo "$SECONDS s in all; all passed"
