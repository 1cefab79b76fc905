"""A small server whose /metrics grows by a known amount a scrape."""
import http.server
import threading

import pytest


@pytest.fixture(scope="module")
def server():
    class Handler(http.server.BaseHTTPRequestHandler):
        scrapes = 0

        def do_GET(self):
            if self.path == "/missing":
                return self.send_error(404)
            body = b"<!doctype html><title>a page</title>"
            if self.path == "/metrics":
                Handler.scrapes += 1
                body = (f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 12\n"
                        f"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 5\n"
                        f"# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc 0.97\n"
                        f"# TYPE vllm:num_preemptions_total counter\n"
                        f"vllm:num_preemptions_total {3 * Handler.scrapes}\n").encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    instance = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=instance.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{instance.server_port}"
    instance.shutdown()
