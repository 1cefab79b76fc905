#!/usr/bin/env python3
"""Fathom beside llama.cpp on this machine: same weights, same token ids, same threads, one run.

    compare.py MODEL FOLDER --fathom build/release/bin/fathom --llama-python VENV/bin/python \
        --json FILE

1. Logits of both on the same ids: the largest relative error, and how often the likeliest token is
   the same. Above --max-error nothing is timed.
2. llama.cpp with weights in bf16 and f16 (or --weights alone), flash attention on and off: its best
   setting for each figure is what counts.
3. Rounds of both by turns; the medians are compared. Memory bandwidth is read between Fathom's
   steps, since other tenants of the machine move it.
"""

import argparse
import datetime
import json
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
CHECKED_PROMPT, CHECKED_STEPS = 200, 16


class Bench:
    def __init__(self, args):
        self.args = args
        self.model = args.folder / args.model
        self.vocab = json.loads((self.model / "config.json").read_text())["vocab_size"]
        self.commands = []

    def call(self, command):
        command = [str(part) for part in command]
        shown = " ".join(command).replace(f"{HERE}/", "")
        for name, value in (("FOLDER", self.args.folder), ("FATHOM", self.args.fathom),
                            ("LLAMA_PYTHON", self.args.llama_python)):
            shown = shown.replace(str(value), name)
        self.commands.append(re.sub(rf"{tempfile.gettempdir()}/\S+", "FILE", shown))
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
        return done.stdout

    def fathom(self, *arguments):
        return self.call([self.args.fathom, "bench", "model", self.model, "--threads",
                          self.args.threads, *arguments])

    def llama(self, command, setting, *arguments):
        dtype, flash = setting
        gguf = f"{self.model}-{dtype}.gguf"
        out = self.call([self.args.llama_python, HERE / "peer.py", command, gguf, "--threads",
                         self.args.threads, "--flash-attn", flash, *arguments])
        return json.loads(out)

    def check(self):
        """Relative error of Fathom's logits against llama.cpp's, and top-1 agreement, by setting."""
        with tempfile.TemporaryDirectory() as folder:
            tokens, ours, theirs = (pathlib.Path(folder) / n for n in ("tokens", "ours", "theirs"))
            ids = np.random.default_rng(7).integers(0, self.vocab, CHECKED_PROMPT + CHECKED_STEPS)
            np.savetxt(tokens, ids, fmt="%d")
            asked = ("--tokens", tokens, "--prompt", CHECKED_PROMPT)
            self.fathom(*asked, "--logits", ours)
            a = np.fromfile(ours, np.float32).reshape(-1, self.vocab)
            result = {}
            for dtype in self.args.weights:
                self.llama("logits", (dtype, 1), *asked, "--out", theirs)
                b = np.fromfile(theirs, np.float32).reshape(-1, self.vocab)
                assert a.shape == b.shape and np.isfinite(a).all() and np.isfinite(b).all()
                error = np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)
                result[dtype] = {
                    "positions": len(a),
                    "largest_relative_error": float(error.max()),
                    "same_top_1": float((a.argmax(1) == b.argmax(1)).mean()),
                }
        return result

    def fathom_round(self):
        """{(phase, tokens): row} of one process a phase."""
        rows = {}
        lists = {"prefill": self.args.prefill, "decode": self.args.decode}
        for phase, lengths in lists.items():
            only = ["--steps", 0, "--repeats", 1] if phase == "prefill" else ["--repeats", 0]
            with tempfile.NamedTemporaryFile() as file:
                self.fathom("--prompt", ",".join(map(str, lengths)), "--chunk", self.args.chunk,
                            *(only if phase == "prefill" else [*only, "--steps", self.args.steps]),
                            "--json", file.name)
                report = json.load(open(file.name))
            for length, row in zip(lengths, report["rows"], strict=True):
                rows[phase, length] = row
        return rows

    def llama_round(self, setting, prefill, decode):
        out = self.llama("speed", setting, "--prefill", ",".join(map(str, prefill)), "--decode",
                         ",".join(map(str, decode)), "--steps", self.args.steps)
        return {(phase, int(n)): rate for phase in out for n, rate in out[phase].items()}


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def main():
    lengths = lambda text: [int(part) for part in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--fathom", required=True)
    parser.add_argument("--llama-python", required=True)
    parser.add_argument("--llama-build", default="", help="flags that llama.cpp was built with")
    parser.add_argument("--weights", type=lambda text: text.split(","), default=["bf16", "f16"],
                        help="what llama.cpp may choose from")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefill", type=lengths, default=[512, 2048])
    parser.add_argument("--decode", type=lengths, default=[128, 4096])
    parser.add_argument("--choose-decode", type=lengths, default=[128, 2048])
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-seconds", type=float, default=3600,
                        help="begin no further round that would end later than this")
    parser.add_argument("--max-error", type=float, default=0.02)
    parser.add_argument("--json")
    args = parser.parse_args()
    start = time.monotonic()
    bench = Bench(args)
    info = json.loads(bench.call([args.llama_python, HERE / "peer.py", "info"]))
    info["build"] = args.llama_build
    print(f"llama.cpp: {info}")

    checked = bench.check()
    print(f"logits: {checked}")
    if any(c["largest_relative_error"] > args.max_error for c in checked.values()):
        sys.exit(f"the outputs differ by more than {args.max_error}: nothing is timed")

    settings = [(dtype, flash) for dtype in args.weights for flash in (0, 1)]
    tried = {s: bench.llama_round(s, args.prefill[:1], args.choose_decode) for s in settings}
    best = {}
    for phase, mine, theirs in (("prefill", args.prefill, args.prefill[:1] * len(args.prefill)),
                                ("decode", args.decode, args.choose_decode)):
        for length, tried_at in zip(mine, theirs, strict=True):
            best[phase, length] = max(settings, key=lambda s: tried[s][phase, tried_at])
    print(f"llama.cpp's settings: {best}")

    ours, peer = [], []
    for _ in range(args.rounds):
        began = time.monotonic()
        ours.append(bench.fathom_round())
        peer.append({})
        for setting in set(best.values()):
            wanted = [key for key in best if best[key] == setting]
            peer[-1] |= bench.llama_round(setting, [n for p, n in wanted if p == "prefill"],
                                          [n for p, n in wanted if p == "decode"])
        if 2 * time.monotonic() - began - start > args.max_seconds:
            break

    rows = []
    print(f"{'phase':8} {'tokens':>6} {'fathom':>8} {'llama.cpp':>9} {'ratio':>6} {'memory GB/s':>11} "
          f"{'fathom':>7} {'llama.cpp':>9}  setting")
    for key in best:
        phase, tokens = key
        rates = [r[key]["tokens_per_s"] for r in ours]
        theirs = [r[key] for r in peer]
        memory = [r[key]["memory_bytes_per_s"] for r in ours]
        moved = ours[0][key]["bytes"] / (tokens if phase == "prefill" else 1)  # a token
        row = {
            "phase": phase, "tokens": tokens,
            "fathom_tokens_per_s": statistics.median(rates),
            "llama_cpp_tokens_per_s": statistics.median(theirs),
            "ratio": statistics.median(rates) / statistics.median(theirs),
            "memory_bytes_per_s": statistics.median(memory),
            "fathom_percent_of_memory": 100 * statistics.median(
                [moved * rate / read for rate, read in zip(rates, memory, strict=True)]),
            "fathom_flops_per_s": statistics.median(
                [r[key]["flops"] / r[key]["median_s"] for r in ours]),
            "llama_cpp_setting": {"weights": best[key][0], "flash_attention": best[key][1]},
            "fathom_rounds": rates, "llama_cpp_rounds": theirs, "memory_rounds": memory,
        }
        row["llama_cpp_percent_of_memory"] = (
            100 * moved * row["llama_cpp_tokens_per_s"] / row["memory_bytes_per_s"])
        rows.append(row)
        print(f"{phase:8} {tokens:6} {row['fathom_tokens_per_s']:8.1f} "
              f"{row['llama_cpp_tokens_per_s']:9.1f} {row['ratio']:6.2f} "
              f"{row['memory_bytes_per_s'] / 1e9:11.1f} {row['fathom_percent_of_memory']:6.1f}% "
              f"{row['llama_cpp_percent_of_memory']:8.1f}%  {best[key]}")
    report = {
        "date": datetime.date.today().isoformat(),
        "cpu": f"{cpu_name()}, {args.threads} threads",
        "model": args.model,
        "rounds": len(ours),
        "fathom": bench.call([args.fathom, "--version"]).strip(),
        "llama_cpp": info,
        "logits": checked,
        "llama_cpp_tried": [{"weights": s[0], "flash_attention": s[1],
                             "tokens_per_s": {f"{p} {n}": v for (p, n), v in tried[s].items()}}
                            for s in settings],
        "rows": rows,
        "commands": sorted(set(bench.commands)),
    }
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
