"""What users do with the official client: chats, streams, options, errors."""
import json
import threading

import openai
import pytest

HELLO = [{"role": "user", "content": "Tell me of the sea."}]


def chat(client, server, **options):
    options = {"messages": HELLO, "max_tokens": 16, "temperature": 0} | options
    return client.chat.completions.create(model=server.model, **options)


def test_models(client, server):
    models = client.models.list()
    assert [m.id for m in models.data] == [server.model]
    assert client.models.retrieve(server.model) == models.data[0]
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("another")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_chat_and_usage(client, server):
    answer = chat(client, server)
    choice = answer.choices[0]
    text = (choice.message.content or "") + (getattr(choice.message, "reasoning_content", "") or "")
    assert text and choice.finish_reason in ("stop", "length")
    assert 0 < answer.usage.completion_tokens <= 16
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def gather(stream):
    """Text, reasoning, finish reasons and the last usage of a stream."""
    content, reasoning, reasons, usage = {}, {}, {}, None
    for chunk in stream:
        usage = chunk.usage or usage
        for c in chunk.choices:
            content[c.index] = content.get(c.index, "") + (c.delta.content or "")
            reasoning[c.index] = (reasoning.get(c.index, "")
                                  + (getattr(c.delta, "reasoning_content", None) or ""))
            if c.finish_reason:
                reasons[c.index] = c.finish_reason
    return content, reasoning, reasons, usage


def test_a_stream_says_what_the_whole_says(client, server):
    whole = chat(client, server, max_tokens=40)
    stream = chat(client, server, max_tokens=40, stream=True, stream_options={"include_usage": True})
    content, reasoning, reasons, usage = gather(stream)
    message = whole.choices[0].message
    assert content[0] == (message.content or "")
    assert reasoning[0] == (getattr(message, "reasoning_content", None) or "")
    assert reasons[0] == whole.choices[0].finish_reason
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_reasoning_is_split_off(client, server):
    answer = chat(client, server, max_tokens=400)
    message = answer.choices[0].message
    assert "<think>" not in (message.content or "")
    assert "</think>" not in (message.content or "")
    details = answer.usage.completion_tokens_details
    if getattr(message, "reasoning_content", None):
        assert "think>" not in message.reasoning_content
        assert 0 < details.reasoning_tokens <= answer.usage.completion_tokens


def test_seed_and_n(client, server):
    def texts(seed):
        answer = client.completions.create(model=server.model, prompt="Once upon a time",
                                           max_tokens=16, temperature=1, seed=seed, n=3)
        return [c.text for c in answer.choices]
    assert texts(1) == texts(1)
    assert texts(1) != texts(100)
    assert len(set(texts(1))) > 1, "choices of one request differ"


def test_the_batch_does_not_change_a_seeded_answer(client, server):
    options = dict(model=server.model, prompt="The old house", max_tokens=12, temperature=1, seed=3)
    alone = client.completions.create(**options).choices[0].text
    others = [client.completions.create(**options | {"prompt": f"{i} " * 20, "stream": True,
                                                     "max_tokens": 64}) for i in range(4)]
    assert client.completions.create(**options).choices[0].text == alone
    for stream in others:
        stream.close()


def test_stop(client, server):
    options = dict(model=server.model, prompt="Once upon a time", max_tokens=60, temperature=0)
    full = client.completions.create(**options).choices[0].text
    stop = full[10:13]
    cut = client.completions.create(**options, stop=[stop, "never-ever"]).choices[0]
    assert cut.finish_reason == "stop"
    assert cut.text == full[:full.index(stop)]
    streamed = "".join(c.choices[0].text for c in client.completions.create(
        **options, stop=stop, stream=True) if c.choices)
    assert streamed == cut.text


def test_logprobs(client, server):
    answer = chat(client, server, logprobs=True, top_logprobs=3, max_tokens=8)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for token in content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        values = [t.logprob for t in token.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert abs(token.logprob - values[0]) < 1e-6, "temperature 0 takes the most likely token"
    done = client.completions.create(model=server.model, prompt="One two", logprobs=2, max_tokens=5,
                                     temperature=0)
    logprobs = done.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == done.usage.completion_tokens
    assert "".join(logprobs.tokens).startswith(done.choices[0].text[:3])


def test_logit_bias(client, server):
    space = json.loads(server.request("POST", "/tokenize", json.dumps(
        {"prompt": " sea", "add_special_tokens": False}))[1])["tokens"]
    answer = client.completions.create(model=server.model, prompt="The", max_tokens=3,
                                       temperature=0, logit_bias={str(space[0]): 100})
    assert answer.choices[0].text == " sea" * 3 or len(space) > 1


def test_prompts_in_a_batch_and_echo(client, server):
    answer = client.completions.create(model=server.model, prompt=["One", "Two"], n=2, max_tokens=4,
                                       temperature=0, echo=True)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[1].text.startswith("One") and answer.choices[2].text.startswith("Two")
    assert answer.choices[0].text == answer.choices[1].text


def test_tokens_round_trip(client, server):
    text = "The sea, 深い海, and 42 ships."
    tokens = json.loads(server.request("POST", "/tokenize", json.dumps(
        {"prompt": text, "add_special_tokens": False, "return_token_strs": True}))[1])
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
    back = json.loads(server.request("POST", "/detokenize",
                                     json.dumps({"tokens": tokens["tokens"]}))[1])
    assert back["prompt"] == text
    same = client.completions.create(model=server.model, prompt=tokens["tokens"], max_tokens=1)
    assert same.usage.prompt_tokens == tokens["count"]


def test_ledger_adds_up(client, server):
    import jsonschema
    import pathlib
    schema = json.loads((pathlib.Path(__file__).parents[2]
                         / "docs/schemas/ledger.schema.json").read_text())
    answer = chat(client, server, max_tokens=32, extra_body={"fathom": {"ledger": True}})
    ledger = answer.model_extra["fathom"]["ledger"]
    jsonschema.validate(ledger, schema)
    page = json.loads(server.request("GET", f"/v1/requests/{answer.id}/ledger")[1])
    jsonschema.validate(page, schema)
    for book in (ledger, page):
        assert sum(p["ns"] for p in book["parts"]) == book["wall_ns"]
        assert book["dropped_events"] == book["forgotten_steps"] == 0
        assert book["generated_tokens"] == answer.usage.completion_tokens
        assert {"parse", "tokenize", "waiting_for_cpu"} <= {p["part"] for p in book["parts"]}
    assert "ledger" in {p["part"] for p in page["parts"]}
    chunks = list(chat(client, server, stream=True, extra_body={"fathom": {"ledger": True}}))
    jsonschema.validate(chunks[-1].model_extra["fathom"]["ledger"], schema)


def test_the_ledger_explains_nearly_everything(client, server):
    """At most 2 % of the wall time is unexplained: alone, and streamed beside another's long prompt
    that comes in between. One of three attempts must do, because other programs may take the CPU
    between two stages."""
    options = dict(model=server.model, prompt="The sea", max_tokens=200,
                   extra_body={"ignore_eos": True, "fathom": {"ledger": True}})

    def alone(attempt):
        answer = client.completions.create(**options)
        return answer.model_extra["fathom"]["ledger"]["unexplained_percent"]

    def interrupted(attempt):
        other = threading.Thread(target=lambda: client.completions.create(
            model=server.model, prompt=f"{attempt} word" * 400, max_tokens=4))
        stream = client.completions.create(**options, stream=True)
        next(stream)
        other.start()
        ledger = list(stream)[-1].model_extra["fathom"]["ledger"]
        other.join()
        parts = {p["part"]: p["ns"] for p in ledger["parts"]}
        return ledger["unexplained_percent"] if parts.get("others_prefill", 0) > 0 else 100

    for unexplained in alone, interrupted:
        percents = []
        while not percents or percents[-1] > 2:
            assert len(percents) < 3, percents
            percents.append(unexplained(len(percents)))


def test_prefix_cache_serves_the_second_request(client, server):
    prompt = "word " * 400
    first = client.completions.create(model=server.model, prompt=prompt, max_tokens=1)
    second = client.completions.create(model=server.model, prompt=prompt, max_tokens=1)
    assert first.usage.prompt_tokens == second.usage.prompt_tokens
    assert second.usage.prompt_tokens_details.cached_tokens >= 256


@pytest.mark.parametrize("options, error, code, param", [
    (dict(temperature=3), openai.BadRequestError, "invalid_value", "temperature"),
    (dict(max_tokens=0), openai.BadRequestError, "invalid_value", "max_tokens"),
    (dict(max_tokens=10**9), openai.BadRequestError, "context_length_exceeded", "max_tokens"),
    (dict(messages=[]), openai.BadRequestError, "invalid_value", "messages"),
    (dict(extra_body={"temprature": 1}), openai.BadRequestError, "unknown_parameter", "temprature"),
    (dict(extra_body={"functions": [{}]}), openai.BadRequestError, "unsupported_parameter",
     "functions"),
    (dict(response_format={"type": "json_object"}), openai.BadRequestError,
     "unsupported_parameter", "response_format.type"),
    (dict(model="gpt-4"), openai.NotFoundError, "model_not_found", "model"),
])
def test_errors(client, server, options, error, code, param):
    with pytest.raises(error) as caught:
        client.chat.completions.create(**{"model": server.model, "messages": HELLO} | options)
    assert caught.value.code == code and caught.value.param == param


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("words, max_tokens, says", [
    (20000, 1, "leaves no room"), (20000, None, "leaves no room"), (3000, 8000, "at most")])
def test_beyond_the_context(client, server, words, max_tokens, says, stream):
    """The prompt alone, or with the answer that it asks for."""
    options = dict(model=server.model, max_tokens=max_tokens, stream=stream)
    with pytest.raises(openai.BadRequestError) as completion:
        client.completions.create(prompt="word " * words, **options)
    with pytest.raises(openai.BadRequestError) as conversation:
        client.chat.completions.create(
            messages=[{"role": "user", "content": "word " * words}], **options)
    for caught, param in (completion, "prompt"), (conversation, "messages"):
        error = caught.value
        assert (error.code, error.param) == ("context_length_exceeded", param)
        assert error.type == "invalid_request_error"
        assert says in error.message and "8192" in error.message


# Every field that can be wrong, with a value of each kind that is refused.
WRONG = {
    "temperature": [(-1, "invalid_value"), (2.1, "invalid_value"), ("x", "invalid_type")],
    "top_p": [(0, "invalid_value"), (1.1, "invalid_value"), ("x", "invalid_type")],
    "top_k": [(-2, "invalid_value"), (1.5, "invalid_type")],
    "min_p": [(-0.1, "invalid_value"), (2, "invalid_value")],
    "presence_penalty": [(-2.1, "invalid_value"), ("x", "invalid_type")],
    "frequency_penalty": [(2.1, "invalid_value"), ([], "invalid_type")],
    "repetition_penalty": [(0, "invalid_value")],
    "n": [(0, "invalid_value"), (129, "invalid_value"), (1.5, "invalid_type")],
    "seed": [("x", "invalid_type"), (1.5, "invalid_type")],
    "stop": [(5, "invalid_type"), ([""], "invalid_value"), (["a"] * 17, "invalid_value")],
    "stop_token_ids": [([-1], "invalid_value"), (5, "invalid_type")],
    "logit_bias": [({"x": 1}, "invalid_value"), ({"1": 101}, "invalid_value"), (5, "invalid_type")],
    "max_tokens": [(0, "invalid_value"), (-1, "invalid_value"), ("x", "invalid_type"),
                   (10**12, "context_length_exceeded")],
    "max_completion_tokens": [(0, "invalid_value"), (8193, "context_length_exceeded")],
    "logprobs": [(5, "invalid_type")],
    "top_logprobs": [(21, "invalid_value"), (3, "invalid_value")],
    "tools": [(5, "invalid_type"), ([{"type": "x"}], "unsupported_parameter")],
    "tool_choice": [("required", "unsupported_parameter")],
    "parallel_tool_calls": [(5, "invalid_type")],
    "response_format": [("x", "invalid_type"), ({"type": "x"}, "unsupported_parameter")],
    "stream": [("x", "invalid_type")],
    "stream_options": [({"x": 1}, "unknown_parameter"), ({"include_usage": True}, "invalid_value")],
    "chat_template_kwargs": [(5, "invalid_type"), ({"x": 1}, "unknown_parameter")],
    "user": [(5, "invalid_type")],
    "metadata": [(5, "invalid_type")],
    "modalities": [(["audio"], "unsupported_parameter")],
    "audio": [({}, "unsupported_parameter")],
    "reasoning_effort": [("low", "unsupported_parameter")],
    "service_tier": [("flex", "unsupported_parameter")],
    "store": [(True, "unsupported_parameter")],
    "priority": [("x", "invalid_type")],
    "cache_salt": [(5, "invalid_type")],
    "fathom": [({"x": 1}, "unknown_parameter"), ({"deadline_ms": 0}, "invalid_value")],
    "functions": [([{}], "unsupported_parameter")],
    "messages": [(5, "invalid_type"), ([{}], "missing_required_parameter"),
                 ([{"role": "x", "content": "a"}], "invalid_value"),
                 ([{"role": "user"}], "missing_required_parameter"),
                 ([{"role": "user", "content": [{"type": "text"}]}], "missing_required_parameter"),
                 ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
                  "unsupported_parameter"),
                 ([{"role": "tool", "content": "x"}], "invalid_value")],
    "temprature": [(1, "unknown_parameter")],
}


@pytest.mark.parametrize("field", WRONG)
def test_every_field_is_checked(client, server, field):
    for value, code in WRONG[field]:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=server.model, messages=HELLO,
                                           extra_body={field: value})
        error = caught.value
        assert error.code == code and error.type == "invalid_request_error", (value, error)
        assert error.param.startswith(field), (value, error)
        assert error.message


def test_a_body_that_is_too_large(client, server):
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(model=server.model, prompt="x" * 20_000_000)
    assert (caught.value.status_code, caught.value.code) == (413, "invalid_http")


def test_wrong_key(server):
    with pytest.raises(openai.AuthenticationError):
        server.client(api_key="another").models.list()
