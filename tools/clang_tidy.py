#!/usr/bin/env python3
"""Runs clang-tidy over the sources of a build directory, two at a time, and remembers what passed.

A stamp is the hash of the checks, the compile command and every file of the project that the source
includes, directly or not; a source whose stamp exists is not read again.
"""
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
STAMPS = pathlib.Path(os.environ.get("FATHOM_TIDY_CACHE", ROOT / "build" / "tidy"))
TIDY = "clang-tidy-14"


@functools.cache
def includes(path: pathlib.Path) -> frozenset:
    """The project's headers that `path` includes, transitively, and `path` itself."""
    found = {path}
    for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(errors="replace"), re.M):
        for base in (ROOT / "src", path.parent, ROOT):
            header = base / name
            if header.is_file():
                found |= includes(header)
                break
    return frozenset(found)


def stamp(command: str, path: pathlib.Path) -> pathlib.Path:
    digest = hashlib.sha256((ROOT / ".clang-tidy").read_bytes())
    digest.update(command.replace(str(ROOT), "").encode())
    for file in sorted(includes(path)):
        digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return STAMPS / digest.hexdigest()


def check(build: str, path: pathlib.Path, mark: pathlib.Path) -> str:
    run = subprocess.run([TIDY, "-p", build, "--quiet", "--extra-arg=-Wno-unknown-warning-option", str(path)], capture_output=True, text=True)
    if run.returncode == 0:
        mark.touch()
        return ""
    return run.stdout + run.stderr


def main() -> int:
    build = sys.argv[1]
    only = [str(pathlib.Path(p).resolve()) for p in sys.argv[2:]]
    STAMPS.mkdir(parents=True, exist_ok=True)
    todo = []
    commands = json.loads((pathlib.Path(build) / "compile_commands.json").read_text())
    for entry in commands:
        path = pathlib.Path(entry["file"])
        if path.suffix != ".cc" or not path.is_relative_to(ROOT / "src"):
            continue
        # The ISA files are the same code compiled four times: the scalar one is enough. Tests are
        # code for a moment; the compiler's warnings and the sanitizers read them.
        if re.search(r"kernels/cpu/avx\w+\.cc$|_test\.cc$", str(path)):
            continue
        if only and str(path) not in only:
            continue
        mark = stamp(entry["command"], path)
        if not mark.exists():
            todo.append((path, mark))
    bad = 0
    findings = {}  # a header's finding is printed once, not once a source
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for output in pool.map(lambda item: check(build, *item), todo):
            bad += bool(output)
            for block in re.split(r"\n(?=/\S+:\d+:\d+: (?:error|warning))", output):
                findings.setdefault(block.split("\n", 1)[0], block)
    for block in findings.values():
        print(block)
    print(f"clang-tidy: {len(todo)} files read, {bad} with findings")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
