"""Many clients, slow clients, clients that leave, bytes that are not HTTP, and an orderly end."""
import concurrent.futures
import http.client
import json
import pathlib
import re
import socket
import threading
import time

import pytest

from conftest import KEY, Server


def metric(server, name):
    text = server.request("GET", "/metrics")[1]
    found = re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.M)
    return float(found[1]) if found else None


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.05)


def post(body, path="/v1/completions"):
    text = body if isinstance(body, str) else json.dumps(body)
    return (f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(text.encode())}\r\n\r\n"
            f"{text}").encode()


def connect(server):
    s = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def read_all(s):
    out = b""
    while part := s.recv(65536):
        out += part
    return out


def test_two_hundred_streams(client, server):
    def one(i):
        stream = client.completions.create(model=server.model, prompt=f"Story {i}:", max_tokens=16,
                                           temperature=1, seed=i, stream=True,
                                           stream_options={"include_usage": True})
        text, usage = "", None
        for chunk in stream:
            usage = chunk.usage or usage
            text += "".join(c.text for c in chunk.choices)
        return text, usage
    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        results = list(pool.map(one, range(200)))
    assert all(0 < usage.completion_tokens <= 16 for _, usage in results)
    alone = one(17)
    assert results[17][0] == alone[0], "the same text in a crowd and alone"


def test_cancel_in_mid_stream_frees_the_engine(client, server):
    before = metric(server, "fathom:generation_tokens_total")
    stream = client.completions.create(model=server.model, prompt="Go on", max_tokens=6000,
                                       stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    wait_for(lambda: metric(server, "fathom:num_requests_running") == 0)
    assert metric(server, "fathom:generation_tokens_total") - before < 6000


def test_slow_readers_do_not_hold_up_others(client, server):
    """One stream, and one answer that is larger than what the two sockets may hold (4 and 6 MiB),
    so that the server waits for its reader."""
    stream, large = connect(server), connect(server)
    stream.sendall(post({"prompt": "a", "max_tokens": 200, "stream": True, "ignore_eos": True}))
    large.sendall(post({"prompt": "1 " * 800_000, "add_special_tokens": False,
                        "return_token_strs": True}, "/tokenize"))
    assert large.recv(1, socket.MSG_PEEK) and stream.recv(1, socket.MSG_PEEK)
    begin = time.monotonic()
    client.completions.create(model=server.model, prompt="quick", max_tokens=4)
    assert time.monotonic() - begin < 30
    text = b""
    while b"[DONE]" not in text:
        part = stream.recv(1000)
        assert part, "the stream ended early"
        text += part
        time.sleep(0.0005)
    assert text.count(b'"finish_reason":"length"') == 1
    stream.close()
    response = http.client.HTTPResponse(large)
    response.begin()
    answer = response.read()
    assert len(answer) > 10 << 20 and json.loads(answer)["count"] == 1_600_000
    large.close()


def test_pipelined_requests_are_answered_in_order(server):
    s = connect(server)
    s.sendall(post({"prompt": "one", "max_tokens": 2}) + post({"tokens": [5]}, "/detokenize")
              + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    text = read_all(s).decode()
    assert text.count("HTTP/1.1 200") == 3
    assert text.index("text_completion") < text.index('{"prompt":') < text.index('"ok"')


def test_a_body_in_chunks(server):
    s = connect(server)
    body = b'{"prompt": "abc", "max_tokens": 1}'
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
              b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
              b"Authorization: Bearer " + KEY.encode() + b"\r\n\r\n")
    for i in range(0, len(body), 5):
        part = body[i:i + 5]
        s.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        time.sleep(0.002)
    s.sendall(b"0\r\n\r\n")
    assert b'"text_completion"' in read_all(s)


@pytest.mark.parametrize("request_bytes, status", [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", None),
    (b"GET\r\n\r\n", b"400"),
    (b"GET / HTTP/1.1\r\nBad Header\r\n\r\n", b"400"),
    (b"GET /\x00 HTTP/1.1\r\n\r\n", b"400"),
    (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", b"400"),
    (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9000000\r\n\r\n", b"413"),
    (b"GET / HTTP/1.1\r\nX: " + b"a" * 20000 + b"\r\n\r\n", b"431"),
])
def test_bytes_that_are_not_a_request(server, request_bytes, status):
    s = connect(server)
    s.sendall(request_bytes)
    s.shutdown(socket.SHUT_WR)
    answer = read_all(s)
    if status:
        assert answer.startswith(b"HTTP/1.1 " + status), answer
        assert b'"error"' in answer
    assert server.request("GET", "/health")[0].status == 200


def test_metrics_follow_the_work(server):
    before = metric(server, "vllm:request_prompt_tokens_count")
    server.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 3}))
    wait_for(lambda: metric(server, "vllm:request_prompt_tokens_count") == before + 1)
    assert metric(server, "fathom:time_to_first_token_seconds_sum") > 0
    assert metric(server, "fathom:inter_token_latency_seconds_count") > 0
    assert metric(server, "fathom:events_dropped_total") == 0


def test_sigterm_drains(tmp_path):
    trace = tmp_path / "trace.json"
    server = Server("--trace", str(trace))
    s = connect(server)
    s.sendall(post({"prompt": "a", "max_tokens": 200, "stream": True, "ignore_eos": True}))
    first = s.recv(1000)
    code = []
    stopper = threading.Thread(target=lambda: code.append(server.stop()))
    stopper.start()
    text = first + read_all(s)
    assert b'"finish_reason":"length"' in text and b"[DONE]" in text
    stopper.join()
    assert code == [0]
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(e["name"].startswith("step ") for e in events if "name" in e) >= 200


def test_without_events_answers_are_the_same_and_a_ledger_is_refused(server):
    body = json.dumps({"prompt": "Once", "max_tokens": 12, "temperature": 0})
    asking = json.dumps({"prompt": "Once", "fathom": {"ledger": True}})
    quiet = Server("--no-events", "--log-level", "warn")
    try:
        response, text = quiet.request("POST", "/v1/completions", body)
        assert response.status == 200
        usual = json.loads(server.request("POST", "/v1/completions", body)[1])
        assert json.loads(text)["choices"] == usual["choices"]
        response, text = quiet.request("POST", "/v1/completions", asking)
        assert response.status == 400 and "--no-events" in text
    finally:
        assert quiet.stop() == 0


def test_a_second_sigterm_ends_at_once():
    server = Server()
    s = connect(server)
    s.sendall(post({"prompt": "a", "max_tokens": 8000, "stream": True, "ignore_eos": True}))
    s.recv(1000)
    server.process.terminate()
    time.sleep(0.2)
    begin = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - begin < 10


def test_bad_options_are_errors():
    import os
    import subprocess
    for arguments, words in [
            (["--port", "99999"], "port"),
            (["--no-such"], "no-such"),
            (["--metrics-compat", "tgi"], "vllm"),
            (["--max-body", "many"], "--max-body"),
            (["--no-events", "--trace", "/nonexistent/trace.json"], "--no-events"),
            (["--api-key-file", "/nonexistent"], "/nonexistent"),
            (["--host", "256.0.0.1"], "256.0.0.1"),
            (["/nonexistent-model"], "/nonexistent-model")]:
        done = subprocess.run([os.environ["FATHOM"], "serve", *arguments], capture_output=True,
                              text=True, timeout=60)
        assert done.returncode == 2, arguments
        assert words in done.stderr + done.stdout
