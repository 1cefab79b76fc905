#!/usr/bin/env python3
"""Asks a running server one question over HTTP and shows where the milliseconds of the answer went.

usage: demo.py BASE_URL
"""
import json
import sys
import urllib.request

QUESTION = "Tell me a story about a fox."


def ask(base, question):
    """Streams the answer to the terminal; returns the ledger that comes in the last chunk."""
    body = {"model": "tiny-deepseek", "messages": [{"role": "user", "content": question}],
            "max_tokens": 200, "seed": 9, "stream": True, "fathom": {"ledger": True}}
    request = urllib.request.Request(base + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    ledger = None
    section = None
    with urllib.request.urlopen(request, timeout=60) as response:
        for line in response:
            line = line.decode().strip()
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[len("data: "):])
            ledger = chunk.get("fathom", {}).get("ledger", ledger)
            for choice in chunk["choices"]:
                for name, label in (("reasoning_content", "thinking"), ("content", "answer")):
                    text = choice["delta"].get(name)
                    if not text:
                        continue
                    if section != name:
                        print(f"\n[{label}]")
                        section = name
                        text = text.lstrip("\n")
                    print(text, end="", flush=True)
    print()
    return ledger


def show(ledger):
    wall = ledger["wall_ns"]
    print(f"\nwhere its {wall / 1e6:.1f} ms went "
          f"({ledger['prompt_tokens']} prompt tokens, {ledger['generated_tokens']} generated)")
    for part in sorted(ledger["parts"], key=lambda p: -p["ns"]):
        share = part["ns"] / wall
        name = part["part"].replace("_", " ")
        print(f"  {name:24} {part['ns'] / 1e6:9.3f} ms {share:6.1%}  {'#' * round(40 * share)}")
        ops = part.get("ops_ns", {})
        for op in sorted(ops, key=ops.get, reverse=True)[:6]:
            print(f"    {op.replace('_', ' '):22} {ops[op] / 1e6:9.3f} ms {ops[op] / wall:6.1%}")


def main():
    base = sys.argv[1].rstrip("/")
    print(f"> {QUESTION}")
    show(ask(base, QUESTION))


if __name__ == "__main__":
    main()
