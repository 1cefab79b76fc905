#!/usr/bin/env python3
"""Times PyTorch's attention backends on the rows of fathom_attention_bench, the same way.

Each call is captured into a CUDA graph and replayed; before each replay 256 MiB are overwritten, so
that L2 holds nothing of use. Prints the median and writes --json (schema fathom.bench.peers/1).
"""
import argparse
import json
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"torch FA2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
# batch, context, query heads, kv heads, head dim
DECODE = [(1, 8192), (1, 32768), (1, 131072), (8, 8192), (32, 8192), (64, 4096), (128, 2048),
          (16, 32768)]


def time_cold(work, repeats, flush):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times = []
    for i in range(repeats + 2):
        flush.fill_(i)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        if i >= 2:
            times.append(start.elapsed_time(stop) * 1e3)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--json")
    args = parser.parse_args()
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    rows = []
    print(f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    for batch, context in DECODE:
        q = torch.randn(batch, 32, 1, 128, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(batch, 8, context, 128, device="cuda", dtype=torch.bfloat16)
                for _ in range(2))
        for name, backend in BACKENDS.items():
            with sdpa_kernel([backend]):
                us = time_cold(
                    lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
                    args.repeats, flush)
            gbs = k.numel() * 4 / us * 1e-3
            print(f"gqa 32/8h d128 {batch} x {context // 1024}k  {name:10} {us:8.1f} us "
                  f"{gbs:6.0f} GB/s")
            rows.append({"shape": f"gqa 32/8h d128 {batch} x {context // 1024}k", "peer": name,
                         "us": us, "gb_per_s": gbs})
        del q, k, v
    if args.json:
        with open(args.json, "w") as out:
            json.dump({"schema": "fathom.bench.peers/1", "torch": torch.__version__,
                       "cudnn": torch.backends.cudnn.version(), "rows": rows}, out, indent=1)


if __name__ == "__main__":
    main()
