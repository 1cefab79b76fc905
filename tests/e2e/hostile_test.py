"""A running server under input that was made to hurt it: each case ends in an error or a correct
answer within bounded time, and the server goes on serving others."""
import json
import random
import socket
import time

import pytest

from conftest import KEY, Server


@pytest.fixture(scope="module")
def hasty():
    """A server with short limits, so that waiting for them to strike takes no time."""
    s = Server("--api-key", KEY, "--header-ms", "300", "--body-ms", "300", "--idle-ms", "1000",
               "--max-body", "64K", "--log-level", "error")
    yield s
    assert s.stop() == 0, "".join(s.log)


def talk(server, *parts, pause=0.0, half_close=True):
    """What the server answers to these bytes until it closes; sending may fail halfway."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as s:
        try:
            for part in parts:
                s.sendall(part)
                time.sleep(pause)
            if half_close:
                s.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass
        answer = b""
        try:
            while part := s.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
        return answer


def head(length=None, *, path="/v1/completions", extra=b""):
    lines = b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\n" % (
        path.encode(), KEY.encode())
    lines += b"Content-Type: application/json\r\n" + extra
    return lines + (b"Content-Length: %d\r\n\r\n" % length if length is not None else b"\r\n")


def post(server, body, path="/v1/completions"):
    """(status, parsed body) of a body given as bytes."""
    answer = talk(server, head(len(body), path=path) + body, half_close=False)
    status_line, _, rest = answer.partition(b"\r\n")
    return int(status_line.split()[1]), json.loads(rest.partition(b"\r\n\r\n")[2])


def assert_alive(server):
    status, answer = post(server, b'{"prompt": "a", "max_tokens": 1}')
    assert status == 200 and answer["usage"]["completion_tokens"] == 1


def test_slow_loris(hasty):
    """Bytes that trickle in do not extend the time that a header or a body may take."""
    trickle = [bytes([byte]) for byte in b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: aaaaaaaaaaaa"]
    waiting = [socket.create_connection(("127.0.0.1", hasty.port)) for _ in range(100)]
    for s in waiting:
        s.sendall(b"GET /hea")
    assert talk(hasty, *trickle, pause=0.02, half_close=False) == b""
    assert_alive(hasty)
    body = [bytes([byte]) for byte in b'{"prompt": "' + b"a" * 40]
    assert talk(hasty, head(1000), *body, pause=0.02, half_close=False) == b""
    for s in waiting:
        s.settimeout(30)
        assert s.recv(100) == b"", "closed when its header did not end"
        s.close()


@pytest.mark.parametrize("name, request_bytes, status", [
    ("length beyond the limit", head(1 << 20) + b"a" * 100, b"413"),
    ("chunks beyond the limit",
     head(extra=b"Transfer-Encoding: chunked\r\n") + b"8000\r\n" + b"a" * 0x8000 + b"\r\n8001\r\n"
     + b"a" * 0x8001 + b"\r\n0\r\n\r\n", b"413"),
    ("a chunk of 2^64 - 1 bytes",
     head(extra=b"Transfer-Encoding: chunked\r\n") + b"ffffffffffffffff\r\nabc", b"413"),
    ("a chunk of more digits than a number has",
     head(extra=b"Transfer-Encoding: chunked\r\n") + b"1" * 100 + b"\r\nabc", b"400"),
    ("a chunk longer than it says",
     head(extra=b"Transfer-Encoding: chunked\r\n") + b"2\r\n{}{}\r\n0\r\n\r\n", b"400"),
    ("chunks and a length",
     head(extra=b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n") + b"2\r\n{}\r\n0\r\n\r\n",
     b"400"),
    ("a body cut short", head(100) + b"{", b"400"),
    ("chunks cut short", head(extra=b"Transfer-Encoding: chunked\r\n") + b"5\r\n{", b"400"),
    ("ten thousand header fields", b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * 10000 + b"\r\n", b"431"),
    ("one endless field", b"GET / HTTP/1.1\r\na: " + b"b" * 100000, b"431"),
    ("folded and empty names", b"GET / HTTP/1.1\r\n : x\r\n\r\n", b"400"),
    ("line feeds alone", b"GET /health HTTP/1.1\nHost: x\n\n", b"505"),
    ("a second request that is none",
     b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n\x00\xff\r\n\r\n", b"200"),
])
def test_hostile_http(hasty, name, request_bytes, status):
    answer = talk(hasty, request_bytes)
    assert answer.startswith(b"HTTP/1.1 " + status), (name, answer)
    if status == b"200":
        assert b"HTTP/1.1 400" in answer[20:], "the garbage behind it is refused"
    assert_alive(hasty)


@pytest.mark.parametrize("name, body, code", [
    ("nesting", b'{"prompt": ' + b"[" * 20000 + b"]" * 20000 + b"}", "invalid_json"),
    ("nested objects", b'{"a":' * 10000 + b"1" + b"}" * 10000, "invalid_json"),
    ("invalid UTF-8", b'{"prompt": "\xff\xfe", "max_tokens": 1}', "invalid_json"),
    ("overlong UTF-8", b'{"prompt": "\xc0\xaf", "max_tokens": 1}', "invalid_json"),
    ("surrogates in UTF-8", b'{"prompt": "\xed\xa0\x80", "max_tokens": 1}', "invalid_json"),
    ("a lone high surrogate", rb'{"prompt": "\ud800", "max_tokens": 1}', "invalid_json"),
    ("a lone low surrogate", rb'{"prompt": "\udc00x", "max_tokens": 1}', "invalid_json"),
    ("raw control bytes", b'{"prompt": "\x01", "max_tokens": 1}', "invalid_json"),
    ("a byte order mark inside", b'{\xef\xbb\xbf"prompt": "a"}', "invalid_json"),
    ("two documents", b'{"prompt": "a"}{"prompt": "b"}', "invalid_json"),
    ("a number beyond every range", b'{"prompt": "a", "max_tokens": 1e999}', "invalid_json"),
    ("a number of many digits", b'{"prompt": "a", "max_tokens": %s}' % (b"9" * 1000),
     "invalid_json"),
    ("many unknown keys",
     json.dumps({"prompt": "a"} | {f"k{i}": i for i in range(4000)}).encode(), "unknown_parameter"),
    ("an enormous batch", json.dumps({"prompt": ["a"] * 10000, "max_tokens": 1}).encode(),
     "invalid_value"),
    ("a token that is none", b'{"prompt": [2147483647], "max_tokens": 1}', "invalid_value"),
])
def test_hostile_json(hasty, name, body, code):
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
        status, answer = post(hasty, body, path)
        assert 400 <= status < 500, name
        if path == "/v1/completions":
            assert answer["error"]["code"] == code, (name, answer)
    assert_alive(hasty)


def test_a_thousand_mutated_requests(hasty):
    """Good requests with bytes changed, dropped and doubled, anywhere in head or body. The client
    closes its side behind them, so that whatever is still a request for long text is cancelled."""
    chat = json.dumps({
        "messages": [{"role": "user", "content": "Hi é \ud83d\ude00"}], "max_tokens": 2, "stop": "x",
        "temperature": 0.5, "seed": 1, "stream": True, "stream_options": {"include_usage": True},
        "logit_bias": {"17": -100}, "fathom": {"deadline_ms": 1000}}).encode()
    text = json.dumps({"prompt": ["One", [5, 6]], "max_tokens": 2, "logprobs": 2, "n": 2}).encode()
    good = [
        head(len(chat), path="/v1/chat/completions") + chat,
        head(len(text)) + text,
        head(extra=b"Transfer-Encoding: chunked\r\n")
        + b"".join(b"%x\r\n%s\r\n" % (len(text[i:i + 50]), text[i:i + 50])
                   for i in range(0, len(text), 50)) + b"0\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/models HTTP/1.1\r\nAuthorization: Bearer "
        + KEY.encode() + b"\r\n\r\nGET /v1/requests/a/ledger HTTP/1.1\r\n\r\n",
    ]
    dice = random.Random(7)
    seen = {}
    for i in range(1000):
        data = bytearray(good[i % len(good)])
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(data))
            kind = dice.randrange(4)
            if kind == 0:
                data[at] = dice.randrange(256)
            elif kind == 1:
                data[at] ^= 1 << dice.randrange(8)
            elif kind == 2:
                del data[at:at + dice.randint(1, 8)]
            else:
                data[at:at] = data[at:at + dice.randint(1, 64)]
        answer = talk(hasty, bytes(data))
        status = answer[9:12].decode()
        seen[status] = seen.get(status, 0) + 1
        assert status == "" or (answer.startswith(b"HTTP/1.") and "200" <= status < "506"
                                and status != "500"), (bytes(data), answer)
    assert seen.get("200", 0) > 20 and seen.get("400", 0) > 100, seen
    assert_alive(hasty)
