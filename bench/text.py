#!/usr/bin/env python3
"""Tokenisation speed of one thread, Fathom beside the `tokenizers` package, after comparing their ids.

  bench/text.py --program build/release/bin/text_bench --check build/release/bin/text_check TEXT...

Figures are medians of --repeats runs each, taken in turn, by CPU time. Tokenizers come from the pip packages that
the tests use.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/text"))

import published  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402


def fathom_mb_s(program, tokenizer, text):
    result = subprocess.run([program, "--benchmark_filter=Encode", "--benchmark_format=json"],
                            env={**os.environ, "FATHOM_TOKENIZER": str(tokenizer),
                                 "FATHOM_TEXT": str(text)}, capture_output=True, check=True)
    return json.loads(result.stdout)["benchmarks"][0]["bytes_per_second"] / 1e6


def tokenizers_mb_s(tokenizer, text):
    begin = time.process_time()
    tokenizer.encode(text, add_special_tokens=False)
    return len(text.encode()) / (time.process_time() - begin) / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", type=pathlib.Path)
    parser.add_argument("--program", required=True)
    parser.add_argument("--check", required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=[
        "deepseek-v3", "deepseek-v2", "deepseek-r1-distill-qwen-7b", "deepseek-r1-distill-llama-8b"])
    options = parser.parse_args()
    os.environ["TEXT_CHECK"] = options.check
    print(f"{'tokenizer':30} {'text':24} {'MB':>6} {'tokens':>9} {'fathom':>8} {'tokenizers':>11}  MB/s")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            path = published.extract(name, pathlib.Path(folder)) / "tokenizer.json"
            reference = Tokenizer.from_file(str(path))
            for text_path in options.texts:
                text = text_path.read_text(encoding="utf-8")
                ours = published.Fathom(path)
                ids, _ = ours(text)
                ours.close()
                if ids != reference.encode(text, add_special_tokens=False).ids:
                    sys.exit(f"{name}, {text_path}: the ids differ; no figure without equal output")
                speeds = [(fathom_mb_s(options.program, path, text_path),
                           tokenizers_mb_s(reference, text)) for _ in range(options.repeats)]
                fathom, other = (statistics.median(s) for s in zip(*speeds))
                print(f"{name:30} {text_path.name:24} {len(text.encode()) / 1e6:6.1f} {len(ids):9} "
                      f"{fathom:8.1f} {other:11.1f}", flush=True)


if __name__ == "__main__":
    main()
