#!/usr/bin/env python3
"""Runs llama.cpp on token ids through llama-cpp-python's C interface and prints JSON.

    peer.py info
    peer.py logits MODEL.gguf --tokens FILE --prompt N [settings]
    peer.py speed  MODEL.gguf --prefill 512,2048 --decode 128,4096 [settings]

Settings: --threads, --flash-attn, --ubatch. Times are of llama_decode alone: no sampling, no text.
"""

import argparse
import ctypes
import json
import statistics
import time

import llama_cpp as lc
import numpy as np


@lc.llama_log_callback
def be_quiet(_level, _text, _data):
    pass


class Model:
    def __init__(self, args, context):
        params = lc.llama_model_default_params()
        self.model = lc.llama_model_load_from_file(args.model.encode(), params)
        assert self.model, f"{args.model}: llama.cpp cannot load it"
        params = lc.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = context
        params.n_ubatch = args.ubatch
        params.n_threads = params.n_threads_batch = args.threads
        params.flash_attn_type = args.flash_attn
        params.no_perf = True
        self.context = lc.llama_init_from_model(self.model, params)
        assert self.context, "llama.cpp cannot make a context"
        self.vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self.model))
        self.batch = lc.llama_batch_init(context, 0, 1)
        self.length = 0

    def clear(self, length=0):
        """Forgets the tokens from `length` on."""
        memory = lc.llama_get_memory(self.context)
        lc.llama_memory_seq_rm(memory, 0, length, -1)
        self.length = length

    def step(self, tokens):
        """Appends tokens; logits of the last one are there afterwards."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = self.length + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i + 1 == len(tokens)
        start = time.perf_counter()
        status = lc.llama_decode(self.context, batch)
        seconds = time.perf_counter() - start
        assert status == 0, f"llama_decode: {status}"
        self.length += len(tokens)
        return seconds

    def logits(self):
        row = lc.llama_get_logits_ith(self.context, self.batch.n_tokens - 1)
        array = ctypes.cast(row, ctypes.POINTER(ctypes.c_float * self.vocab)).contents
        return np.array(array, dtype=np.float32)


def logits(args):
    """The last row of the prompt, then one row a token after it: float32 [rows, vocab]."""
    tokens = np.loadtxt(args.tokens, dtype=np.int64).tolist()
    model = Model(args, len(tokens) + 256)
    model.step(tokens[: args.prompt])
    rows = [model.logits()]
    for token in tokens[args.prompt :]:
        model.step([token])
        rows.append(model.logits())
    np.stack(rows).tofile(args.out)
    return {"rows": len(rows)}


def speed(args):
    random = np.random.default_rng(1)
    longest = max(args.prefill + [n + args.steps + 2 for n in args.decode])
    model = Model(args, (longest + 255) // 256 * 256)
    result = {"prefill": {}, "decode": {}}
    ids = random.integers(0, model.vocab, longest).tolist()
    model.step(ids[:64])
    for tokens in args.prefill:
        times = []
        for _ in range(args.repeats):
            model.clear()
            times.append(model.step(ids[:tokens]))
        result["prefill"][tokens] = tokens / statistics.median(times)
    for tokens in args.decode:
        model.clear()
        model.step(ids[:tokens])
        model.step(ids[:1])
        times = [model.step([ids[i]]) for i in range(args.steps)]
        result["decode"][tokens] = 1 / statistics.median(times)
    return result


def lengths(text):
    return [int(part) for part in text.split(",") if part]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info")
    for name in ("logits", "speed"):
        command = commands.add_parser(name)
        command.add_argument("model")
        command.add_argument("--threads", type=int, default=2)
        command.add_argument("--flash-attn", type=int, choices=(0, 1), default=1)
        command.add_argument("--ubatch", type=int, default=512)
        if name == "logits":
            command.add_argument("--tokens", required=True)
            command.add_argument("--prompt", type=int, required=True)
            command.add_argument("--out", required=True)
        else:
            command.add_argument("--prefill", type=lengths, default=[])
            command.add_argument("--decode", type=lengths, default=[])
            command.add_argument("--steps", type=int, default=24)
            command.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args()
    lc.llama_log_set(be_quiet, ctypes.c_void_p(0))
    lc.llama_backend_init()
    if args.command == "info":
        result = {
            "llama_cpp_python": lc.__version__,
            "system_info": lc.llama_print_system_info().decode().strip(),
        }
    else:
        result = {"logits": logits, "speed": speed}[args.command](args)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
