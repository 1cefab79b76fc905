#!/usr/bin/env python3
"""Reads one Kineto trace with Holistic Trace Analysis and prints its breakdowns as JSON.

Run by diagnose_bench.py --hta PYTHON with the interpreter of an environment that has
HolisticTraceAnalysis installed; nothing else of this repository needs it.
"""

import importlib.metadata
import json
import logging
import os
import sys
import time
import traceback


def main():
    logging.disable(logging.CRITICAL)
    begin = time.monotonic()
    from hta.trace_analysis import TraceAnalysis
    imported = time.monotonic()
    # Its own prints go to standard error, so that standard output is the result alone.
    sys.stdout.flush()
    result = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
    parsed = time.monotonic()
    figures, failed = {}, {}

    def temporal():
        row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
        figures.update(span_us=float(row["kernel_time(us)"]),
                       compute_us=float(row["compute_time(us)"]),
                       non_compute_us=float(row["non_compute_time(us)"]),
                       idle_us=float(row["idle_time(us)"]))

    def kernels():
        table, _ = analysis.get_gpu_kernel_breakdown(visualize=False)
        figures["kernel_sum_us"] = {row["kernel_type"]: float(row["sum"])
                                    for _, row in table.iterrows()}

    def idle():
        table, _ = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
        figures["idle_by_category_us"] = {row["idle_category"]: float(row["idle_time"])
                                          for _, row in table.iterrows()}

    for breakdown in (temporal, kernels, idle):
        try:
            breakdown()
        except Exception as error:  # what it cannot do with a trace is a result, too
            where = traceback.extract_tb(error.__traceback__)[-1]
            failed[breakdown.__name__] = f"{type(error).__name__} in {where.name}: {where.line}"
    done = time.monotonic()
    json.dump({
        "version": importlib.metadata.version("HolisticTraceAnalysis"),
        "pandas": importlib.metadata.version("pandas"),
        "import_s": imported - begin,
        "parse_s": parsed - imported,
        "analyse_s": done - parsed,
        "failed": failed,
        **figures,
    }, result)


if __name__ == "__main__":
    main()
