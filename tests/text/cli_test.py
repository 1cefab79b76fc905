"""fathom tokenize: output, JSON against its schema, errors."""
import json
import os
import pathlib
import subprocess

import jsonschema
import pytest
from published import extract

SCHEMA = pathlib.Path(__file__).parent.parent.parent / "docs/schemas/tokens.schema.json"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return extract("deepseek-r1", tmp_path_factory.mktemp("models"))


def fathom(*args, **kwargs):
    return subprocess.run([os.environ["FATHOM"], "tokenize", *map(str, args)], capture_output=True,
                          **kwargs)


def test_lists_tokens(model):
    result = fathom(model, "--text", "Hello, 世界🫠<think>\n", "--bos")
    assert result.returncode == 0
    assert result.stdout.decode() == (
        '       0  "<｜begin▁of▁sentence｜>"\n'
        '   19923  "Hello"\n'
        '      14  ","\n'
        '     223  " "\n'
        '    3427  "世界"\n'
        '    3574  "\\xf0\\x9f"\n'
        '     107  "\\xab"\n'
        '     257  "\\xa0"\n'
        '  128798  "<think>"\n'
        '     201  "\\n"\n'
        "10 tokens, 25 bytes, 2.50 bytes a token\n")


def test_reads_files_and_standard_input(model, tmp_path):
    (tmp_path / "text").write_text("Hello")
    assert fathom(model, tmp_path / "text", "--ids").stdout == b"19923\n"
    assert fathom(model, "--ids", input=b"Hello").stdout == b"19923\n"
    assert fathom(model, "--ids", "--text", "").stdout == b"\n"
    assert len(fathom(model, "--ids", "--no-special", "--text", "<｜▁pad▁｜>").stdout.split()) > 1


def test_without_a_model_the_shipped_one():
    shipped = SCHEMA.parent.parent.parent / "models/tiny-deepseek"
    ours = fathom("--ids", "--text", "Hello, world")
    assert ours.returncode == 0 and ours.stdout == fathom(shipped, "--ids", "--text",
                                                          "Hello, world").stdout
    assert fathom("--ids", input=b"Hello, world").stdout == ours.stdout


def test_json_follows_its_schema(model, tmp_path):
    result = fathom(model, "--bos", "--text", "é🫠", "--json", tmp_path / "out.json")
    assert (result.returncode, result.stdout) == (0, b"")
    report = json.loads((tmp_path / "out.json").read_text())
    jsonschema.validate(report, json.loads(SCHEMA.read_text()))
    assert report["tokens"][0]["special"] and report["bytes"] == 6
    assert bytes(b for token in report["tokens"][1:] for b in token["bytes"]).decode() == "é🫠"
    assert json.loads(fathom(model, "--bos", "--text", "é🫠", "--json", "-").stdout) == report


@pytest.mark.parametrize("args, message", [
    (["nowhere", "--text", "a"], "nowhere/tokenizer.json"),
    (["{model}", "nofile"], "nofile"),
    (["{model}", "--text", "a", "--json", "/no/such/folder/x"], "--json"),
    (["{model}", "--bogus"], "bogus")])
def test_errors_exit_with_2(model, args, message):
    result = fathom(*[a.replace("{model}", str(model)) for a in args])
    assert result.returncode == 2
    assert message in result.stderr.decode()
