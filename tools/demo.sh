#!/usr/bin/env bash
# Serves the shipped model, asks it over HTTP, prints the answer and its ledger, stops the server.
set -euo pipefail
cd "$(dirname "$0")/.."
fathom=build/release/bin/fathom
log=$(mktemp)
"$fathom" serve --port 0 > "$log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -f "$log"' EXIT

url=
for _ in $(seq 200); do
  url=$(sed -n 's/.* on \(http:[^ ]*\) .*/\1/p' "$log")
  [ -n "$url" ] && break
  kill -0 "$server" 2>/dev/null || { echo "the server did not start:" >&2; cat "$log" >&2; exit 1; }
  sleep 0.1
done
[ -n "$url" ] || { echo "the server did not say where it listens within 20 s:" >&2; cat "$log" >&2; exit 1; }

sed -n '1,/serving/p' "$log"
echo
python3 tools/demo.py "$url"

kill -TERM "$server"
wait "$server" || true
trap 'rm -f "$log"' EXIT
cat <<'NEXT'

Next:
  build/release/bin/fathom run                       chat with the model in this terminal
  build/release/bin/fathom serve                     the OpenAI-compatible server, on port 8000
  build/release/bin/fathom diagnose TRACE LOG ...    why is *your* server slow
  build/release/bin/fathom --help                    everything else
NEXT
