#!/bin/sh
# An object compiled with AVX flags must share nothing with the baseline: the linker may keep its
# copy of a weak (COMDAT) symbol for everyone, which is SIGILL on an older CPU, and a static
# initialiser would run before the CPU was asked.
rc=0
for object in "$@"; do
  [ -f "$object" ] || { echo "$object: no such object; build first"; rc=1; continue; }
  weak=$(nm -C "$object" | awk '$2 == "W" || $2 == "V" || $2 == "u"')
  [ -z "$weak" ] || { echo "$object: weak symbols:"; echo "$weak"; rc=1; }
  if nm -C "$object" | grep -q '_GLOBAL__sub_I'; then
    echo "$object: has a static initialiser"
    rc=1
  fi
done
exit $rc
