#!/usr/bin/env python3
"""Times `fathom diagnose` on Kineto traces, beside Python's json alone and other tools.

    bench/diagnose_bench.py build/release/bin/fathom --size 200M --size 1G
    bench/diagnose_bench.py build/release/bin/fathom --size 200M --hta HTA_VENV/bin/python
    bench/diagnose_bench.py build/release/bin/fathom --trace trace.json.gz

A synthetic trace repeats recorded ones (--template; by default four of tests/data/diagnose/kineto:
with Python stacks, without, with flows, metadata and CUDA graphs) as their profiler printed them,
each time later, with new ids and step numbers, until it has the size asked for. All programs read
the same file one after the other. `fathom diagnose` does the whole of its work: it reads, accounts,
runs every rule and writes its report as text and JSON. It runs on one thread, so that MB/s of CPU
are MB/s a core; MB always count uncompressed JSON. --gzip adds the same trace compressed, --perfetto
the same with the fused timeline written.

Prints Markdown, and with --json FILE the medians with versions and commands.
"""

import argparse
import datetime
import gzip
import json
import multiprocessing
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "tests/data/diagnose/kineto"
TEMPLATES = ["llama_eager_repeat_kv_cat_cache", "llama_sdpa_static_cache",
             "llama_dynamic_ntk_past_limit", "llama_cudagraph_decode"]
# What changes from one repetition to the next: times, ids, step numbers.
CHANGING = re.compile(
    r'("ts":\s*)(\d+)'
    r'|("(?:correlation|External id|external id|Python id|Python parent id|Ev Idx|id)":\s*)(\d+)'
    r'|((?:decode_step_|ProfilerStep#))(\d+)')
PAUSE_US = 1000


class Template:
    """A recorded trace as constant text around the numbers that change."""

    def __init__(self, path):
        text = gzip.open(path, "rt", errors="replace").read()
        start = re.search(r'"traceEvents":\s*\[', text).end()
        end = next(m for m in re.finditer(r'\}\s*\](?=\s*(?:,\s*"|\}\s*$))', text)
                   if m.start() > start).start() + 1
        self.head, body, self.tail = text[:start], text[start:end], text[end:]
        self.texts, self.numbers = [], []
        at = 0
        seen = [[], [0], [0]]
        for match in CHANGING.finditer(body):
            kind = 0 if match.group(2) else 1 if match.group(4) else 2
            group = [2, 4, 6][kind]
            value = int(match.group(group))
            if kind == 0 and value == 0:
                continue  # a record without a time
            seen[kind].append(value)
            self.texts.append(body[at:match.start(group)])
            self.numbers.append((kind, value))
            at = match.end(group)
        self.texts.append(body[at:])
        times, ids, steps = seen
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


def make_trace(path, size, template_paths):
    templates = [Template(template) for template in template_paths]
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


def measure(command, out=None):
    """Runs a command; its CPU seconds, wall seconds and peak resident bytes."""
    begin = time.monotonic()
    with open(out or os.devnull, "w") as stdout:
        child = subprocess.Popen(command, stdout=stdout, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with {child.returncode}")
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "wall_s": time.monotonic() - begin,
            "peak_bytes": usage.ru_maxrss * 1024}


def medians(command, runs, out=None):
    results = [measure(command, out) for _ in range(runs)]
    return {key: statistics.median(r[key] for r in results) for key in results[0]}


def cpu_name():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def fathom_figures(report_path):
    """The sums over all steps that another tool's breakdown can be laid beside, in microseconds."""
    report = json.load(open(report_path))
    busy, idle = {}, {}
    for step in report["steps"]:
        for name, ms in step["busy_by_class_ms"].items():
            busy[name] = busy.get(name, 0) + ms * 1000
        for name, ms in step["idle_by_cause_ms"].items():
            idle[name] = idle.get(name, 0) + ms * 1000
    moved = ("memcpy_device", "memcpy_host", "memset", "collective")
    return {
        "events": sum(i["events"] for i in report["inputs"]),
        "steps": len(report["steps"]),
        "compute_us": sum(us for name, us in busy.items() if name not in moved),
        "non_compute_us": sum(us for name, us in busy.items() if name in moved),
        "idle_us": sum(idle.values()),
        "idle_by_cause_us": idle,
        "findings": [f"{f['id']} ({f['phase']}, {f['severity']})" for f in report["findings"]],
    }


def bench_one(options, folder, name, trace, size):
    """All programs over one trace; `size` is its uncompressed bytes."""
    report = os.path.join(folder, "report.json")
    fathom = [options.fathom, "diagnose", trace, "--json", report]
    rows = [("fathom diagnose", medians(fathom, options.runs))]
    figures = {"fathom": fathom_figures(report)}
    if options.perfetto:
        fused = os.path.join(folder, "fused.json")
        rows.append(("fathom diagnose --perfetto",
                     medians([*fathom, "--perfetto", fused], options.runs)))
        os.remove(fused)
    if options.gzip:
        packed = os.path.join(folder, "packed.json.gz")
        with open(trace, "rb") as plain, gzip.open(packed, "wb", compresslevel=6) as out:
            shutil.copyfileobj(plain, out, 1 << 20)
        rows.append(("fathom diagnose, .gz",
                     medians([options.fathom, "diagnose", packed, "--json", report],
                             options.runs)))
        os.remove(packed)
    load = ("import gzip, json, sys; p = sys.argv[1]; "
            "json.load(gzip.open(p) if p.endswith('.gz') else open(p))")
    if size <= parse_size(options.python_limit):
        rows.append(("python json.load", medians([sys.executable, "-c", load, trace],
                                                 options.peer_runs)))
    if options.hta and size <= parse_size(options.python_limit):
        out = os.path.join(folder, "hta.json")
        script = str(ROOT / "bench/diagnose_hta.py")
        rows.append(("Holistic Trace Analysis",
                     medians([options.hta, script, os.path.abspath(trace)], options.peer_runs,
                             out)))
        figures["hta"] = json.load(open(out))
    print(f"\n{name}, {size / 1e6:.1f} MB of JSON\n")
    print("| program | CPU | wall | MB/s of CPU | peak memory | memory / JSON |")
    print("|---|---:|---:|---:|---:|---:|")
    for program, r in rows:
        r["mb_per_s_of_cpu"] = size / 1e6 / max(r["cpu_s"], 1e-3)
        r["peak_share"] = r["peak_bytes"] / size
        print(f"| {program} | {r['cpu_s']:.2f} s | {r['wall_s']:.2f} s | "
              f"{r['mb_per_s_of_cpu']:.0f} | {r['peak_bytes'] / 2**20:.0f} MiB | "
              f"{r['peak_share']:.2f} |", flush=True)
    return {"trace": name, "json_bytes": size, "programs": dict(rows), "figures": figures}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fathom")
    parser.add_argument("--size", action="append", default=[],
                        help="of a synthetic trace: 200M, 1G (powers of ten); may be repeated")
    parser.add_argument("--template", action="append", default=[],
                        help="recorded trace (.json.gz) to repeat; may be repeated")
    parser.add_argument("--trace", action="append", default=[],
                        help="a trace to read as it is; may be repeated")
    parser.add_argument("--runs", type=int, default=5, help="median of")
    parser.add_argument("--peer-runs", type=int, default=1, help="median of, for json and others")
    parser.add_argument("--python-limit", default="500M",
                        help="json and pandas get no larger trace: they take ten times its size")
    parser.add_argument("--gzip", action="store_true", help="read each synthetic trace as .gz, too")
    parser.add_argument("--perfetto", action="store_true",
                        help="write the fused timeline of each trace, too")
    parser.add_argument("--hta", help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("--json", help="file for the results")
    options = parser.parse_args()
    if not options.size and not options.trace:
        parser.error("expected --size or --trace")
    print(f"{datetime.date.today()}, {cpu_name()}, {os.cpu_count()} CPUs, "
          f"Python {platform.python_version()}, one thread")
    results = []
    with tempfile.TemporaryDirectory(prefix="fathom_bench_") as folder:
        paths = options.template or [DATA / f"{name}.json.gz" for name in TEMPLATES]
        for size in options.size:
            trace = os.path.join(folder, "trace.json")
            # In a process of its own: a program's peak counts from that of the process it was
            # forked from, so this one must stay small.
            maker = multiprocessing.Process(target=make_trace, args=(trace, parse_size(size), paths))
            maker.start()
            maker.join()
            if maker.exitcode != 0:
                sys.exit("the trace could not be made")
            results.append(bench_one(options, folder, f"synthetic {size}", trace,
                                     os.path.getsize(trace)))
        options.gzip = False
        for trace in options.trace:
            opener = gzip.open if trace.endswith(".gz") else open
            with opener(trace, "rb") as data:
                size = sum(len(chunk) for chunk in iter(lambda: data.read(1 << 20), b""))
            results.append(bench_one(options, folder, os.path.basename(trace), trace, size))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({
            "date": str(datetime.date.today()),
            "cpu": cpu_name(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "threads": 1,
            "command": "bench/diagnose_bench.py " + " ".join(sys.argv[1:]),
            "results": results,
        }, indent=1) + "\n")


if __name__ == "__main__":
    main()
