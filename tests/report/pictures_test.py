"""fathom heatmap, roofline, flame as SVG and PNG; a live /metrics as an input of fathom diagnose."""
import json
import os
import pathlib
import struct
import subprocess
import xml.etree.ElementTree

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data/diagnose"
FATHOM = os.environ["FATHOM"]
EAGER = DATA / "kineto/llama_eager_repeat_kv_cat_cache.json.gz"
NTK = DATA / "kineto/llama_dynamic_ntk_past_limit.json.gz"
LOG = DATA / "logs/sglang_deepseek_v3_decode_tp0.log"


def fathom(*arguments, expect=0, env=None):
    done = subprocess.run([FATHOM, *map(str, arguments)], capture_output=True, text=True,
                          env={**os.environ, **(env or {})})
    assert done.returncode == expect, done.stderr
    return done.stdout if expect == 0 else done.stderr


def svg_text(path):
    root = xml.etree.ElementTree.parse(path).getroot()
    name = "{http://www.w3.org/2000/svg}text"
    return " ".join(element.text or "" for element in root.iter(name))


def png_size(path):
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


@pytest.mark.parametrize("picture, says", [
    ("heatmap", ["layer", "decode step", "kernel class", "gemm", "0"]),
    ("roofline", ["arithmetic intensity, FLOP/byte", "TFLOP/s", "4800 GB/s", "of roof"]),
    ("flame", ["Callers above", "LlamaForCausalLM"])])
def test_pictures_have_axes_units_and_labels(tmp_path, picture, says):
    fathom(picture, EAGER, "-o", tmp_path / "a.svg")
    text = svg_text(tmp_path / "a.svg")
    for word in says:
        assert word in text, word
    fathom(picture, EAGER, "-o", tmp_path / "a.png")
    width, height = png_size(tmp_path / "a.png")
    assert width == 2400 and height > 300
    # The extension decides, --format decides over it.
    fathom(picture, EAGER, "-o", tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    assert fathom(picture, EAGER, "-o", "-", "--format", "svg").startswith("<svg")


def test_attention_has_a_point_beside_matrix_products(tmp_path):
    fathom("roofline", NTK, "-o", tmp_path / "a.svg", "--lang", "zh")
    text = svg_text(tmp_path / "a.svg")
    assert "attention 1 x" in text and "注意力, 解码" in text and "计算强度" in text


def test_sampled_clocks_are_time(tmp_path):
    # Periods of cpu-clock are nanoseconds: 462 samples at 199 Hz are 2.32 s.
    fathom("flame", DATA / "perf/local_python_cpu-clock.txt.gz", "-o", tmp_path / "a.svg")
    assert "2.32 s in all" in svg_text(tmp_path / "a.svg")


@pytest.mark.parametrize("picture", ["heatmap", "roofline", "flame"])
def test_a_picture_without_data_says_what_it_would_need(tmp_path, picture):
    fathom(picture, LOG, "-o", tmp_path / "a.svg")
    assert "no " in svg_text(tmp_path / "a.svg")
    fathom(picture, LOG, "-o", tmp_path / "a.png")
    assert png_size(tmp_path / "a.png")[0] == 2400


def test_png_needs_a_font_with_the_letters(tmp_path):
    empty = tmp_path / "fonts.conf"
    empty.write_text("<?xml version='1.0'?><fontconfig></fontconfig>")
    message = fathom("flame", EAGER, "-o", tmp_path / "a.png", "--lang", "zh", expect=2,
                     env={"FONTCONFIG_FILE": str(empty)})
    assert "no installed font has Chinese letters" in message and not (tmp_path / "a.png").exists()


@pytest.mark.parametrize("arguments, what", [
    (["-o", "a.jpg"], ".html, .svg or .png"), (["-o", "-"], ".html, .svg or .png"),
    (["-o", "a", "--format", "gif"], "html, svg or png"),
    (["-o", "a.svg", "--value", "latency"], "--page-map")])
def test_bad_usage_is_named(arguments, what):
    assert what in fathom("heatmap", EAGER, *arguments, expect=2)


def test_memory_address_map(tmp_path):
    accesses = tmp_path / "accesses.jsonl"
    accesses.write_text("".join(
        json.dumps({"token_id": t, "emit_ts": 1000 * t + i, "hbm_addr": 16 * i + 64 * (t % 4),
                    "latency": 300 + 40 * i}) + "\n" for t in range(600) for i in range(8)))
    bits = tmp_path / "bits.json"
    bits.write_text(json.dumps({"schema": "fathom.page-map/1",
                                "address_bits": {"bank": [7, 6], "channel": [5, 4]}}))
    fathom("heatmap", accesses, "--page-map", bits, "-o", tmp_path / "a.svg")
    text = svg_text(tmp_path / "a.svg")
    assert "channel / bank" in text and "3 / 3" in text and "4800 accesses" in text
    assert "A column stands for 3 tokens" in text
    fathom("heatmap", accesses, "--page-map", bits, "--value", "latency", "-o", tmp_path / "a.html")
    assert '"unit":"ns"' in (tmp_path / "a.html").read_text()
    assert "expected accesses or latency" in fathom(
        "heatmap", accesses, "--page-map", bits, "--value", "x", "-o", tmp_path / "b.svg", expect=2)

    pages = tmp_path / "pages.json"
    pages.write_text(json.dumps({"schema": "fathom.page-map/1", "page_tokens": 64,
                                 "page_bytes": 73728,
                                 "pages": [{"token": 64 * i, "page": 7 * i % 32, "channel": i % 4,
                                            "bank": i // 4 % 4} for i in range(32)]}))
    fathom("heatmap", "--page-map", pages, "-o", tmp_path / "b.png", "--lang", "en")
    assert png_size(tmp_path / "b.png")[0] == 2400
    bits.write_text("{}")
    assert f"{bits}: page map" in fathom("heatmap", accesses, "--page-map", bits, "-o",
                                         tmp_path / "b.svg", expect=2)


def test_a_live_server_is_an_input(server, tmp_path):
    page = tmp_path / "report.html"
    once = json.loads(fathom("diagnose", f"{server}/metrics", "--json", "-", "--html", page))
    assert once["inputs"][0]["format"] == "prometheus"
    assert '"key":"kv_usage"' not in page.read_text()
    series = json.loads(fathom("diagnose", f"{server}/metrics", LOG, "--for", 2, "--json", "-",
                               "--html", page))
    facts = {f["id"]: f["value"] for f in series["facts"]}
    assert facts["preemptions"] > 0 and facts["queue-pressure"] > 0
    assert '"key":"kv_usage"' in page.read_text()  # three scrapes make a lane


@pytest.mark.parametrize("path, what", [
    ("/missing", "expected status 200, found 404"), ("/", "begins with '<!doctype html>")])
def test_what_is_no_metrics_page_is_named(server, path, what):
    message = fathom("diagnose", f"{server}{path}", expect=2)
    assert what in message and server in message


@pytest.mark.parametrize("arguments, what", [
    (["http://127.0.0.1:1/metrics"], "Connection refused"),
    (["http://127.0.0.1:1/metrics", "--for", 2], "Connection refused"),
    (["https://127.0.0.1/metrics"], "https is not supported"),
    (["http://127.0.0.1:x/"], "http://HOST:PORT/PATH"), ([LOG, "--for", 5], "http://")])
def test_bad_addresses_are_named(arguments, what):
    assert what in fathom("diagnose", *arguments, expect=2)
