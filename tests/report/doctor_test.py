"""fathom doctor on a machine whose readings are known: a stand-in for NVML, a small /metrics."""
import json
import os
import pathlib
import signal
import subprocess
import time

import jsonschema
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FATHOM = os.environ["FATHOM"]
NVML = os.environ["FAKE_NVML"]


def doctor(*arguments, expect=0):
    done = subprocess.run([FATHOM, "doctor", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == expect, done.stderr
    return done.stdout if expect == 0 else done.stderr


@pytest.fixture
def metrics(server):
    return f"{server}/metrics"


def test_gpu_and_server_are_read_and_judged(metrics, tmp_path):
    record = tmp_path / "samples.jsonl"
    report = json.loads(doctor("--nvml", NVML, "--url", metrics, "--pid", os.getpid(),
                               "--seconds", 2, "--record", record, "--json", "-"))
    jsonschema.validate(report, json.loads((ROOT / "docs/schemas/report.schema.json").read_text()))
    facts = {f["id"]: f for f in report["facts"]}
    # The stand-in says: 42 % busy, 89 % memory.
    assert "busy 42.0%" in facts["gpu-activity"]["text"]
    assert "memory busy 89.0%" in facts["gpu-activity"]["text"]
    assert 0 <= facts["cpu"]["value"] <= 1 and "resident" in facts["process"]["text"]
    assert facts["queue-pressure"]["value"] == 1
    assert facts["preemptions"]["value"] > 0
    assert any(f["id"] == "compute-bound" and "memory bandwidth" in f["title"]
               for f in report["findings"])
    assert any(r["id"] == "kv-dtype" for r in report["recommendations"])
    assert report["live"]["scrapes"] == 2 and report["live"]["samples"] > 100
    assert "kv-copy" in report["next"][0]["rules"]
    # The recording says the same through diagnose.
    again = subprocess.run([FATHOM, "diagnose", record, "--json", "-"], capture_output=True,
                           text=True, check=True)
    recorded = json.loads(again.stdout)
    assert recorded["inputs"][0]["format"] == "fathom-samples"
    assert any(f["id"] == "compute-bound" for f in recorded["findings"])
    # With the scrapes beside it, it says what the live report said of the server.
    both = subprocess.run([FATHOM, "diagnose", record, f"{record}.prom", "--json", "-"],
                          capture_output=True, text=True, check=True)
    again = {f["id"]: f for f in json.loads(both.stdout)["facts"]}
    assert again["queue-pressure"] == facts["queue-pressure"]
    assert again["preemptions"] == facts["preemptions"]


def test_a_terminal_sees_a_line_a_second(metrics):
    # `script` gives the program a terminal; its line is written over once a second.
    done = subprocess.run(
        ["script", "-qec", f"{FATHOM} doctor --nvml {NVML} --url {metrics} --seconds 2", "/dev/null"],
        capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.split("\x1b[K") if "GPU0 42%" in line]
    assert len(lines) == 2 and "   1 s" in lines[0] and "   2 s" in lines[1]
    assert "running 12  waiting 5  KV 97%" in lines[1]


def test_without_a_gpu_it_says_so_and_does_the_rest():
    text = doctor("--nvml", "libno-such-nvml.so.1", "--seconds", 1)
    assert "no GPU is visible" in text
    assert "1. What the machine did" in text and "What to record next" in text
    assert "ncu --set full" in text
    assert "看不到 GPU" in doctor("--nvml", "libno-such-nvml.so.1", "--seconds", 1, "--lang", "zh")


def test_threads_far_from_their_gpu(tmp_path):
    # A machine of two nodes whose GPU is on the second one, while all that runs is on the first:
    # other files in the place of the system's, seen by this program alone.
    cpus = f"{min(os.sched_getaffinity(0))}-{max(os.sched_getaffinity(0))}"
    for path, text in {"node/online": "0-1", "node/node0/cpulist": cpus, "node/node1/cpulist": "9999",
                       "pci/0000:1a:00.0/numa_node": "1"}.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    mounts = (f"mount --bind {tmp_path}/node /sys/devices/system/node && "
              f"mount --bind {tmp_path}/pci /sys/bus/pci/devices")
    if subprocess.run(["unshare", "-rm", "sh", "-c", mounts], capture_output=True).returncode != 0:
        pytest.skip("no mount namespace of our own here")
    record = tmp_path / "samples.jsonl"
    worker = subprocess.Popen(["python3", "-c", "while True: pass"])
    try:
        done = subprocess.run(
            ["unshare", "-rm", "sh", "-c", f"{mounts} && exec {FATHOM} doctor --nvml {NVML} "
             f"--seconds 3 --record {record} --json {tmp_path}/live.json"],
            capture_output=True, text=True, env=os.environ | {"FAKE_NVML_PIDS": str(worker.pid)})
    finally:
        worker.kill()
        worker.wait()
    assert done.returncode == 0, done.stderr
    assert "GPU 0 is on NUMA node 1: so were 0 of " in done.stdout
    header = json.loads(record.read_text().splitlines()[0])
    assert header["numa_nodes"] == 2 and header["threads_of"] == "nvml"
    assert header["gpus"][0]["numa_node"] == 1
    # The recording gives the finding; how many readings it takes is a limit.
    limits = tmp_path / "limits.json"
    limits.write_text('{"numa.min_thread_readings": 1}')
    again = subprocess.run([FATHOM, "diagnose", record, "--thresholds", limits, "--json", "-"],
                           capture_output=True, text=True, check=True)
    numa = [f for f in json.loads(again.stdout)["findings"] if f["id"] == "numa"]
    assert len(numa) == 1 and numa[0]["severity"] == "warn"
    assert "off the node of GPU 0 (node 1)" in numa[0]["evidence"][0]["text"]


def test_interrupt_ends_the_sampling_not_the_report():
    process = subprocess.Popen([FATHOM, "doctor", "--nvml", NVML, "--seconds", "600"],
                               stdout=subprocess.PIPE, text=True)
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0 and "3. Causes and fixes" in out


@pytest.mark.parametrize("arguments, what", [
    (["--seconds", 0], "1 to 3600"), (["--period-ms", 0], "1 to 10000"),
    (["--url", "http://127.0.0.1:1/metrics"], "127.0.0.1"), (["--pid", 4194305], "no such process"),
    (["--lang", "fr"], "en or zh")])
def test_bad_usage_is_named(arguments, what):
    assert what in doctor(*arguments, expect=2)
