"""Fathom's chat renderers beside jinja2 on the templates that the models publish."""
import itertools
import json
import pathlib
import subprocess

import jinja2.sandbox
import pytest
from published import chat_template, extract, program

MODELS = pathlib.Path(__file__).parent.parent.parent / "models"
EOS = "<｜end▁of▁sentence｜>"
# Published template -> the family that Fathom should see in it.
PUBLISHED = {
    "deepseek-v2": "deepseek-v2",
    "deepseek-v2.5": "deepseek-v2.5",
    "deepseek-v3": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3.1",
    "deepseek-r1": "deepseek-r1",
    "deepseek-r1-0528-qwen3-8b": "deepseek-r1-0528",
    "deepseek-r1-distill-qwen-7b": "deepseek-r1-distill",
    "deepseek-r1-distill-llama-8b": "deepseek-r1-distill",
}
# Shipped in models/.
SHIPPED = {"tiny-deepseek": "fathom-tiny", "tiny-distill": "fathom-tiny"}
# The first releases of R1 and the distills lacked the opening <think>; nothing else changed.
UNOPENED = {"deepseek-r1": "deepseek-r1-unopened",
            "deepseek-r1-distill-qwen-7b": "deepseek-r1-distill-unopened"}


class Chat:
    def __init__(self, directory):
        self.process = subprocess.Popen(
            [program(), "chat", str(directory / "tokenizer.json"),
             str(directory / "tokenizer_config.json")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, messages, **options):
        self.process.stdin.write(json.dumps({"messages": messages, **options}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.communicate()


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("templates")


@pytest.fixture(scope="module", params=[(name, False) for name in {**PUBLISHED, **SHIPPED}] +
                [(name, True) for name in UNOPENED],
                ids=lambda p: p[0] + ("-unopened" if p[1] else ""))
def model(request, directory):
    """(family, Jinja source, Fathom's renderer)"""
    name, unopened = request.param
    if name in SHIPPED:
        path = MODELS / name
        source = json.loads((path / "tokenizer_config.json").read_text())["chat_template"]
        chat = Chat(path)
        yield SHIPPED[name], source, chat
        chat.close()
        return
    source = chat_template(name)
    path = extract(name, directory)
    family = PUBLISHED[name]
    if unopened:
        source = source.replace("<think>\\n'}}", "'}}")
        family = UNOPENED[name]
        config = json.loads((path / "tokenizer_config.json").read_text())
        assert config["chat_template"] != source
        config["chat_template"] = source
        first = directory / (name + "-unopened")
        first.mkdir()
        (first / "tokenizer.json").write_bytes((path / "tokenizer.json").read_bytes())
        (first / "tokenizer_config.json").write_text(json.dumps(config))
        path = first
    chat = Chat(path)
    yield family, source, chat
    chat.close()


def render(source, messages, add_generation_prompt=True, **variables):
    """As transformers' apply_chat_template."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(source).render(
        messages=messages, add_generation_prompt=add_generation_prompt,
        bos_token="<｜begin▁of▁sentence｜>", eos_token=EOS, **variables)


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def calls(*names, content=None):
    return {"role": "assistant", "content": content, "tool_calls": [
        {"type": "function", "function": {"name": name, "arguments": f'{{"x": "{name}"}}'}}
        for name in names]}


def tool(text):
    return {"role": "tool", "content": text}


CHATS = [
    [user("Hello")],
    [system("Be brief."), user("Hello")],
    [system("Be brief."), system("Be kind."), user("Hello\n\nthere ")],
    [user("a"), assistant("b"), user("c")],
    [user("a"), assistant("b"), user("c"), assistant("d"), user("e")],
    [user("a"), assistant("<think>\nhm\n</think>\n\nb"), user("c")],
    [user("a"), assistant("hm</think>b</think>c"), user("d"), assistant("<think>e"), user("f")],
    [user("a"), user("b")],
    [assistant("b"), user("c")],
    [user("a"), assistant("b"), system("late"), user("c")],
    [user("a"), assistant("b")],
    [system("only")],
    [user("{{ bos_token }} {% if x %} <think> 中文 \U0001f600")],
    [user("")],
]
TOOL_CHATS = [
    [user("a"), calls("f"), tool("1")],
    [user("a"), calls("f"), tool("1"), assistant("b"), user("c")],
    [user("a"), calls("f", "g", "h"), tool("1"), tool("2"), tool("3"), assistant("b"), user("c")],
    [user("a"), calls("f", "g"), tool("1"), tool("2"), calls("h"), tool("3"), assistant("<think>x</think>b")],
    [user("a"), calls("f"), tool("1"), user("b"), calls("g", "h"), tool("2"), tool("3")],
    [user("a"), assistant("b"), user("c"), calls("f")],
    [user("a"), calls("f"), tool("1"), assistant("hm</think>b"), user("c"), calls("g"), tool("2")],
]
CONTENT_AND_CALLS = [
    [user("a"), calls("f", content="I look."), tool("1"), assistant("b"), user("c")],
    [user("a"), calls("f", "g", content="I look."), tool("1"), tool("2")],
]


def switches(family):
    return [{}, {"thinking": False}, {"thinking": True}] if family == "deepseek-v3.1" else [{}]


def chats_of(family):
    if family in ("deepseek-v2", "fathom-tiny"):
        return CHATS
    both = CONTENT_AND_CALLS if family in ("deepseek-r1", "deepseek-r1-unopened", "deepseek-r1-0528",
                                           "deepseek-v3.1") else []
    return CHATS + TOOL_CHATS + both


def reference_form(family, messages):
    """R1-0528's template searches content for </think> and so cannot take none."""
    if family != "deepseek-r1-0528":
        return messages
    return [{**m, "content": m["content"] or ""} for m in messages]


def test_family_is_recognised(model):
    family, _, chat = model
    assert chat([user("a")]).get("family") == family, chat([user("a")])


def test_prompts(model):
    family, source, chat = model
    for messages, options in itertools.product(chats_of(family), switches(family)):
        want = render(source, reference_form(family, messages), **options)
        got = chat(messages, **options)
        assert got.get("text") == want, (got, messages, options)
        assert got["thinking_open"] == (family != "deepseek-v2" and opens_thinking(want)), want


def opens_thinking(prompt):
    return prompt.endswith("<think>\n") or prompt.endswith("<think>")


PREFIXES = ["Once upon", "", "中文\n", "<think>\nI should", "<think>\nhm\n</think>\n\nThe answer"]


def test_a_prefix_is_the_last_answer_left_open(model):
    family, source, chat = model
    for start, text, options in itertools.product(
            ([user("a")], [system("s"), user("a"), assistant("b"), user("c")]), PREFIXES,
            switches(family)):
        messages = start + [assistant(text, prefix=True)]
        want = render(source, messages, add_generation_prompt=False, **options)
        assert want.endswith(EOS)
        got = chat(messages, **options)
        assert got.get("text") == want.removesuffix(EOS), (got, messages)
        if family not in ("deepseek-v2", "deepseek-v2.5", "deepseek-v3"):
            turn = got["text"].split("<｜Assistant｜>")[-1]
            assert got["thinking_open"] == (
                "<think>" in turn and "</think>" not in turn.split("<think>")[-1])


def test_bos_is_there_once(model):
    family, _, chat = model
    for messages in [CHATS[1], CHATS[4], CHATS[0] + [assistant("x", prefix=True)]]:
        ids = chat(messages)["ids"]
        assert ids.count(ids[0]) == 1, (family, ids)


def test_thinking_of_a_prefix(model):
    family, _, chat = model
    options = {"thinking": True} if family == "deepseek-v3.1" else {}
    opening = {"deepseek-v3.1": "<think>"}.get(family, "<think>\n")
    for content, rest in (("", ""), ("So", "</think>So" if family == "deepseek-v3.1"
                                     else "\n</think>\n\nSo")):
        got = chat([user("a"), assistant(content, reasoning_content="hm", prefix=True)], **options)
        if family in ("deepseek-v2", "deepseek-v2.5", "deepseek-v3"):
            assert "does not think" in got["error"]
            continue
        assert got["text"].endswith("<｜Assistant｜>" + opening + "hm" + rest)
        assert got["thinking_open"] == (content == "")


def test_what_a_family_cannot_do_is_an_error(model):
    family, _, chat = model
    look_up = {"name": "look_up", "description": "Looks up.", "parameters": '{"type": "object"}'}
    if family != "deepseek-v3.1":
        assert "no thinking switch" in chat([user("a")], thinking=True)["error"]
        assert "does not describe tools" in chat([user("a")], tools=[look_up])["error"]
    else:
        assert "thinking off" in chat([user("a")], tools=[look_up], thinking=True)["error"]
        text = chat([system("s"), user("a")], tools=[look_up])["text"]
        assert text.startswith("<｜begin▁of▁sentence｜>s\n\n## Tools\nYou have access to the following "
                               "tools:\n\n### look_up\nDescription: Looks up.\n\nParameters: "
                               '{"type": "object"}\n\nIMPORTANT: ALWAYS adhere')
        assert text.endswith("separators or spaces<｜User｜>a<｜Assistant｜></think>")
    if family in ("deepseek-v2", "fathom-tiny"):
        assert "no tools" in chat(TOOL_CHATS[0])["error"]
    assert "must not be empty" in chat([])["error"]
    assert "only the last" in chat([assistant("a", prefix=True), user("b")])["error"]
    assert "belong to the assistant" in chat([{**user("a"), "prefix": True}])["error"]
    assert "did you mean 'deepseek-r1'" in chat([user("a")], family="deepseek_r1")["error"]


def test_unknown_template_asks_for_a_family(directory):
    path = extract("deepseek-v3", directory)
    other = directory / "other"
    other.mkdir()
    (other / "tokenizer.json").write_bytes((path / "tokenizer.json").read_bytes())
    config = json.loads((path / "tokenizer_config.json").read_text())
    config["chat_template"] += " "
    (other / "tokenizer_config.json").write_text(json.dumps(config))
    chat = Chat(other)
    error = chat([user("a")])["error"]
    assert "is unknown" in error and "--chat-template" in error and "deepseek-v3.1" in error
    assert chat([user("a")], family="deepseek-v3")["text"].endswith("<｜User｜>a<｜Assistant｜>")
    chat.close()
