"""The HTML report in headless Chromium, and the machine forms against their schemas.

FATHOM names the program. SCREENSHOTS, if set, is a folder for pictures of every size and theme.
"""
import json
import os
import pathlib
import shutil
import subprocess

import jsonschema
import pytest
from playwright.sync_api import sync_playwright

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data/diagnose"
FATHOM = os.environ["FATHOM"]
EAGER = DATA / "kineto/llama_eager_repeat_kv_cat_cache.json.gz"
STATIC = DATA / "kineto/llama_sdpa_static_cache.json.gz"
DMON = DATA / "metrics/nvidia-smi_dmon_h200_pucvmet_DT.txt"
PERF = DATA / "perf/local_python_cpu-clock.txt.gz"


def fathom(*arguments, expect=0):
    done = subprocess.run([FATHOM, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == expect, done.stderr
    return done.stdout


def check(document, schema):
    jsonschema.validate(document, json.loads((ROOT / "docs/schemas" / schema).read_text()))


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "chromium is not installed (tools/apt-packages.txt)"
    with sync_playwright() as play:
        instance = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield instance
        instance.close()


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    path = tmp_path_factory.mktemp("experts") / "experts.csv"
    rows = [f"{layer},{expert},{9000 if expert == 7 else 1000 + 10 * layer}"
            for layer in range(4) for expert in range(32)]
    path.write_text("layer,expert,tokens\n" + "\n".join(rows) + "\n")
    return path


def open_page(browser, path, width=1280, theme="light"):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme,
                                  offline=True)
    page = context.new_page()
    page.problems = []
    page.on("console", lambda m: page.problems.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: page.problems.append(str(e)))
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready=true]", timeout=20000)
    return page


def picture(page, name):
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_page_opens_at_every_size_and_theme(browser, experts, tmp_path, width, theme, language):
    out = tmp_path / "report.html"
    fathom("diagnose", EAGER, DMON, experts, "--html", out, "--lang", language)
    page = open_page(browser, out, width, theme)
    picture(page, f"{language}-{width}-{theme}")
    assert page.problems == []
    # Every sentence has its arguments.
    text = page.inner_text("#page")
    assert "{" not in text and ("confidence 0." in text or "置信度 0." in text)
    assert "launch-bound" in text if language == "en" else "等待启动" in text
    # Nothing is wider than the screen, and every picture has been drawn.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.querySelectorAll('.scroll')].every(e => "
                         "e.scrollWidth <= e.clientWidth)")
    for name in ["timeline", "steps", "gaps", "roofline", "heatmap", "flame", "experts", "lanes"]:
        assert page.locator(f"#{name} canvas").count() >= 1, name
        drawn = page.evaluate(
            """name => { const c = document.querySelector(`#${name} canvas`);
               const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
               return d.some((v, i) => i % 4 === 3 && v > 0); }""", name)
        assert drawn, name
    page.context.close()


def test_filters_hide_and_jumps_select(browser, tmp_path):
    out = tmp_path / "report.html"
    fathom("diagnose", EAGER, "--html", out)
    page = open_page(browser, out)
    assert "softmax 6.98 ms" in page.inner_text("#phases").replace("\u00a0", " ")  # prefill's only step
    severe = page.locator(".finding.severe")
    count = severe.count()
    assert count >= 2 and severe.first.is_visible()
    page.click("button[data-filter=severe]")
    assert not severe.first.is_visible()
    assert page.locator(".finding.warn").first.is_visible()
    page.click("button[data-filter=severe]")
    assert severe.nth(count - 1).is_visible()

    # A jump shows the copy kernel that the evidence names, and the timeline comes into view.
    page.locator(".finding", has_text="kv-copy").locator("button.show").first.click()
    assert "copy" in page.inner_text("#detail")
    box = page.locator("#timeline").bounding_box()
    assert -5 <= box["y"] < 300
    span = page.evaluate("timeline.to - timeline.from")
    assert span < page.evaluate("timeline.last - timeline.first")
    page.get_by_role("button", name="whole").click()
    assert page.evaluate("timeline.to - timeline.from") > span
    # From step to step, there and back.
    page.get_by_role("button", name="next step").click()
    first = page.inner_text("#detail")
    page.get_by_role("button", name="next step").click()
    second = page.inner_text("#detail")
    assert first.split(" · ")[0] in ("prefill", "decode") and first != second
    page.locator("#timeline canvas").press("p")
    assert page.inner_text("#detail") == first

    page.select_option("#heatmap select", "attention" if page.locator(
        "#heatmap option[value=attention]").count() else "gemm")
    page.locator("#flame canvas").click(position={"x": 200, "y": 25})
    assert "%" in page.inner_text("#flame .detail")
    assert page.problems == []


def test_marks_of_a_scale_keep_apart(browser, tmp_path):
    pages = tmp_path / "pages.json"
    pages.write_text(json.dumps({
        "schema": "fathom.page-map/1", "page_tokens": 64, "page_bytes": 73728,
        "pages": [{"token": 64 * i, "page": i, "channel": i % 4, "bank": 0} for i in range(20)]}))
    fathom("heatmap", "--page-map", pages, "-o", tmp_path / "map.html")
    page = open_page(browser, tmp_path / "map.html", 390)
    picture(page, "address-390-light")
    # The scale again, with where each of its marks is written.
    marks = page.evaluate("""() => {
      const context = document.querySelector('#address canvas').getContext('2d');
      const marks = [], write = context.fillText.bind(context);
      context.fillText = (text, x, y) => {
        const width = context.measureText(text).width;
        const left = {left: x, center: x - width / 2, right: x - width}[context.textAlign] ?? x;
        marks.push([text, y, left, left + width]);
        write(text, x, y);
      };
      redraws.forEach((draw) => draw());
      const last = Math.max(...marks.map((m) => m[1]));
      return marks.filter((m) => m[1] === last); }""")
    assert marks[0][0] == "0 B" and marks[-1][0].endswith("KiB")
    for before, after in zip(marks, marks[1:]):
        assert before[3] + 4 <= after[2], (before, after)
    page.context.close()


def test_page_without_traces_says_what_is_missing(browser, tmp_path):
    out = tmp_path / "report.html"
    fathom("diagnose", DATA / "logs/sglang_deepseek_v3_decode_tp0.log", "--html", out)
    page = open_page(browser, out, 390)
    assert page.problems == []
    assert "record_shapes=True" in page.inner_text("#absent")
    assert page.locator("#timeline").count() == 0
    # Phases and lanes by the log; what never changes has no lane.
    assert "decode by the log: 8 batches" in page.inner_text("#phases")
    assert "generated tokens" in page.inner_text("#lanes")
    assert "waiting requests" not in page.inner_text("#lanes")


def test_a_long_recording_opens_at_a_step(browser, tmp_path):
    events = []
    for i in range(8):
        start = i * 1_000_000
        events.append({"ph": "X", "cat": "user_annotation", "name": f"decode_step_{i}", "pid": 1,
                       "tid": 1, "ts": start, "dur": 900 + 10 * i})
        events += [{"ph": "X", "cat": "kernel", "name": f"gemm_{k}", "pid": 0, "tid": 7,
                    "ts": start + k * 50, "dur": 40,
                    "args": {"device": 0, "stream": 7, "correlation": i * 10 + k}}
                   for k in range(10)]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    out = tmp_path / "report.html"
    fathom("diagnose", trace, "--html", out)
    page = open_page(browser, out)
    # Steps of a millisecond, seconds apart: the first shown one fills the picture.
    assert 900 <= page.evaluate("timeline.to - timeline.from") < 1200
    assert page.evaluate("timeline.last - timeline.first") > 1e6
    assert page.problems == []


def test_names_cannot_become_markup(browser, tmp_path):
    trace = tmp_path / "trace.json"
    evil = "</script><img src=x onerror=document.body.dataset.evil=1><!--<script>"
    events = []
    for i in range(6):
        events.append({"ph": "X", "cat": "user_annotation", "name": "decode_step_%d" % i, "pid": 1,
                       "tid": 1, "ts": i * 1000, "dur": 900})
        for k in range(10):
            events.append({"ph": "X", "cat": "kernel", "name": evil + str(k), "pid": 0, "tid": 7,
                           "ts": i * 1000 + k * 50, "dur": 40,
                           "args": {"device": 0, "stream": 7, "correlation": i * 10 + k}})
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    out = tmp_path / "report.html"
    fathom("diagnose", trace, "--html", out)
    page = open_page(browser, out)
    assert page.problems == []
    assert page.evaluate("document.body.dataset.evil") is None


def test_json_follows_its_schema(tmp_path, experts):
    for inputs in [[EAGER], [STATIC, DMON], [experts], [DATA / "logs"], [DATA / "metrics"]]:
        document = json.loads(fathom("diagnose", *inputs, "--json", "-"))
        check(document, "report.schema.json")
    assert any(f["id"] == "preemptions" or f["id"] == "requests"
               for f in json.loads(fathom("diagnose", DATA / "logs", "--json", "-"))["facts"])


def test_explain():
    text = fathom("diagnose", "--explain", "kv-copy")
    assert "kv-copy.warn_share" in text and "handbook, plausible, off" in text
    fathom("diagnose", "--explain", "kv-copi", expect=2)
    fathom("diagnose", expect=2)
