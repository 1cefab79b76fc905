"""fathom diagnose in scripts and against mistakes: gates, limits, outputs, pipes, full disks."""
import gzip
import json
import os
import pathlib
import subprocess

import pytest

FATHOM = os.environ["FATHOM"]
DATA = pathlib.Path(__file__).resolve().parents[1] / "data/diagnose"
STATIC = DATA / "kineto/llama_sdpa_static_cache.json.gz"
NTK = DATA / "kineto/llama_dynamic_ntk_past_limit.json.gz"
GRAPH = DATA / "kineto/llama_cudagraph_decode.json.gz"
PAGES = DATA / "ncu/ncu_torch_raw.csv.gz"


def run(*arguments, expect=0):
    done = subprocess.run([FATHOM, *map(str, arguments)], capture_output=True, text=True,
                          check=False)
    assert done.returncode == expect, done.stderr
    return done.stderr if expect == 2 else done.stdout


def test_a_report_fails_on_what_was_asked():
    run("diagnose", STATIC)  # findings alone are no failure
    run("diagnose", STATIC, "--fail-on", "severe", expect=1)
    run("diagnose", PAGES, "--fail-on", "warn", expect=1)
    run("diagnose", PAGES, "--fail-on", "severe")
    assert "expected warn or severe" in run("diagnose", PAGES, "--fail-on", "info", expect=2)


def test_a_comparison_fails_on_a_slowdown():
    run("diagnose", "compare", NTK, STATIC, "--fail-over", "5%")
    run("diagnose", "compare", STATIC, NTK, "--fail-over", "5%", expect=1)
    run("diagnose", "compare", STATIC, NTK, "--fail-over", "5000%")
    text = run("diagnose", "compare", NTK, STATIC, "--lang", "zh")
    assert "更快" in text and "单独一步看不出波动" in text
    assert "expected a percentage" in run("diagnose", "compare", NTK, STATIC, "--fail-over", "-5%",
                                          expect=2)


def test_a_gate_that_saw_nothing_is_no_pass():
    run("diagnose", "compare", PAGES, PAGES)
    assert "found none to judge by" in run("diagnose", "compare", PAGES, PAGES, "--fail-over", "5%",
                                           expect=2)


@pytest.mark.parametrize("limits, says", [
    ({"kv-copy.warn_share": -1}, "expected a number from 0 to 1"),
    ({"kv-copy.warn_share": 0.5}, "kv-copy.severe_share is 0.1"),
    ({"kv-copi.warn_share": 0.5}, "did you mean 'kv-copy.warn_share'"),
    ({"numa.handbook_local_ns": {"enabled": True}}, "for reference"),
])
def test_limits_outside_the_law_are_errors(tmp_path, limits, says):
    (tmp_path / "limits.json").write_text(json.dumps(limits))
    for command in (("diagnose", STATIC), ("diagnose", "compare", STATIC, NTK),
                    ("diagnose", "--explain", "kv-copy")):
        assert says in run(*command, "--thresholds", tmp_path / "limits.json", expect=2)


def test_a_limit_of_the_handbook_speaks_once_enabled(tmp_path):
    (tmp_path / "limits.json").write_text(json.dumps({"graph-miss.handbook_warmup_us": 9.2}))
    plain = json.loads(run("diagnose", GRAPH, "--json", "-"))
    assert not any("handbook" in f["title"] for f in plain["findings"])
    text = run("diagnose", GRAPH, "--thresholds", tmp_path / "limits.json")
    assert "graph-miss.handbook_warmup_us" in text and "handbook A19: plausible" in text
    assert "A19" in run("diagnose", GRAPH, "--thresholds", tmp_path / "limits.json", "--lang", "zh")


def test_no_output_destroys_an_input(tmp_path):
    trace = tmp_path / "trace.json"
    trace.write_bytes(gzip.open(STATIC).read())
    (tmp_path / "link.json").symlink_to(trace)
    (tmp_path / "packed.json.gz").write_bytes(STATIC.read_bytes())  # left out: the same recording
    before = trace.read_bytes()
    for output in (trace, tmp_path / "link.json"):
        for command in (("diagnose", trace, "--json", output), ("diagnose", trace, "--html", output),
                        ("diagnose", "compare", trace, GRAPH, "--json", output),
                        ("flame", trace, "-o", output, "--format", "svg")):
            assert "would be overwritten" in run(*command, expect=2)
    for name in ("trace.json", "packed.json.gz"):
        assert "would be overwritten" in run("diagnose", tmp_path, "--md", tmp_path / name, expect=2)
    assert trace.read_bytes() == before
    # A report of before in the same folder is no recording.
    for _ in range(2):
        run("diagnose", tmp_path, "--json", tmp_path / "report.json")


@pytest.mark.parametrize("place", ["-", "report"])
def test_two_forms_need_two_places(tmp_path, place):
    out = place if place == "-" else tmp_path / place
    assert "another place for each form" in run("diagnose", STATIC, "--json", out, "--md", out,
                                                expect=2)


def test_two_names_of_a_place_are_one(tmp_path):
    (tmp_path / "folder").mkdir()
    here = os.path.relpath(tmp_path / "report")
    for other in (f"{tmp_path}/folder/../report", here, f"./{here}"):
        assert "another place for each form" in run(
            "diagnose", STATIC, "--json", tmp_path / "report", "--md", other, expect=2)


def test_a_recording_counts_once(tmp_path):
    copy = tmp_path / "copy.json"
    copy.write_bytes(gzip.open(STATIC).read())
    assert "given twice" in run("diagnose", STATIC, STATIC, expect=2)
    assert "the same recording as" in run("diagnose", STATIC, copy, expect=2)


@pytest.mark.parametrize("option", ["--json", "--md", "--html", "--perfetto"])
def test_a_full_disk_is_an_error(option):
    assert "No space left on device" in run("diagnose", STATIC, option, "/dev/full", expect=2)


def test_a_reader_that_leaves_is_no_crash():
    with subprocess.Popen([FATHOM, "diagnose", STATIC, "--html", "-"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        process.stdout.read(10)
        process.stdout.close()
        message = process.stderr.read().decode()
        assert process.wait() in (2, -13), message  # an error, or the signal that such pipes send


def test_clocks_thirty_years_apart(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("".join(
        f"[1995-12-26 06:08:{i:02} TP0] Decode batch, #running-req: 1, #token: 1411, token usage: 0.00, "
        "cuda graph: True, gen throughput (token/s): 110.58, #queue-req: 0, \n" for i in range(30)))
    metrics = tmp_path / "scrapes.prom"
    metrics.write_text("".join(
        f'# Time: {t}\nDCGM_FI_PROF_SM_ACTIVE{{gpu="0"}} 0.5\n'
        f'DCGM_FI_PROF_PCIE_RX_BYTES{{gpu="0"}} 1e9\n'
        for t in [1_700_000_000 + i / 1000 for i in range(100)] + [2_700_000_000]))
    report = json.loads(run("diagnose", STATIC, log, metrics, "--json", "-"))
    assert [i["clock"]["aligned"] for i in report["inputs"]] == [True, False, True]
    assert [f["id"] for f in report["findings"]] == [
        f["id"] for f in json.loads(run("diagnose", STATIC, "--json", "-"))["findings"]]
