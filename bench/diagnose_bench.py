#!/usr/bin/env python3
"""Times `fathom diagnose` on a large synthetic Kineto trace, beside Python's json alone.

    bench/diagnose_bench.py build/release/bin/fathom --size 1G

The trace repeats recorded ones (tests/data/diagnose/kineto) as Kineto printed them, each time later,
with new ids and step numbers, until it has the size asked for. Both programs read the same file one
after the other; CPU time is what counts on a machine that others use too. --python-size gives json a
smaller file of the same making, since json.load takes about ten times a file's size in memory.
Prints a Markdown table; bench/results keeps such tables with their date and machine.
"""

import argparse
import datetime
import gzip
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEMPLATES = ["llama_eager_repeat_kv_cat_cache", "llama_sdpa_static_cache",
             "llama_dynamic_ntk_past_limit", "llama_cudagraph_decode"]
# What changes from one repetition to the next: times, ids, step numbers.
CHANGING = re.compile(
    r'("ts": )(\d+)(?=\.)|("(?:correlation|External id|Python id|Python parent id|Ev Idx|id)": )(\d+)'
    r'|(decode_step_)(\d+)')
PAUSE_US = 1000


class Template:
    """A recorded trace as constant text around the numbers that change."""

    def __init__(self, path):
        text = gzip.open(path, "rt").read()
        start = text.index('"traceEvents": [') + len('"traceEvents": [')
        self.head = text[:start]
        end = text.rindex("],")
        body = text[start:end]
        self.tail = text[end:]
        self.texts, self.numbers = [], []
        at = 0
        times, ids, steps = [], [0], [0]
        for match in CHANGING.finditer(body):
            kind = 0 if match.group(2) else 1 if match.group(4) else 2
            value = int(match.group(2) or match.group(4) or match.group(6))
            [times, ids, steps][kind].append(value)
            begin = match.start([2, 4, 6][kind])
            self.texts.append(body[at:begin])
            self.numbers.append((kind, value))
            at = match.end([2, 4, 6][kind])
        self.texts.append(body[at:])
        self.start_us = min(times)
        self.span_us = max(times) - self.start_us
        self.num_ids = max(ids) + 1
        self.num_steps = max(steps) + 1

    def render(self, time_us, first_id, first_step):
        shift = [time_us - self.start_us, first_id, first_step]
        parts = []
        for text, (kind, value) in zip(self.texts, self.numbers):
            parts.append(text)
            parts.append(str(value + shift[kind]))
        parts.append(self.texts[-1])
        return "".join(parts)


def make_trace(path, size):
    templates = [Template(ROOT / f"tests/data/diagnose/kineto/{name}.json.gz")
                 for name in TEMPLATES]
    time_us, first_id, first_step, written, repeats = templates[0].start_us, 0, 0, 0, 0
    with open(path, "w") as out:
        written += out.write(templates[0].head)
        while written < size:
            template = templates[repeats % len(templates)]
            if repeats > 0:
                written += out.write(",\n")
            written += out.write(template.render(time_us, first_id, first_step).strip())
            time_us += template.span_us + PAUSE_US
            # Ids stay those of one process: they go on, within 32 bits.
            first_id = (first_id + template.num_ids) % 2_000_000_000
            first_step += template.num_steps
            repeats += 1
        out.write(templates[0].tail)


def parse_size(text):
    return int(text[:-1]) * {"M": 10**6, "G": 10**9}[text[-1]]


def measure(command):
    """Runs a command; its CPU seconds, wall seconds and peak resident bytes."""
    begin = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{command[0]} failed with {child.returncode}")
    return usage.ru_utime + usage.ru_stime, time.monotonic() - begin, usage.ru_maxrss * 1024


def cpu_name():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fathom")
    parser.add_argument("--size", default="1G", help="of the trace: 200M, 1G (powers of ten)")
    parser.add_argument("--python-size", help="of json's trace (the same by default)")
    parser.add_argument("--runs", type=int, default=1, help="best of")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fathom_bench_") as folder:
        trace = os.path.join(folder, "trace.json")
        make_trace(trace, parse_size(options.size))
        python_trace = trace
        if options.python_size:
            python_trace = os.path.join(folder, "python.json")
            make_trace(python_trace, parse_size(options.python_size))
        report = os.path.join(folder, "report.json")
        load = "import json, sys; json.load(open(sys.argv[1]))"
        rows = [
            ("fathom diagnose", trace,
             [options.fathom, "diagnose", trace, "--json", report]),
            ("python json.load", python_trace, [sys.executable, "-c", load, python_trace]),
        ]
        print(f"{datetime.date.today()}, {cpu_name()}, {os.cpu_count()} CPUs, "
              f"Python {platform.python_version()}\n")
        print(f"`bench/diagnose_bench.py {' '.join(sys.argv[1:])}`\n")
        print("| program | trace | CPU | wall | MB/s of CPU | peak memory | memory / trace |")
        print("|---|---|---|---|---|---|---|")
        for name, path, command in rows:
            cpu, wall, memory = min(measure(command) for _ in range(options.runs))
            size = os.path.getsize(path)
            print(f"| {name} | {size / 1e6:.0f} MB | {cpu:.2f} s | {wall:.2f} s | "
                  f"{size / 1e6 / cpu:.0f} | {memory / 2**20:.0f} MiB | {memory / size:.2f} |")


if __name__ == "__main__":
    main()
