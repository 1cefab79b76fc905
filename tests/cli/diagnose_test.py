"""fathom diagnose as a user meets it: standard input, folders, several files, progress."""
import gzip
import json
import os
import pathlib
import pty
import subprocess

FATHOM = os.environ["FATHOM"]
DATA = pathlib.Path(__file__).resolve().parents[1] / "data/diagnose"
STATIC = DATA / "kineto/llama_sdpa_static_cache.json.gz"
GRAPH = DATA / "kineto/llama_cudagraph_decode.json.gz"


def report(*arguments, stdin=None):
    done = subprocess.run([FATHOM, "diagnose", *map(str, arguments), "--json", "-"], input=stdin,
                          capture_output=True, check=True)
    assert done.stderr == b""  # no terminal: no progress
    return json.loads(done.stdout)


def test_standard_input_is_read_as_a_file_would_be():
    file = report(STATIC)
    for data in (STATIC.read_bytes(), gzip.open(STATIC).read()):
        piped = report("-", stdin=data)
        assert piped["inputs"][0]["path"] == "-"
        assert piped["phases"] == file["phases"]
        assert piped["findings"] == file["findings"]


def test_a_folder_stands_for_its_artifacts(tmp_path):
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces/a.json.gz").write_bytes(STATIC.read_bytes())
    (tmp_path / "b.json.gz").write_bytes(GRAPH.read_bytes())
    (tmp_path / "notes.txt").write_text("slow since Tuesday\n")
    (tmp_path / "report.nsys-rep").write_bytes(b"QDSSARGO\0\0")
    both = report(tmp_path)
    assert [os.path.basename(i["path"]) for i in both["inputs"]] == ["b.json.gz", "a.json.gz"]
    left_out = [t["detail"] for t in both["trust"] if t["id"] == "skipped"]
    assert len(left_out) == 2
    assert any("nsys export" in detail for detail in left_out)
    assert any("notes.txt" in detail for detail in left_out)


def test_several_files_make_one_report():
    both = report(STATIC, GRAPH)
    assert len(both["inputs"]) == 2
    assert both["phases"]["decode"]["steps"] == 10


def test_an_unknown_file_is_an_error(tmp_path):
    (tmp_path / "notes.txt").write_text("slow since Tuesday\n")
    for path in (tmp_path / "notes.txt", tmp_path):
        done = subprocess.run([FATHOM, "diagnose", path], capture_output=True, text=True)
        assert done.returncode == 2
        assert "expected" in done.stderr and "notes.txt" in done.stderr


def test_progress_is_shown_on_a_terminal_only(tmp_path):
    trace = tmp_path / "trace.json"
    trace.write_bytes(gzip.open(STATIC).read())
    ours, theirs = pty.openpty()
    with subprocess.Popen([FATHOM, "diagnose", trace], stdout=subprocess.DEVNULL,
                          stderr=theirs) as process:
        assert process.wait() == 0
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:  # a terminal whose other end is closed
        pass
    os.close(ours)
    lines = shown.decode().split("\r\x1b[K")
    shares = [int(line.split()[-2]) for line in lines if line.startswith("reading ")]
    assert shares and shares == sorted(set(shares)) and shares[-1] == 100
    assert lines[-1] == ""  # taken away again
