"""Every format that fathom diagnose reads, in every way that it may be given, and scrubbed."""
import ctypes
import ctypes.util
import gzip
import json
import os
import pathlib
import subprocess

import pytest

FATHOM = os.environ["FATHOM"]
DATA = pathlib.Path(__file__).resolve().parents[1] / "data/diagnose"
SECRETS = ["/home/alice/checkpoints", "alice", "node17.corp.example", "10.20.30.40", "hf_AbCdEf0123456789"]
SAID = f"loaded {SECRETS[0]}/model from http://{SECRETS[2]}:8000 at {SECRETS[3]}"

KINETO = {"schemaVersion": 1, "traceEvents": [
    {"ph": "X", "cat": "user_annotation", "name": f"decode_step_{i}", "pid": 1, "tid": 1,
     "ts": 1000 * i, "dur": 900, "args": {"Call stack": SAID}} for i in range(4)]}
OTLP = {"resourceSpans": [{"resource": {"attributes": [
    {"key": "host.name", "value": {"stringValue": SECRETS[2]}}]}, "scopeSpans": [{"spans": [
        {"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174",
         "name": "llm_request", "startTimeUnixNano": "1790000000000000000",
         "endTimeUnixNano": "1790000001000000000", "attributes": [
             {"key": "gen_ai.request.prompt", "value": {"stringValue": SAID}}]}]}]}]}
SAMPLES = [{"schema": "fathom.samples/1", "utc_ns_at_zero": 1790000000000000000, "period_ms": 10,
            "alignment_error_ns": 1000, "gpus": []},
           {"t_ns": 1, "metric": "gpu_busy", "device": 0, "value": 0.5, "half_width_ns": 1}]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


# One small artifact of each format; what a person could be known by is planted where the format has
# room for it.
TEXTS = {
    "kineto": json.dumps(KINETO),
    "fathom-trace": (DATA / "kineto/hta_triton_example.json.gz", "kineto"),
    "nsys-sqlite": (DATA / "nsys/nsysai_h100_2gpu_1s.sqlite.gz", "nsys-sqlite"),
    "ncu-csv": (DATA / "ncu/nsightful_copy_blocked_details.csv", "ncu-csv"),
    "vllm-log": f"INFO 01-30 16:15:43 serve.py:1] {SAID} token {SECRETS[4]}\n"
                "INFO 01-30 16:15:44 metrics.py:453] Avg prompt throughput: 0.0 tokens/s, Avg generation "
                "throughput: 32.5 tokens/s, Running: 1 reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV "
                "cache usage: 1.4%, CPU KV cache usage: 0.0%.\n",
    "sglang-log": f"[2025-12-26 06:08:39 TP0] {SAID}\n"
                  "[2025-12-26 06:08:40 TP0] Decode batch, #running-req: 1, #token: 1411, token usage: "
                  "0.00, cuda graph: True, gen throughput (token/s): 110.58, #queue-req: 0, \n",
    "nccl-log": f"{SECRETS[2]}:11:12 [0] NCCL INFO Bootstrap : Using eth0:{SECRETS[3]}<0>\n"
                f"{SECRETS[2]}:11:12 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n",
    "prometheus": "# TYPE vllm:num_requests_running gauge\n"
                  f'vllm:num_requests_running{{engine="0",model_name="{SECRETS[0]}/m",'
                  f'Hostname="{SECRETS[2]}"}} 3\n',
    "nvidia-smi-dmon": "# gpu   pwr    sm   mem\n# Idx     W     %     %\n    0   120    50    20\n",
    "dcgmi-dmon": "#Entity   SMACT        DRAMA\nID\nGPU 0     0.916        0.881\n",
    "perf-script": f"python 12/13 [003] 1000.5: 100 cycles:\n\tffffffff81 work+0x1 ({SECRETS[0]}/lib.so)\n\n",
    "perf-c2c": "=================================================\n"
                "            Trace Event Information              \n"
                "=================================================\n"
                "  Total records                     :       1000\n"
                "  Load Operations                   :        200\n"
                "  Load Local HITM                   :          3\n"
                "  LLC Misses to Local DRAM          :      60.0%\n"
                "  Load Local DRAM                   :         70\n"
                "  Load Remote DRAM                  :         30\n",
    "otlp": json.dumps(OTLP),
    "expert-load": "layer,expert,tokens\n" + "".join(f"0,{e},{1000 + e}\n" for e in range(8)),
    "schedule": lines({"seq_id": f"{SECRETS[0]}/r{i}", "phase": "decode", "start_us": 10 * i,
                       "end_us": 10 * i + 5, "graph_id": 1} for i in range(4)),
    "access-events": lines({"token_id": i, "emit_ts": i, "hbm_addr": 64 * i, "latency": 300}
                           for i in range(4)),
    "fathom-samples": lines(SAMPLES),
}


def content(name):
    text = TEXTS[name]
    if isinstance(text, str):
        return text.encode(), name
    data = text[0].read_bytes()
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data), text[1]


def zstd(data):
    library = ctypes.CDLL(ctypes.util.find_library("zstd"))
    library.ZSTD_compressBound.restype = library.ZSTD_compress.restype = ctypes.c_size_t
    library.ZSTD_compressBound.argtypes = [ctypes.c_size_t]
    library.ZSTD_compress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p,
                                      ctypes.c_size_t, ctypes.c_int]
    into = ctypes.create_string_buffer(library.ZSTD_compressBound(len(data)))
    size = library.ZSTD_compress(into, len(into), data, len(data), 3)
    return into.raw[:size]  # after the call has filled it


def report(*arguments, stdin=None):
    done = subprocess.run([FATHOM, "diagnose", *map(str, arguments), "--json", "-"], input=stdin,
                          capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def seen(document):
    given = [{k: v for k, v in i.items() if k != "path"} for i in document["inputs"]]
    return given, document["phases"], document["findings"], document["abstained"]


@pytest.mark.parametrize("name", TEXTS)
def test_every_format_from_every_place(tmp_path, name):
    data, form = content(name)
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "plain").write_bytes(data)
    (tmp_path / "packed").write_bytes(gzip.compress(data))
    (tmp_path / "squeezed").write_bytes(zstd(data))
    (folder / "anything").write_bytes(data)
    plain = report(tmp_path / "plain")
    assert plain["inputs"][0]["format"] == form and plain["inputs"][0]["events"] > 0
    for other in (report(tmp_path / "packed"), report(tmp_path / "squeezed"), report(folder),
                  report("-", stdin=data), report("-", stdin=gzip.compress(data)),
                  report("-", stdin=zstd(data))):
        assert seen(other) == seen(plain)


def test_all_formats_at_once(tmp_path):
    for name in TEXTS:
        (tmp_path / name).write_bytes(content(name)[0])
    together = report(tmp_path)
    assert sorted(i["format"] for i in together["inputs"]) == sorted(content(n)[1] for n in TEXTS)


@pytest.mark.parametrize("name", TEXTS)
def test_every_format_is_scrubbed(tmp_path, name):
    data, form = content(name)
    (tmp_path / "original").write_bytes(data)
    done = subprocess.run([FATHOM, "scrub", tmp_path / "original", "-o", tmp_path / "copy"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    copy = (tmp_path / "copy").read_bytes()
    for secret in SECRETS:
        assert secret.encode() not in copy, secret
    after = report(tmp_path / "copy")
    before = report(tmp_path / "original")
    assert after["inputs"][0]["format"] == form
    assert after["inputs"][0]["events"] == before["inputs"][0]["events"]


@pytest.mark.parametrize("head, command", [
    (b"QDSSARGO\0\0\0\0", "nsys export --type sqlite"),
    (b"NVR\0\0\0\0\0", "ncu --import"),
    (b"PERFILE2\0\0\0\0", "perf script -i perf.data"),
    (b"\x0a\x10\x08\x01" + bytes(14) + b"\x0a\x02\x08\x01", "traceconv json"),
])
def test_recordings_of_other_tools_name_their_export(tmp_path, head, command):
    (tmp_path / "recording").write_bytes(head)
    done = subprocess.run([FATHOM, "diagnose", tmp_path / "recording"], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 2 and command in done.stderr
