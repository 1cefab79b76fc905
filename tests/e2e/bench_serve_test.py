"""`fathom bench serve` against `fathom serve`: the keys users know, with numbers that agree."""
import json
import os
import pathlib
import subprocess

import jsonschema

from conftest import KEY

FATHOM = os.environ["FATHOM"]
SCHEMA = json.loads((pathlib.Path(__file__).parents[2]
                     / "docs/schemas/bench_serve.schema.json").read_text())


def bench(server, *arguments, url=None, key=KEY):
    return subprocess.run(
        [FATHOM, "bench", "serve", "--url", url or f"http://127.0.0.1:{server.port}",
         "--api-key", key, "--json", "-", *arguments], capture_output=True, text=True, timeout=120)


def test_random_prompts_at_a_rate(server):
    done = bench(server, "--num-prompts", "12", "--request-rate", "40", "--burstiness", "0.5",
                 "--input-len", "100", "--output-len", "8", "--max-concurrency", "6",
                 "--goodput", "ttft:60000", "--goodput", "e2el:0.001")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    jsonschema.validate(report, SCHEMA)
    assert report["completed"] == 12 and report["failed"] == 0
    assert report["total_output_tokens"] == 12 * 8
    assert 60 <= report["total_input_tokens"] / 12 <= 140
    assert 1 <= report["max_concurrent_requests"] <= 6
    assert report["request_goodput"] == 0, "no answer takes less than a microsecond"
    assert report["median_ttft_ms"] <= report["p90_ttft_ms"] <= report["p99_ttft_ms"]
    assert report["mean_e2el_ms"] > report["mean_ttft_ms"] > 0
    assert KEY not in done.stdout


def test_chat_dataset(server, tmp_path):
    dataset = tmp_path / "prompts.jsonl"
    dataset.write_text('{"prompt": "Hello"}\n\n'
                       '{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}\n')
    done = bench(server, "--endpoint", "chat", "--dataset", str(dataset), "--num-prompts", "4",
                 "--output-len", "5")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["completed"] == 4 and report["total_output_tokens"] == 2 * 3 + 2 * 5


def test_what_cannot_be_done_is_said(server, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "a"}\n{"text": "b"}\n')
    for arguments, words in [
            (["--dataset", str(bad)], "bad.jsonl:2"),
            (["--request-rate", "fast"], "--request-rate"),
            (["--goodput", "speed:1"], "ttft, tpot or e2el"),
            (["--endpoint", "embeddings"], "completions or chat")]:
        done = bench(server, *arguments)
        assert done.returncode == 2 and words in done.stderr, (arguments, done.stderr)
    refused = bench(server, key="wrong")
    assert refused.returncode == 2 and "401" in refused.stderr
    nobody = bench(server, url="http://127.0.0.1:1")
    assert nobody.returncode == 2 and "127.0.0.1:1" in nobody.stderr
    assert "fathom serve starts a server" in nobody.stderr
