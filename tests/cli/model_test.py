"""`fathom bench model` and `fathom verify` on the shipped models."""
import json
import os
import pathlib
import struct
import subprocess

import jsonschema

FATHOM = os.environ["FATHOM"]
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "models" / "tiny-deepseek"


def fathom(*arguments, timeout=120):
    return subprocess.run([FATHOM, *map(str, arguments)], capture_output=True, text=True,
                          timeout=timeout)


def validated(document):
    """The document, after its schema of docs/schemas has passed it."""
    name = document["schema"].removeprefix("fathom.").split("/")[0]
    schema = json.loads((ROOT / "docs/schemas" / f"{name}.schema.json").read_text())
    jsonschema.validate(document, schema)
    return document


def test_bench_model_states_speed_beside_roofs(tmp_path):
    report = tmp_path / "bench.json"
    done = fathom("bench", "model", MODEL, "--prompt", 32, "--steps", 2, "--batch", "1,2",
                  "--repeats", 1, "--ops", "--json", report)
    assert done.returncode == 0, done.stderr
    assert "prefill" in done.stdout and "attention" in done.stdout
    out = validated(json.loads(report.read_text()))
    assert out["schema"] == "fathom.bench_model/1"
    assert [(r["phase"], r["batch"]) for r in out["rows"]] == [
        ("prefill", 1), ("decode", 1), ("decode", 2)]
    for row in out["rows"]:
        assert row["tokens_per_s"] > 0 and row["ops"]["experts"]["flops"] > 0


def test_bench_model_states_what_events_cost():
    done = fathom("bench", "model", MODEL, "--event-cost", "--prompt", 16, "--steps", 4,
                  "--json", "-")
    assert done.returncode == 0, done.stderr
    out = validated(json.loads(done.stdout[done.stdout.index("{"):]))
    assert out["schema"] == "fathom.bench_events/1" and out["pairs"] == 4
    assert out["events_per_step"] > 40 and out["on_s"] > 0 and out["off_s"] > 0


def test_bench_model_writes_logits(tmp_path):
    tokens, logits = tmp_path / "tokens.txt", tmp_path / "logits.bin"
    tokens.write_text("1 2 3\n4 5\n")
    arguments = ("bench", "model", MODEL, "--tokens", tokens, "--logits", logits)
    done = fathom(*arguments, "--prompt", 3)
    assert done.returncode == 0, done.stderr
    vocab = json.loads((MODEL / "config.json").read_text())["vocab_size"]
    values = struct.unpack(f"<{3 * vocab}f", logits.read_bytes())
    assert len(set(values)) > vocab
    tokens.write_text("1 2 x")
    done = fathom(*arguments, "--prompt", 2)
    assert done.returncode == 2 and "'x' after 2 ids" in done.stderr
    for refused in (("--logits", logits), ("--tokens", tokens), ("--event-cost", "--text", tokens)):
        assert fathom("bench", "model", MODEL, *refused).returncode == 2


def test_bench_model_predicts_a_text(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The old man went down to the river.\n<|doc|>\nOnce upon a time.\n")
    done = fathom("bench", "model", MODEL, "--text", text, "--json", "-")
    assert done.returncode == 0, done.stderr
    out = validated(json.loads(done.stdout[done.stdout.index("{"):]))
    assert out["schema"] == "fathom.bench_text/1"
    assert out["texts"][0]["documents"] == 2
    assert out["texts"][0]["bytes"] == len("The old man went down to the river.Once upon a time.")
    assert 0.5 < out["texts"][0]["bits_per_byte"] < 4
    assert fathom("bench", "model", MODEL, "--text", text, "--window", 10**6).returncode == 2


def test_bench_model_predicts_the_same_tokens_within_several_contexts(tmp_path):
    text = tmp_path / "text.txt"
    chapter = "The old man went down to the river, and there he met a fox.\n" * 12
    text.write_text(chapter + "<|doc|>\n" + chapter)
    arguments = ("bench", "model", MODEL, "--text", text, "--stride", 50, "--json", "-")
    done = fathom(*arguments, "--context", "32,128")
    assert done.returncode == 0, done.stderr
    out = validated(json.loads(done.stdout[done.stdout.index("{"):]))
    assert out["schema"] == "fathom.bench_context/1"
    short, long = out["rows"]
    assert (short["context_tokens"], long["context_tokens"]) == (32, 128)
    assert short["windows"] > 2 and short["target_tokens"] <= 8 * short["windows"]
    assert all(short[k] == long[k] for k in ("windows", "target_tokens", "target_bytes"))
    # The text repeats itself: more of it in sight predicts it better.
    assert long["bits_per_byte"] < short["bits_per_byte"] and long["bits_per_token_change"] < 0
    assert long["standard_error"] > 0 and "bits_per_token_change" not in short
    for context, expected in (("32,1000000", "the model's context is 8192"), ("32,8000", "at least 8000 tokens"),
                              ("3,32", "at least 4 tokens")):
        done = fathom(*arguments, "--context", context)
        assert done.returncode == 2 and expected in done.stderr, done.stderr
    done = fathom("bench", "model", MODEL, "--context", 64)
    assert done.returncode == 2 and "only --text" in done.stderr


def test_verify_agrees_and_names_what_diverges(tmp_path):
    done = fathom("verify", MODEL, "--tokens", 24)
    assert done.returncode == 0 and "agree within" in done.stdout, done.stdout + done.stderr
    done = fathom("verify", MODEL, "--tokens", 24, "--tolerance", 1e-6)
    assert done.returncode == 1 and "first to diverge: layer 0" in done.stdout


def test_a_model_that_does_not_fit_is_refused_with_the_numbers():
    done = fathom("bench", "model", MODEL, "--max-memory", "20M")
    assert done.returncode == 2
    for word in ("does not fit", "--max-memory", "are missing", "experts", "KV pages"):
        assert word in done.stderr


def test_broken_checkpoints_are_refused(tmp_path):
    (tmp_path / "config.json").write_text((MODEL / "config.json").read_text())
    weights = tmp_path / "model.safetensors"
    whole = (MODEL / "model.safetensors").read_bytes()
    for broken, message in ((whole[: len(whole) // 2], "data_offsets"),
                            (struct.pack("<Q", 1 << 60) + whole[8:], "header claims"),
                            (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull")):
        weights.write_bytes(broken)
        done = fathom("verify", tmp_path)
        assert done.returncode == 2 and message in done.stderr, done.stderr
