"""`fathom bench attention` and `fathom bench claims` where there is no GPU."""
import json
import os
import pathlib
import subprocess
import sys

import jsonschema

FATHOM = os.environ["FATHOM"]
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "bench/results/2026-11-30-h200-attention.json"


def fathom(*arguments, cwd=ROOT):
    return subprocess.run([FATHOM, "bench", *arguments], capture_output=True, text=True,
                          timeout=120, cwd=cwd)


def document(schema, *arguments):
    done = fathom(*arguments, "--json", "-")
    assert done.returncode == 0, done.stderr
    parsed = json.loads(done.stdout)
    jsonschema.validate(parsed, json.loads((ROOT / "docs/schemas" / schema).read_text()))
    return parsed


def explain(*arguments):
    return document("attention_explain.schema.json", "attention", "--explain", *arguments)


def test_running_says_what_is_missing():
    done = fathom("attention", "--check")
    assert done.returncode == 2
    assert "built without CUDA" in done.stderr or "needs an NVIDIA GPU" in done.stderr
    assert "--explain" in done.stderr


def test_explains_every_measured_shape():
    """Each kept row has a name that a shape produces; nothing beats its floor."""
    known = {
        "gqa 32/8h d128 1 x 8k": ["--lengths", "8k"],
        "gqa 32/8h d128 1 x 64k + 63 x 1k": ["--lengths", "64k,63x1k"],
        "gqa 32/8h d128 f16 32 x 8k": ["--dtype", "F16", "--lengths", "32x8k"],
        "gqa 32/8h d64 32 x 8k": ["--dims", "64", "--lengths", "32x8k"],
        "mla 16h 32 x 8k": ["--heads", "16", "--dims", "mla", "--lengths", "32x8k"],
        "mla 128h 128 x 4k": ["--heads", "128", "--dims", "mla", "--lengths", "128x4k"],
        "32/8h d128 causal 16 x 1024": ["--op", "prefill", "--lengths", "16x1k"],
        "32/8h d128 full 4 x 4096": ["--op", "prefill", "--lengths", "4x4k", "--full"],
        "32/8h d128 causal 512 of 65536": ["--op", "prefill", "--lengths", "64k", "--queries",
                                           "512"],
        "16/16h d192/128 causal 1 x 4096": ["--op", "prefill", "--heads", "16", "--dims",
                                            "192/128", "--lengths", "4k"],
    }
    for name, arguments in known.items():
        found = explain(*arguments, "--results", str(RESULTS))
        assert found["shape"] == name
        assert 5 < found["percent_of_roof"] < 100, name
        assert found["schedule"]["balance"] <= 1.3, name
        assert found["unfused_bytes"]["hbm"] > found["fused_bytes"]["hbm"]
        assert all(a["excess"] == 0 for a in found.get("shared_accesses", []) if a["main_loop"])


def test_window_and_quantised_caches_shrink_the_floor():
    dense = explain("--op", "prefill", "--lengths", "16k")
    window = explain("--op", "prefill", "--lengths", "16k", "--window", "512", "--anchors", "32")
    assert window["kernel"]["tiles"] < window["kernel"]["dense_tiles"] / 8
    assert window["floor_us"] < dense["floor_us"] / 10
    bf16 = explain("--heads", "16", "--dims", "mla", "--lengths", "32x8k")
    fp8 = explain("--heads", "16", "--dims", "mla", "--lengths", "32x8k", "--cache", "fp8")
    assert 1.7 < bf16["bytes"] / fp8["bytes"] < 1.76
    f16 = explain("--heads", "16", "--dims", "mla", "--lengths", "32x8k", "--cache", "fp8",
                  "--dtype", "F16")
    assert f16["shape"] == "mla 16h e4m3 f16 32 x 8k" and f16["bytes"] == fp8["bytes"]
    assert f16["kernel"]["family"] == "mla_576_512_quantised_f16"


def test_other_gpus_and_bad_values_are_named():
    quantised = explain("--device-spec", "a100", "--heads", "16", "--dims", "mla", "--cache", "int8")
    assert "needs compute capability 9.0" in quantised["plan"]
    for arguments, says in ((["--device-spec", "tpu"], "H200"),
                            (["--heads", "32/5"], "multiple"),
                            (["--lengths", "8q"], "8q"),
                            (["--anchors", "4"], "--window"),
                            (["--policy", "best"], "handbook-static"),
                            (["--tuning", "/nowhere.json"], "/nowhere.json"),
                            (["--results", str(RESULTS), "--lengths", "77"], "no row"),
                            (["--results", str(ROOT / "README.md")], "schema none")):
        done = fathom("attention", "--explain", *arguments)
        assert done.returncode == 2 and says in done.stderr, (arguments, done.stderr)


def test_options_that_would_be_ignored_are_refused():
    for arguments, says in ((["--explain", "--check"], "--explain does not take --check;"),
                            (["--explain", "--time", "--small"], "does not take --time --small"),
                            (["--explain", "--device", "cpu"], "does not take --device"),
                            (["--explain", "--threads", "2"], "does not take --threads"),
                            (["--device", "cpu", "--policy", "best"], "--device cpu does not take"),
                            (["--device", "cpu", "--page", "0"], "a page of 16, 32, 64 or 128"),
                            (["--device", "cpu", "--dtype", "F16"], "expected BF16"),
                            (["--device", "cpu", "--cache", "int8"], "--cache int8"),
                            (["--results", str(RESULTS), "--json", "-"], "does not take --json"),
                            (["--lengths", "8k"], "running on the GPU does not take --lengths"),
                            (["--explain", "--dims", "MLA"], "expected mla, D or QK/V"),
                            (["--explain", "--lengths", "8m"], "k is the only unit (1024)"),
                            (["--explain", "--heads", "0/8"], "QUERY or QUERY/KV, each 1 to 4096")):
        done = fathom("attention", *arguments)
        assert done.returncode == 2 and says in done.stderr, (arguments, done.stderr)


def test_kept_rows_without_a_time_are_refused(tmp_path):
    kept = json.loads(RESULTS.read_text())
    kept["decode"][0]["us"] = 0
    path = tmp_path / "kept-attention.json"
    path.write_text(json.dumps(kept))
    for arguments in (["attention", "--results", str(path)], ["claims", "--results", str(tmp_path)]):
        done = fathom(*arguments)
        assert done.returncode == 2 and "us is 0, expected a time above 0" in done.stderr
        assert str(path) in done.stderr


def test_a_tuning_table_changes_the_plan(tmp_path):
    table = {"schema": "fathom.attention_tuning/1", "gpu": "H200",
             "entries": [{"op": "decode", "head_dim_qk": 128, "head_dim_v": 128,
                          "parts_per_sm": 1}]}
    schema = json.loads((ROOT / "docs/schemas/attention_tuning.schema.json").read_text())
    jsonschema.validate(table, schema)
    path = tmp_path / "tuning.json"
    path.write_text(json.dumps(table))
    assert "33 parts" in explain()["plan"]
    assert "16 parts" in explain("--tuning", str(path))["plan"]
    table["entries"][0]["colour"] = 1
    path.write_text(json.dumps(table))
    done = fathom("attention", "--explain", "--tuning", str(path))
    assert done.returncode == 2 and "unknown key \"colour\"" in done.stderr


def test_kept_results_beside_peers():
    done = fathom("attention", "--results", str(RESULTS))
    assert done.returncode == 0, done.stderr
    assert "cuDNN" in done.stdout and "torch 2.11.0" in done.stdout
    line = next(x for x in done.stdout.splitlines() if x.startswith("gqa 32/8h d128 1 x 8k "))
    kept = json.loads(RESULTS.read_text())
    shape = "gqa 32/8h d128 1 x 8k"
    ours = next(row["us"] for row in kept["decode"]
                if row["shape"] == shape and row["variant"] == "balanced")
    best = min(row["us"] for row in kept["peers_decode"] if row["shape"] == shape)
    peers = {row["peer"] for key in ("peers_decode", "peers_prefill") for row in kept[key]}
    cells = line.split()  # the shape is six words; the ratio comes after Fathom and its peers
    assert cells[6] == f"{ours:.1f}" and cells[7 + len(peers)] == f"{best / ours:.2f}"


def test_kept_results_of_other_shapes_do_not_count():
    kept = ["--results", str(RESULTS)]
    for arguments, says in ((["--dims", "192/128"], "no row"), (["--dtype", "F32"], "are of BF16"),
                            (["--dtype", "F16", "--lengths", "7k"], "f16 1 x 7k"),
                            (["--page", "16"], "pages of 64")):
        done = fathom("attention", "--explain", *arguments, *kept)
        assert done.returncode == 2 and says in done.stderr, done.stderr
    many = fathom("attention", "--explain", "--lengths", "1000000x1")
    assert many.returncode == 2 and "expected at most 1048576" in many.stderr
    assert "no row there" in fathom("attention", *kept, "--only", "zzz").stderr
    only = fathom("attention", *kept, "--only", "mla 128h").stdout
    assert "mla 128h" in only and "gqa" not in only


def test_a_full_disk_behind_standard_output_is_an_error():
    for arguments in (["attention", "--explain"], ["claims"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run([FATHOM, "bench", *arguments], stdout=full,
                                  stderr=subprocess.PIPE, text=True, timeout=60, cwd=ROOT)
        assert done.returncode == 2 and "No space left" in done.stderr


def test_claims(tmp_path):
    found = document("bench_claims.schema.json", "claims")
    rows = {row["id"]: row for row in found["claims"]}
    assert "unpadded): 0" in rows["B9"]["figure"] and rows["B6"]["state"] == "holds"
    assert "best PyTorch backend" in rows["B15"]["figure"] and rows["B15"]["state"] != "open"
    assert "bench/results" in rows["B10"]["source"] and rows["A22"]["state"] != "open"
    alone = fathom("claims", "--only", "A8,B10", "--results", str(tmp_path))
    assert alone.returncode == 0
    assert "A8" in alone.stdout and "no measurement found" in alone.stdout
    assert "B7" not in alone.stdout
    assert "expected one of" in fathom("claims", "--only", "Z1").stderr
    assert f"no kept measurements (*-attention.json, *-rope.json) in {tmp_path}" in alone.stdout
    read = fathom("claims", "--only", "A8").stdout.splitlines()[0]
    assert read.startswith("measurements read: bench/results/") and read.count(".json") == 2
    assert found["results"] == "bench/results" and len(found["read"]) == 2
    missing = fathom("claims", "--results", str(tmp_path / "none"))
    assert missing.returncode == 2 and "expected a directory" in missing.stderr


def test_plot(tmp_path):
    out = tmp_path / "attention.svg"
    done = subprocess.run([sys.executable, ROOT / "bench/attention/plot.py", RESULTS, "--out", out],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert out.read_text().startswith("<?xml") and "<svg" in out.read_text()
    done = subprocess.run([sys.executable, ROOT / "bench/attention/plot.py",
                           ROOT / "docs/schemas/report.schema.json", "--out", out],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "expected one of" in done.stderr


def test_times_and_checks_one_shape_on_the_cpu():
    shape = ["--heads", "8/2", "--dims", "64", "--lengths", "1x1k,3x100", "--repeats", "1"]
    dense = fathom("attention", "--device", "cpu", *shape, "--json", "-")
    assert dense.returncode == 0, dense.stderr
    dense = json.loads(dense.stdout)
    assert dense["error"] < 1.5e-2 and dense["tiles"] == 0
    window = fathom("attention", "--device", "cpu", *shape, "--window", "64", "--anchors", "3",
                    "--json", "-")
    window = json.loads(window.stdout)
    assert window["error"] < 1.5e-2 and 0 < window["tiles"] < window["dense_tiles"]
    prefill = fathom("attention", "--device", "cpu", "--op", "prefill", *shape, "--window", "64")
    assert prefill.returncode == 0 and "tiles of 64 keys visited" in prefill.stdout
    for arguments, says in ((["--dims", "mla"], "GQA over a bf16 cache"), (["--full"], "causal"),
                            (["--only", "x"], "--device cpu"), (["--cpu-isa", "mmx"], "mmx")):
        done = fathom("attention", "--device", "cpu", *arguments)
        assert done.returncode == 2 and says in done.stderr, done.stderr
