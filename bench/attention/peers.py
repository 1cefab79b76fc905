#!/usr/bin/env python3
"""Times PyTorch's attention backends on the rows of `fathom bench attention`, the same way.

Each call is captured into a CUDA graph and replayed; before each replay 256 MiB are overwritten, so
that L2 holds nothing of use. Prints the median and writes --json (schema fathom.bench.peers/1).
FlashAttention-3 (module flash_attn_interface) and FlashMLA (flash_mla) are measured where they are
installed: decode from pages of 64 that lie anywhere, scheduling metadata made before.
"""
import argparse
import importlib
import json
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"torch FA2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
# batch, context, head dim of 32 query heads and 8 kv heads
DECODE = [(1, 8192, 128), (1, 32768, 128), (1, 131072, 128), (8, 8192, 128), (32, 8192, 128),
          (64, 4096, 128), (128, 2048, 128), (16, 32768, 128), (32, 8192, 64)]
# batch, length, query heads, kv heads, head dims of q/k and v, causal
PREFILL = [(16, 1024, 32, 8, 128, 128, True), (8, 2048, 32, 8, 128, 128, True),
           (4, 4096, 32, 8, 128, 128, True), (2, 8192, 32, 8, 128, 128, True),
           (1, 16384, 32, 8, 128, 128, True), (1, 32768, 32, 8, 128, 128, True),
           (1, 65536, 32, 8, 128, 128, True), (4, 4096, 32, 8, 128, 128, False),
           (1, 16384, 32, 8, 128, 128, False), (8, 2048, 12, 12, 64, 64, True),
           (8, 2048, 12, 12, 64, 64, False), (1, 16384, 32, 32, 64, 64, True),
           (1, 4096, 16, 16, 192, 128, True), (1, 16384, 16, 16, 192, 128, True),
           (1, 32768, 16, 16, 192, 128, True), (1, 8192, 128, 128, 192, 128, True)]
# the last queries of a prompt, its length: 32/8 heads of 128
CHUNKS = [(2048, 32768), (512, 65536)]
# heads, batch, context, queries a sequence
MLA = [(heads, batch, context, 1) for heads in (16, 128)
       for batch, context in ((1, 8192), (1, 32768), (1, 131072), (8, 8192), (32, 8192),
                              (128, 4096), (128, 8192), (16, 32768))] + [(128, 128, 8192, 2)]
PAGE = 64
# batch, length, heads, head dim, causal
BACKWARD = [(batch, length, heads, dim, causal) for causal in (True, False)
            for batch, length, heads, dim in ((4, 2048, 16, 128), (2, 4096, 16, 128),
                                              (1, 8192, 16, 128), (4, 2048, 32, 64),
                                              (2, 4096, 32, 64))]
# keys kept, causal: q - k <= window or k < anchors
WINDOW, ANCHORS, WINDOW_LENGTHS = 512, 32, (16384, 65536)


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


def optional(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        print(f"{name} is not measured: {error}")
        return None


def tensor(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def sdpa(call):
    """{backend: `call` by it alone}"""
    def by(backend):
        def work():
            with sdpa_kernel([backend]):
                call()
        return work
    return {name: by(backend) for name, backend in BACKENDS.items()}


class Pages:
    """`batch` sequences of `context` tokens in pages that lie anywhere."""

    def __init__(self, batch, context):
        self.batch, self.context, self.count = batch, context, batch * context // PAGE
        self.table = torch.randperm(self.count, device="cuda").int().view(batch, -1)
        self.lengths = torch.full((batch,), context, dtype=torch.int32, device="cuda")

    def plane(self, heads, dim):
        return tensor(self.count, PAGE, heads, dim)


def fa3_decode(fa3, pages, q, k_heads, dim, dim_v, q_latent=None):
    """flash_attn_with_kvcache; MLA absorbed: q of the rotated part, q_latent of the latents."""
    k, v = pages.plane(k_heads, dim), pages.plane(k_heads, dim_v)
    metadata = fa3.get_scheduler_metadata(
        pages.batch, q.shape[1], pages.context, q.shape[2], k_heads, dim, pages.lengths, q.dtype,
        headdim_v=dim_v, page_size=PAGE, causal=True)
    return lambda: fa3.flash_attn_with_kvcache(
        q, k, v, qv=q_latent, cache_seqlens=pages.lengths, page_table=pages.table, causal=True,
        scheduler_metadata=metadata)


def flash_mla_decode(flash_mla, pages, q):
    cache = pages.plane(1, 576)
    metadata = flash_mla.get_mla_metadata(pages.lengths, q.shape[1] * q.shape[2], 1)
    return lambda: flash_mla.flash_mla_with_kvcache(q, cache, pages.table, pages.lengths, 512,
                                                    *metadata, causal=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--op", choices=["decode", "mla", "prefill", "window", "backward", "qkv"])
    parser.add_argument("--json")
    args = parser.parse_args()
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    rows = []

    def measure(shape, calls, gigabytes, teraflops):
        for name, call in calls.items():
            try:
                us = time_cold(call, args.repeats, flush)
            except RuntimeError as error:  # the peer does not take this shape
                print(f"{shape:36} {name:10} {str(error).splitlines()[0][:60]}")
                continue
            rows.append({"shape": shape, "peer": name, "us": us, "gb_per_s": gigabytes / us * 1e6,
                         "tflops": teraflops / us * 1e6})
            print(f"{shape:36} {name:10} {us:9.1f} us {gigabytes / us * 1e6:6.0f} GB/s "
                  f"{teraflops / us * 1e6:6.1f} TFLOP/s")

    print(f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    fa3, flash_mla = optional("flash_attn_interface"), optional("flash_mla")
    if args.op in (None, "decode"):
        for batch, context, dim in DECODE:
            q, k, v = (tensor(batch, 32, 1, dim), tensor(batch, 8, context, dim),
                       tensor(batch, 8, context, dim))
            calls = sdpa(lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
            if fa3:
                calls["FA3"] = fa3_decode(fa3, Pages(batch, context), tensor(batch, 1, 32, dim), 8,
                                          dim, dim)
            measure(f"gqa 32/8h d{dim} {batch} x {context // 1024}k", calls, k.numel() * 4e-9,
                    batch * 32 * context * dim * 4e-12)
    if args.op in (None, "mla"):
        for heads, batch, context, queries in MLA:
            pages, calls = Pages(batch, context), {}
            if flash_mla:
                calls["FlashMLA"] = flash_mla_decode(flash_mla, pages,
                                                     tensor(batch, queries, heads, 576))
            if fa3:
                calls["FA3"] = fa3_decode(fa3, pages, tensor(batch, queries, heads, 64), 1, 64, 512,
                                          tensor(batch, queries, heads, 512))
            pairs = batch * (queries * context - queries * (queries - 1) // 2)
            measure(f"mla {heads}h {batch} x {context // 1024}k"
                    + (f", {queries} queries" if queries > 1 else ""),
                    calls, batch * context * 1152e-9, 2e-12 * pairs * heads * (576 + 512))
    if args.op in (None, "prefill"):
        for batch, length, heads, kv_heads, dim, dim_v, causal in PREFILL:
            q, k, v = (tensor(batch, heads, length, dim), tensor(batch, kv_heads, length, dim),
                       tensor(batch, kv_heads, length, dim_v))
            pairs = length * (length + 1) / 2 if causal else length * length
            dims = f"{dim}" if dim == dim_v else f"{dim}/{dim_v}"
            calls = sdpa(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal,
                                                                enable_gqa=True))
            if fa3:
                by_token = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
                calls["FA3"] = lambda: fa3.flash_attn_func(*by_token, causal=causal)
            measure(f"{heads}/{kv_heads}h d{dims} {'causal' if causal else 'full'} "
                    f"{batch} x {length}", calls, 0,
                    2e-12 * batch * pairs * heads * (dim + dim_v))
        for chunk, length in CHUNKS if fa3 else ():  # PyTorch's causal mask starts at the first key
            q, k, v = (tensor(1, n, heads, 128)
                       for n, heads in ((chunk, 32), (length, 8), (length, 8)))
            pairs = chunk * length - chunk * (chunk - 1) / 2
            measure(f"32/8h d128 causal {chunk} of {length}",
                    {"FA3": lambda: fa3.flash_attn_func(q, k, v, causal=True)}, 0,
                    2e-12 * pairs * 32 * 256)
    if args.op in (None, "window"):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        compiled = torch.compile(flex_attention)

        def keep(_, __, q_index, k_index):
            near = (q_index - k_index <= WINDOW) | (k_index < ANCHORS)
            return near & (q_index >= k_index)

        for length in WINDOW_LENGTHS:
            q, k, v = (tensor(1, heads, length, 128) for heads in (32, 8, 8))
            mask = create_block_mask(keep, None, None, length, length, device="cuda")
            us = time_cold(lambda: compiled(q, k, v, block_mask=mask, enable_gqa=True),
                           args.repeats, flush)
            shape = f"32/8h d128 causal 1 x {length}, window {WINDOW} + {ANCHORS} first"
            rows.append({"shape": shape, "peer": "flex_attention", "us": us})
            print(f"{shape:36} flex       {us:9.1f} us")
    if args.op in (None, "backward"):
        for batch, length, heads, dim, causal in BACKWARD:
            q, k, v = (tensor(batch, heads, length, dim).requires_grad_() for _ in range(3))
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
                out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            gradient = torch.randn_like(out)
            times = []
            for i in range(args.repeats + 3):  # autograd's stream: no graph; launches are hidden
                flush.fill_(i)
                start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)
                stop.record()
                torch.cuda.synchronize()
                times.append(start.elapsed_time(stop) * 1e3)
            us = statistics.median(times[3:])
            pairs = length * (length + 1) / 2 if causal else length * length
            shape = f"backward {heads}h d{dim} {'causal' if causal else 'full'} {batch} x {length}"
            tflops = 10e-12 * batch * pairs * heads * dim / us * 1e6
            rows.append({"shape": shape, "peer": "torch FA2", "us": us, "tflops": tflops})
            print(f"{shape:36} torch FA2  {us:9.1f} us {tflops:6.1f} TFLOP/s")
    if args.op in (None, "qkv"):  # one product for queries, keys and values, or three
        hidden, columns = 4096, (32 * 128, 8 * 128, 8 * 128)
        weights = [tensor(hidden, n) for n in columns]
        fused = torch.cat(weights, dim=1)
        for tokens in (1, 16, 128, 1024, 8192):
            x = tensor(tokens, hidden)
            pair = [time_cold(work, args.repeats, flush)
                    for work in (lambda: x @ fused, lambda: [x @ w for w in weights])]
            shape = f"qkv projection {hidden} to {'+'.join(map(str, columns))}, {tokens} tokens"
            for peer, us in zip(("torch, fused", "torch, separate"), pair):
                rows.append({"shape": shape, "peer": peer, "us": us})
            print(f"{shape:56} fused {pair[0]:8.1f} us, separate {pair[1]:8.1f} us, "
                  f"{pair[1] / pair[0]:.2f}x")
    if args.json:
        with open(args.json, "w") as out:
            json.dump({"schema": "fathom.bench.peers/1", "torch": torch.__version__,
                       "cudnn": torch.backends.cudnn.version(), "rows": rows}, out, indent=1)


if __name__ == "__main__":
    main()
