#!/bin/sh
# Fails when an object compiled for one instruction set defines a weak symbol (its copy could
# replace the baseline's at link time and fault on older CPUs) or has a static initialiser (it
# would run on every CPU).
# usage: check_isa_objects.sh OBJECT...
rc=0
[ $# -gt 0 ] || { echo "usage: $0 OBJECT..."; exit 2; }
for object in "$@"; do
  symbols=$(nm -C "$object") || exit 2
  weak=$(printf '%s\n' "$symbols" | awk '$2 == "W" || $2 == "V" || $2 == "u" || $2 == "w"')
  if [ -n "$weak" ]; then
    printf '%s: weak symbols:\n%s\n' "$object" "$weak"
    rc=1
  fi
  if printf '%s\n' "$symbols" | grep -q '_GLOBAL__sub_I'; then
    echo "$object: has a static initialiser"
    rc=1
  fi
done
exit $rc
