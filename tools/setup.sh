#!/usr/bin/env bash
# Installs what building and testing need: Debian packages (as root) and a Python environment in
# .venv. A second run finds the lists unchanged and returns at once.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=$(grep -v '^#' tools/apt-packages.txt)
missing=$(for p in $packages; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || echo "$p"
done)
if [ -n "$missing" ]; then
  if [ "$(id -u)" != 0 ]; then
    echo "setup: these Debian packages are missing; install them as root and run again:" >&2
    echo "  apt-get install --no-install-recommends" $missing >&2
    exit 2
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q
  apt-get install -q -y --no-install-recommends $missing
fi

want=$(cat tools/requirements.txt | sha256sum | cut -d' ' -f1)
if [ "$(cat .venv/.requirements 2>/dev/null)" != "$want" ]; then
  /usr/bin/python3 -m venv .venv
  .venv/bin/pip install -q --disable-pip-version-check -r tools/requirements.txt
  echo "$want" > .venv/.requirements
fi
