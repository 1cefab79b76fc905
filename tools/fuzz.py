#!/usr/bin/env python3
"""Runs the fuzz targets for long, keeps their corpora, and writes down what was executed.

    cmake --preset fuzz && cmake --build --preset fuzz
    tools/fuzz.py --runs 1000000 reader_log reader_kineto
    tools/fuzz.py --seconds 600 --record record.json

Without names every target runs. A corpus grows in CORPUS/TARGET, starting from the seeds in
tests/fuzz/corpus/TARGET; an input that fails lands in CORPUS/TARGET.failures and ends the run with
exit code 1. With --record the counts are added to those that the file holds already, so that a long
run can be cut into pieces.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Longest input in bytes where the default does not fit: databases come in pages.
MAX_LEN = {"reader_nsys": 16384, "tokenizer": 4096, "config": 4096, "safetensors": 2048,
           "chat_request": 2048, "http": 2048, "reader_kineto": 1024, "reader_ncu": 1024,
           "reader_otlp": 1024}
DEFAULT_MAX_LEN = 512
# Speed for bulk: no entropic schedule, no stack kept for each allocation, a small quarantine. Leaks
# are looked for by the short runs of ctest.
FLAGS = ["-entropic=0", "-detect_leaks=0", "-timeout=10", "-rss_limit_mb=2048",
         "-print_final_stats=1"]
SANITIZER = "malloc_context_size=0:quarantine_size_mb=4:allocator_may_return_null=0"


def targets(build):
    return sorted(p.name.removesuffix("_fuzz") for p in (build / "bin").glob("*_fuzz"))


def run(build, corpus, name, limit):
    """One process of `name`; limit is a libFuzzer flag. Returns its counts."""
    grown = corpus / name
    failures = corpus / f"{name}.failures"
    for folder in (grown, failures):
        folder.mkdir(parents=True, exist_ok=True)
    max_len = MAX_LEN.get(name, DEFAULT_MAX_LEN)
    seeds = ROOT / "tests/fuzz/corpus" / name
    command = [str(build / "bin" / f"{name}_fuzz"), *FLAGS, f"-max_len={max_len}", limit,
               f"-artifact_prefix={failures}/", str(grown), *([str(seeds)] if seeds.is_dir() else [])]
    begin = time.monotonic()
    done = subprocess.run(command, env=os.environ | {"ASAN_OPTIONS": SANITIZER},
                          stderr=subprocess.PIPE, errors="replace")
    text = done.stderr
    last = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)/(\S+)", text)
    executed = re.search(r"stat::number_of_executed_units: (\d+)", text)
    return {
        "failed": done.returncode != 0,
        "output": text,
        "executions": int(executed[1]) if executed else 0,
        "seconds": time.monotonic() - begin,
        "max_len": max_len,
        "edges": int(last[-1][0]) if last else 0,
        "features": int(last[-1][1]) if last else 0,
        "corpus_inputs": sum(1 for _ in grown.iterdir()),
        "corpus_bytes": sum(p.stat().st_size for p in grown.iterdir()),
    }


def add(record, name, counts):
    entry = record.setdefault("targets", {}).setdefault(name, {"executions": 0, "seconds": 0.0,
                                                               "failures": 0})
    entry["executions"] += counts["executions"]
    entry["seconds"] = round(entry["seconds"] + counts["seconds"], 1)
    entry["failures"] += counts["failed"]
    for key in ("edges", "features", "corpus_inputs", "corpus_bytes", "max_len"):
        entry[key] = counts[key]
    entry["executions_per_second"] = round(entry["executions"] / max(entry["seconds"], 1e-9))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="*", help="e.g. reader_log; default: all")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--runs", type=int, help="executions of each target")
    limit.add_argument("--seconds", type=int, default=60, help="of each target; default 60")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/fuzz")
    parser.add_argument("--corpus", type=pathlib.Path, default=ROOT / "build/fuzz/corpus")
    parser.add_argument("--record", type=pathlib.Path, help="JSON file to add the counts to")
    options = parser.parse_args()
    known = targets(options.build)
    if not known:
        parser.error(f"no fuzz targets in {options.build}/bin: build the preset `fuzz` first")
    for name in options.target:
        if name not in known:
            parser.error(f"unknown target {name}; known: {', '.join(known)}")
    record = {}
    if options.record and options.record.exists():
        record = json.loads(options.record.read_text())
    flag = f"-runs={options.runs}" if options.runs else f"-max_total_time={options.seconds}"
    failed = False
    for name in options.target or known:
        counts = run(options.build, options.corpus, name, flag)
        print(f"{name}: {counts['executions']} executions, "
              f"{counts['executions'] / counts['seconds']:.0f}/s, {counts['edges']} edges, "
              f"{counts['corpus_inputs']} inputs{', FAILED' if counts['failed'] else ''}")
        if counts["failed"]:
            failed = True
            print(counts["output"][-8000:], file=sys.stderr)
        if options.record:
            add(record, name, counts)
            options.record.write_text(json.dumps(record, indent=2) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
