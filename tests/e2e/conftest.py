"""A `fathom serve` process on a free port, and clients of it."""
import http.client
import os
import re
import signal
import subprocess
import threading

import openai
import pytest

FATHOM = os.environ["FATHOM"]
KEY = "a-key-of-the-test"


class Server:
    def __init__(self, *arguments, model=()):
        self.process = subprocess.Popen(
            [FATHOM, "serve", *model, "--port", "0", *arguments],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"^serving (\S+) on http://[^:]+:(\d+)", line):
                self.model, self.port = found[1], int(found[2])
                break
        else:
            raise RuntimeError("".join(self.log))
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr))
        self.reader.start()

    def client(self, **options):
        options = {"api_key": KEY, "max_retries": 0, "timeout": 600} | options
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", **options)

    def request(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        headers = {"Authorization": f"Bearer {KEY}"} | headers
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response, text

    def stop(self, timeout=60):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout)
        self.reader.join()
        return code


@pytest.fixture(scope="session")
def server():
    s = Server("--api-key", KEY, "--metrics-compat", "vllm", "--log-level", "warn")
    yield s
    assert s.stop() == 0, "".join(s.log)


@pytest.fixture(scope="session")
def client(server):
    return server.client()
