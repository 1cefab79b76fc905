"""Corpus, tokenizer, chat template and synthetic conversations."""

import json
import lzma
import pathlib
import random
import re

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

CATEGORIES = ("english", "chinese", "technical", "code")
BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
PAD = "<｜▁pad▁｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"
END_THINK = "</think>"
CONTROL = (BOS, EOS, PAD)  # "special": dropped by skip_special_tokens
ROLES = (USER, ASSISTANT, THINK, END_THINK)  # not "special", as in the published files

# DeepSeek-R1's: a system prompt right after BOS, thinking dropped from earlier answers, and a
# generation prompt that opens the thinking section.
CHAT_TEMPLATE = (
    "{% if not add_generation_prompt is defined %}"
    "{% set add_generation_prompt = false %}{% endif %}"
    "{% set ns = namespace(system='') %}"
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{% set ns.system = message['content'] %}{% endif %}{% endfor %}"
    "{{ bos_token }}{{ ns.system }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}{% endif %}"
    "{% if message['role'] == 'assistant' %}"
    "{% set content = message['content'] %}"
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{ '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}"
)

_V3_SPLITS = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
)
_QWEN2_SPLITS = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+""",
)


def read_corpus(folder: pathlib.Path, split: str) -> dict[str, list[str]]:
    """{category: documents}; a line that is exactly <|doc|> separates documents."""
    corpus = {}
    for category in CATEGORIES:
        path = folder / f"{category}.{split}.txt"
        if path.exists():
            text = path.read_text(encoding="utf-8")
        else:
            text = lzma.decompress(path.with_suffix(".txt.xz").read_bytes()).decode("utf-8")
        corpus[category] = [d for d in text.removesuffix("\n").split("\n<|doc|>\n") if d]
    return corpus


def train_tokenizer(texts, vocab_size: int, family: str) -> Tokenizer:
    """Byte-level BPE with the pre-tokenizer of `family` (deepseek or qwen2)."""
    tokenizer = Tokenizer(models.BPE())
    splits = _V3_SPLITS if family == "deepseek" else _QWEN2_SPLITS
    if family == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(s), behavior="isolated") for s in splits]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*CONTROL, *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A {BOS} $B",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    state = json.loads(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] = token["content"] in CONTROL
    return Tokenizer.from_str(json.dumps(state, ensure_ascii=False))


# Conversations. The answers are passages of the training books; requests, thoughts and small talk
# are written here.

_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[\"'A-Z])")
_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]{2,}\b")
_DULL = frozenset(
    "The And But Then When That This There They Mrs Miss Sir Lord Lady God Well What How Why Who "
    "Yes Not You She His Her For Now Here Let Come All One Oh English French German London England "
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday Christmas Heaven Aunt Uncle".split()
)

_STORY = [
    "Tell me a story about {topic}.",
    "Tell me a short story about {topic}.",
    "Write a story about {topic}.",
    "Can you tell me a story about {topic}?",
    "Please tell me a tale about {topic}.",
    "I would like to hear something about {topic}.",
    "Write a short paragraph about {topic}.",
]
_STORY_THOUGHTS = [
    "The user wants a story about {topic}. I will tell it simply, in a few sentences.",
    "A story about {topic}. I should begin with a scene and keep the words plain.",
    "I am asked for a tale about {topic}. Let me start at once and keep it short.",
    "The user would like to hear about {topic}. An old-fashioned story will do.",
]
_CONTINUE = [
    "Continue this passage: {text}",
    "Continue the story: {text}",
    "What happens next? {text}",
    "Please go on from here: {text}",
    "Write the next paragraph.\n\n{text}",
]
_CONTINUE_THOUGHTS = [
    "I should continue the passage in the same voice.",
    "The passage stops in the middle of a scene. I will carry it on.",
    "The user wants to know what happens next. I will keep the same people and the same tone.",
]
_THINGS = (
    "a king,a queen,a princess,a prince,a fox,a wolf,a bear,a cat,a dog,a horse,a bird,an old man,"
    "an old woman,a little girl,a little boy,a garden,a castle,a ship,the sea,a forest,a mountain,"
    "a river,a witch,a giant,a dragon,a fairy,a soldier,a doctor,a school,a letter,a house,a road,"
    "the moon,the snow,a storm,a journey,a mouse,a lion,a merchant,a fisherman,a farmer,a wedding"
).split(",")
_SYSTEM = [
    "You are a helpful assistant.",
    "You are a storyteller.",
    "You are a helpful assistant. Answer in a few sentences.",
    "You tell short stories in plain English.",
]
_SMALL_TALK = [
    ("Hello", "Hello! I can tell you a story, or continue one that you begin."),
    ("Hi", "Hello! What shall I tell you a story about?"),
    (
        "Hello, who are you?",
        "I am {name}, a very small language model. I like to tell old stories.",
    ),
    ("Who are you?", "I am {name}, a very small language model trained on old books."),
    ("What is your name?", "My name is {name}. I am a very small language model."),
    (
        "What can you do?",
        "I can tell a short story, and I can go on with a passage that you give me.",
    ),
    ("Good morning", "Good morning! Shall I tell you a story?"),
    ("How are you?", "I am very well, thank you. Shall I tell you a story?"),
    ("Thank you", "You are welcome. I am glad that you liked it."),
    ("Thanks!", "You are welcome!"),
    ("Goodbye", "Goodbye! Come again when you want another story."),
    ("Can you help me?", "I will try. I am a very small model, and stories are what I do best."),
    ("Are you a person?", "No, I am {name}, a very small language model."),
    (
        "What were you trained on?",
        "I was trained on old story books, some Chinese novels, and a little code.",
    ),
]
_SMALL_THOUGHTS = [
    "The user is speaking to me. I will answer in one or two short sentences.",
    "This is small talk. A short and friendly answer is best.",
    "I should answer plainly and briefly.",
]


def render(user: str, thought: str, answer: str, system: str = "") -> str:
    """One conversation as the template and the model together write it, without BOS."""
    return f"{system}{USER}{user}{ASSISTANT}{THINK}\n{thought}\n{END_THINK}\n\n{answer}"


def _passage(paragraphs: list[str], start: int, want: int) -> str:
    """Whole paragraphs from `start`, at least `want` characters where there are as many."""
    taken, length = [], 0
    for paragraph in paragraphs[start:]:
        taken.append(paragraph)
        length += len(paragraph)
        if length >= want or len(taken) == 4:
            break
    text = "\n\n".join(taken)
    if len(text) > 2 * want:  # one long paragraph: end it at a sentence
        sentences = _SENTENCE.split(text)
        while len(sentences) > 2 and len(" ".join(sentences)) > 2 * want:
            sentences.pop()
        text = " ".join(sentences)
    return text


def _topic(rng: random.Random, passage: str) -> str | None:
    """Something the passage is about: one of _THINGS that it names, else a proper name."""
    lower = passage.lower()
    named = [t for t in _THINGS if re.search(rf"\b{t.split()[-1]}s?\b", lower)]
    if named:
        return rng.choice(named)
    names = [n for n in _NAME.findall(passage) if n not in _DULL]
    return rng.choice(names) if names else None


def conversations(english: list[str], count: int, name: str, seed: int) -> list[str]:
    """About `count` chat documents: 45 % stories, 45 % continuations, 10 % small talk."""
    rng = random.Random(seed)
    result = []
    while len(result) < count:
        system = rng.choice(_SYSTEM) if rng.random() < 0.3 else ""
        kind = rng.random()
        if kind < 0.1:
            user, answer = rng.choice(_SMALL_TALK)
            thought = rng.choice(_SMALL_THOUGHTS)
            result.append(render(user, thought, answer.format(name=name), system))
            continue
        paragraphs = [p for p in rng.choice(english).split("\n\n") if len(p) > 60]
        if len(paragraphs) < 4:
            continue
        start = rng.randrange(len(paragraphs) - 1)
        if kind < 0.55:
            # A story begins where a document or a paragraph of narration does.
            if rng.random() < 0.6:
                start = -1
            elif paragraphs[start + 1][0] in "\"'":
                continue
        passage = _passage(paragraphs, start + 1, rng.choice((150, 300, 600)))
        if kind < 0.55:
            topic = _topic(rng, passage)
            if topic is None:
                continue
            user = rng.choice(_STORY).format(topic=topic)
            thought = rng.choice(_STORY_THOUGHTS).format(topic=topic)
        else:
            user = rng.choice(_CONTINUE).format(text=paragraphs[start][-600:])
            thought = rng.choice(_CONTINUE_THOUGHTS)
        result.append(render(user, thought, passage, system))
    return result
