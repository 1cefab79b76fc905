#!/usr/bin/env python3
"""Tokens a second of `fathom serve` under 1, 8 and 32 streams, with and without events by turns.

    bench/serve_bench.py build/release/bin/fathom --rounds 9 --json FILE

Each round starts two servers, one with --no-events, and loads them one after the other with
`fathom bench serve`; which goes first changes from round to round. What events cost is the median
over rounds of one's throughput over the other's.
"""

import argparse
import datetime
import json
import pathlib
import platform
import re
import signal
import statistics
import subprocess

LOADS = {1: 12, 8: 48, 32: 128}  # streams: requests
INPUT_TOKENS, OUTPUT_TOKENS = 256, 128


class Server:
    def __init__(self, fathom, *arguments):
        command = [fathom, "serve", "--port", "0", "--log-level", "off", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"^serving \S+ on (http://[^ ]+)", line):
                self.url = found[1]
                return
        raise RuntimeError("the server ended before it served")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate()


def load(fathom, url, streams, requests):
    command = [fathom, "bench", "serve", "--url", url, "--input-len", INPUT_TOKENS,
               "--output-len", OUTPUT_TOKENS, "--num-prompts", requests,
               "--max-concurrency", streams, "--json", "-"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    report = json.loads(done.stdout[done.stdout.index("{"):])
    assert report["failed"] == 0, report
    return report


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fathom")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json")
    args = parser.parse_args()
    reports = {(streams, events): [] for streams in LOADS for events in (True, False)}
    for turn in range(args.rounds):
        servers = {True: Server(args.fathom), False: Server(args.fathom, "--no-events")}
        for events in servers:  # the first requests fault memory in
            load(args.fathom, servers[events].url, 8, 16)
        for streams, requests in LOADS.items():
            for events in (True, False) if turn % 2 == 0 else (False, True):
                report = load(args.fathom, servers[events].url, streams, requests)
                reports[streams, events].append(report)
        for server in servers.values():
            server.stop()
    rows = []
    for streams in LOADS:
        row = {"streams": streams}
        rates = {e: [r["output_throughput"] for r in reports[streams, e]] for e in (True, False)}
        for key in ("output_throughput", "median_ttft_ms", "median_itl_ms", "p99_itl_ms"):
            row[key] = statistics.median(r[key] for r in reports[streams, True])
        row["output_throughput_without_events"] = statistics.median(rates[False])
        costs = [100 * (off / on - 1) for on, off in zip(rates[True], rates[False], strict=True)]
        row["events_cost_percent"] = statistics.median(costs)
        row["events_cost_percent_rounds"] = [round(cost, 2) for cost in costs]
        rows.append(row)
        print(f"{streams:3} streams: {row['output_throughput']:7.0f} tokens/s, without events "
              f"{row['output_throughput_without_events']:7.0f}: {row['events_cost_percent']:+.2f} %")
    if args.json:
        report = {"date": datetime.date.today().isoformat(), "cpu": cpu_name(),
                  "model": "tiny-deepseek, bf16; the load generator runs on the same cores",
                  "command": f"bench/serve_bench.py FATHOM --rounds {args.rounds}",
                  "input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS,
                  "rounds": args.rounds, "rows": rows}
        pathlib.Path(args.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
