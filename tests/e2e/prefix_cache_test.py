"""Why a cached prefix ended: each cause brought about through the server, and told by the ledger, the
metrics and the trace."""
import json
import pathlib
import re

import pytest

from conftest import Server
from robustness_test import wait_for

PAGE = 16
ROOT = pathlib.Path(__file__).parents[2]


class Cache:
    """A server with small pages, few of them, and a trace."""

    def __init__(self, trace, *arguments):
        # A pool of about four contexts: little enough to fill.
        self.server = Server("--page-tokens", str(PAGE), "--context", "512", "--token-budget", "64",
                             "--max-running", "4", "--max-memory", "105M", "--trace", str(trace),
                             "--log-level", "warn", *arguments,
                             model=(str(ROOT / "models" / "tiny-distill"),))
        self.trace = trace
        self.expected = {}
        self.bos = self.tokenize("x")[0]

    def post(self, path, **body):
        response, text = self.server.request("POST", path, json.dumps(body))
        assert response.status == 200, text
        return json.loads(text)

    def tokenize(self, text):
        return self.post("/tokenize", prompt=text)["tokens"]

    def ask(self, prompt, max_tokens=1, **options):
        """The ledger's account of the prefix. prompt: token ids, or messages."""
        path, field = (("/v1/chat/completions", "messages") if isinstance(prompt[0], dict)
                       else ("/v1/completions", "prompt"))
        answer = self.post(path, **{field: prompt}, max_tokens=max_tokens, temperature=0,
                           ignore_eos=True, fathom={"ledger": True}, **options)
        found = answer["fathom"]["ledger"]["prefix_cache"]
        self.expected[found["cause"]] = self.expected.get(found["cause"], 0) + 1
        return found

    def misses(self):
        text = self.server.request("GET", "/metrics")[1]
        counts = re.findall(r'^fathom:prefix_cache_misses_total{.*cause="(\w+)"} (\d+)$', text, re.M)
        return {cause: int(count) for cause, count in counts if int(count)}

    def spans(self):
        """Stops the server; args of the trace's events, by op."""
        assert self.server.stop() == 0, "".join(self.server.log)
        by_op = {}
        for event in json.loads(self.trace.read_text())["traceEvents"]:
            op = event.get("args", {}).get("op")
            if op in ("prefix_lookup", "cache_miss", "kv_version_mismatch") and event["ph"] != "e":
                by_op.setdefault(op, []).append(event["args"])
        return by_op


def words(seed, count):
    """Ordinary token ids, different from seed to seed."""
    return [1000 + (seed * 7919 + i * i * 31 + i) % 4000 for i in range(count)]


@pytest.fixture
def cache(tmp_path):
    made = []

    def make(*arguments):
        made.append(Cache(tmp_path / "trace.json", *arguments))
        return made[-1]
    yield make
    for c in made:
        if c.server.process.poll() is None:
            c.server.stop()


def test_every_cause_is_named(cache):
    c = cache()
    text = [c.bos] + words(1, 8 * PAGE - 1)
    assert c.ask(text)["cause"] == "first_use"

    # The whole prompt but its last page, of which a token must be computed.
    again = c.ask(text)
    assert again["cause"] == "page_rounding" and again["found_tokens"] == 7 * PAGE
    assert again["recomputed_tokens"] == PAGE

    # The same up to a token in the middle of a page.
    divergent = 3 * PAGE + 5
    other = c.ask(text[:divergent] + words(2, 60))
    assert other == {"asked_tokens": divergent + 60, "found_tokens": 3 * PAGE,
                     "recomputed_tokens": 65, "first_divergent_token": divergent,
                     "cause": "other_text"}

    assert c.ask([c.bos] + text)["cause"] == "bos"
    assert c.ask(text[1:])["cause"] == "bos"
    assert c.ask(text, cache_salt="another")["cause"] == "tenant"

    # A conversation whose next turn lacks what the model thought.
    first = {"role": "user", "content": "Tell me a long story about a fox and a wolf. " * 5}
    assert c.ask([first])["cause"] in ("first_use", "other_text")
    turn = c.ask([first, {"role": "assistant", "content": "<think>They want one.</think>So be it."},
                  {"role": "user", "content": "Go on, then."}])
    assert turn["cause"] == "stripped_thinking" and turn["found_tokens"] >= 2 * PAGE
    assert turn["found_tokens"] <= turn["first_divergent_token"] < turn["asked_tokens"]

    # Others' prompts take the pages.
    for seed in range(10, 20):
        c.ask([c.bos] + words(seed, 80))
    evicted = c.ask(text)
    assert evicted["cause"] == "evicted" and evicted["found_tokens"] == 0
    assert evicted["recomputed_tokens"] == len(text)

    # An answer that comes back as part of a prompt.
    begin = "Once upon a time there was a fox. " * 4
    answer = c.post("/v1/completions", prompt=begin, max_tokens=64, temperature=0, ignore_eos=True)
    c.expected["first_use"] += 1
    said = begin + answer["choices"][0]["text"] + " And then"
    assert c.ask(c.tokenize(said))["cause"] == "generated"

    wait_for(lambda: c.misses() == c.expected)
    spans = c.spans()
    assert len(spans["prefix_lookup"]) == len(spans["cache_miss"]) == sum(c.expected.values())
    told = {}
    for args in spans["cache_miss"]:
        told[args["cause"]] = told.get(args["cause"], 0) + 1
    assert told == c.expected
    assert {"found", "asked"} <= spans["prefix_lookup"][0].keys()
    assert any(args["first_divergent_token"] == divergent and args["recomputed_tokens"] == 65
               for args in spans["cache_miss"])


def test_a_prefix_under_another_rope_table_is_a_version_mismatch(cache):
    """Dynamic RoPE: the table follows the length that a sequence may reach."""
    c = cache("--rope-scaling", "dynamic,factor=2,original=256")
    text = [c.bos] + words(1, 6 * PAGE)
    c.ask(text)
    other = c.ask(text, max_tokens=300)
    assert other["cause"] == "version" and other["found_tokens"] == 0
    wait_for(lambda: c.misses() == {"first_use": 1, "version": 1})
    spans = c.spans()
    assert [args["entries"] for args in spans["kv_version_mismatch"]] == [6]
    assert [args["cause"] for args in spans["cache_miss"]] == ["first_use", "version"]


def test_a_prefix_that_cannot_stay_is_a_lack_of_capacity(cache):
    """A prompt whose pages went to a request that needed nearly all there are."""
    c = cache()
    text = [c.bos] + words(1, 20 * PAGE)
    c.ask(text)
    again = c.ask([c.bos] + words(2, 300), max_tokens=200)
    assert again["cause"] == "first_use"
    asked = c.ask(text)
    assert asked["cause"] == "capacity" and asked["found_tokens"] < 20 * PAGE
    wait_for(lambda: c.misses() == c.expected)
