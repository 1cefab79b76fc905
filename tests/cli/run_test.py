"""`fathom run` and the frame around every command."""
import json
import os
import pathlib
import subprocess

import jsonschema
import pytest

FATHOM = os.environ["FATHOM"]
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCHEMA = json.loads((ROOT / "docs/schemas/run.schema.json").read_text())


def fathom(*arguments, stdin="", timeout=60):
    return subprocess.run([FATHOM, *arguments], input=stdin, capture_output=True, text=True,
                          timeout=timeout)


def run_json(*arguments, **options):
    done = fathom("run", "--json", "-", *arguments, **options)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    return document


def test_help_and_version():
    assert fathom("--version").stdout.startswith("fathom ")
    assert fathom("--help").returncode == 0
    assert fathom().returncode == 2
    for command in ("run", "diagnose", "tokenize"):
        done = fathom(command, "--help")
        assert done.returncode == 0 and "Usage" in done.stdout


def test_unknown_words_are_errors():
    done = fathom("rum")
    assert done.returncode == 2 and "did you mean 'run'" in done.stderr


@pytest.mark.parametrize("arguments, expected", [
    (("run", "--promt", "x"), "unknown option '--promt' (did you mean '--prompt'?); fathom run"),
    (("heatmap", "--out", "x.svg"), "unknown option '--out'"),  # though --output is required
    (("scrub", "--z"), "unknown option '--z'"),  # though a file is required
    (("bench", "model", "--threads", "x", "--nope=3"), "unknown option '--nope'"),
    (("--nope",), "unknown option '--nope'; fathom --help"),
    (("bench", "modl"), "unknown command 'modl' (did you mean 'model'?); the commands of "
                         "fathom bench are: attention"),
    (("tokenize", "a", "b", "c"), "unexpected argument 'c'"),
])
def test_what_nothing_takes_is_named_first(arguments, expected):
    done = fathom(*arguments)
    assert done.returncode == 2 and expected in done.stderr, done.stderr


def test_completes_and_accounts_for_every_millisecond():
    out = run_json("-p", "Once upon a time", "-n", "24", "--seed", "5")
    assert out["schema"] == "fathom.run/1"
    assert out["usage"]["generated_tokens"] == 24 and out["finish_reason"] == "length"
    assert len(out["content"].split()) > 5
    assert out["ledger"]["schema"] == "fathom.ledger/1"


def test_without_events_the_answer_is_the_same_and_has_no_ledger(tmp_path):
    asked = ("-p", "Once upon a time", "-n", "16", "--seed", "5")
    quiet = run_json("--no-events", *asked)
    assert quiet["content"] == run_json(*asked)["content"]
    assert "ledger" not in quiet
    done = fathom("run", "--no-events", "--trace", str(tmp_path / "t.json"), *asked)
    assert done.returncode == 2 and "--no-events" in done.stderr
    assert not (tmp_path / "t.json").exists()


def test_seed_and_temperature():
    one = run_json("-p", "The old man", "-n", "20", "--seed", "7")["content"]
    assert run_json("-p", "The old man", "-n", "20", "--seed", "7", "--threads", "1")["content"] == one
    assert run_json("-p", "The old man", "-n", "20", "--seed", "8")["content"] != one
    greedy = [run_json("-p", "The old man", "-n", "12", "--temperature", "0")["content"]
              for _ in range(2)]
    assert greedy[0] == greedy[1]


def test_every_isa_writes_the_same_sentence_in_f32():
    texts = set()
    for isa in ("scalar", "avx2", "avx512", "avx512bf16"):
        done = fathom("run", "--json", "-", "-p", "Once upon a time", "-n", "12", "--temperature",
                      "0", "--dtype", "f32", "--kv-dtype", "f32", "--cpu-isa", isa)
        if done.returncode == 2 and "this CPU" in done.stderr:
            continue
        assert done.returncode == 0, done.stderr
        texts.add(json.loads(done.stdout)["content"])
    assert len(texts) == 1


def test_reads_standard_input_and_other_models():
    assert run_json("-n", "4", stdin="A dog")["usage"]["generated_tokens"] == 4
    out = run_json(str(ROOT / "models" / "tiny-distill"), "-p", "A dog", "-n", "4")
    assert out["model"] == "tiny-distill"


def test_chat_thinks_and_answers():
    out = run_json("--chat", "-p", "Tell me a story about a fox.",
                   "-n", "200", "--seed", "1")
    assert "<think>" not in out["content"] and "</think>" not in out["content"]
    assert out["reasoning_content"].strip() and out["content"].strip()


def test_stop_string():
    out = run_json("-p", "Once upon a time", "-n", "200", "--seed", "5", "--stop", ".")
    assert out["finish_reason"] == "stop" and "." not in out["content"]


@pytest.mark.parametrize("arguments, expected", [
    (("/no/such/model",), "which does not exist. Name one as Hugging Face lays it out"),
    ((str(ROOT / "README.md"),), "found a file"),
    ((str(ROOT / "docs"),), "config.json"),
    (("--cpu-isa", "avx1024"), "expected one of"),
    (("--device", "cuda"), "--device cuda"),
    (("--device", "tpu"), "expected cpu or cuda"),
    (("--dtype", "fp4"), "expected bf16 or f32"),
    (("--kv-dtype", "int3"), "expected bf16 or f32"),
    (("--max-memory", "1M"), "MiB"),
    (("--max-memory", "lots"), "8GiB"),
    (("--page-tokens", "48"), "16, 32, 64 or 128"),
    (("--rope-scaling", "spiral"), "yarn"),
    (("--chat-template", "gpt"), "deepseek"),
    (("-n", "0"), "--max-tokens: 0: expected a whole number from 1 to"),
    (("--seed", "1.5"), "--seed 1.5: expected a whole number from 0 on"),
    (("--temperature", "hot"), "--temperature hot: expected a number; fathom run --help"),
    (("--threads", "2x"), "--threads: 2x: expected a whole number;"),
    (("--temperature", "-1"), "temperature"),
    (("--top-p", "2"), "top_p"),
    (("--lang", "fr"), "en or zh"),
    (("-n", "999999"), "8192"),
])
def test_bad_input_is_a_clear_error(arguments, expected):
    done = fathom("run", "-p", "x", *arguments)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert expected.lower() in done.stderr.lower(), done.stderr


def test_serve_says_which_ports_are_legal():
    for port in ("99999", "-1", "http"):
        done = fathom("serve", "--port", port)
        assert done.returncode == 2
        assert f"--port: {port}: expected a whole number from 0 to 65535" in done.stderr


def test_a_refused_prompt_is_not_echoed():
    done = fathom("run", "-p", "Once", "--top-p", "0")
    assert done.returncode == 2 and done.stdout == ""


def test_a_missing_command_is_named():
    done = fathom("bench")
    assert done.returncode == 2 and "attention claims model serve" in done.stderr


def test_an_empty_prompt_is_an_error():
    done = fathom("run", stdin="  \n")
    assert done.returncode == 2 and "nothing to do" in done.stderr


def test_trace_is_a_chrome_trace(tmp_path):
    path = tmp_path / "trace.json"
    run_json("-p", "Once", "-n", "4", "--trace", str(path))
    events = json.loads(path.read_text())["traceEvents"]
    assert any(e.get("args", {}).get("op") == "attention" for e in events)
    done = fathom("run", "-p", "x", "-n", "1", "--trace", "/no/such/folder/t.json")
    assert done.returncode == 2 and "/no/such/folder" in done.stderr
