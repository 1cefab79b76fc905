#!/usr/bin/env python3
"""Fails when a file includes a layer it may not depend on. The table is the architecture."""
import pathlib
import re
import sys

ALLOWED = {  # layer -> layers it may include besides itself and base
    "base": set(),
    "event": set(),
    "cost": set(),
    "kernels": set(),
    "text": set(),
    "ops": {"kernels", "cost", "event"},
    "model": {"ops", "cost", "event"},
    "engine": {"model", "ops", "kernels", "cost", "event"},
    "session": {"engine", "model", "ops", "kernels", "cost", "text", "event"},
    "observe": {"event", "cost"},
    "server": {"session", "engine", "text", "observe", "event"},
    "diagnose": {"event", "cost"},
    "tune": {"event", "cost", "diagnose"},
    "capi": {"session", "engine", "ops", "text"},
    "cli": {"server", "session", "engine", "model", "ops", "kernels", "text", "observe", "diagnose",
            "tune", "event", "cost"},
}
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".inc"}


def main() -> int:
    bad = 0
    root = pathlib.Path(__file__).resolve().parent.parent / "src"
    for path in sorted(root.rglob("*")):
        if path.suffix not in SUFFIXES:
            continue
        layer = path.relative_to(root).parts[0]
        if layer not in ALLOWED:
            print(f"{path}: unknown layer {layer}; add it to the table or move the file")
            bad += 1
            continue
        legal = {layer, "base"} | ALLOWED[layer]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([a-z_]+)/', line)
            if match and match[1] in ALLOWED and match[1] not in legal:
                print(f"{path}:{number}: {layer} may not include {match[1]} "
                      f"(allowed: {sorted(legal - {layer})})")
                bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
