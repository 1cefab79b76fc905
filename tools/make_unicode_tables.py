#!/usr/bin/env python3
"""Writes src/text/unicode_tables.cc.

Token ids must not depend on which Unicode version the installed PCRE2 and utf8proc know, so the
differences between them and the reference (the `tokenizers` package: Unicode 16 in its regular
expressions, an older version in its normaliser) are spelled out as ranges. Needs Python 3.11
(Unicode 14, as in PCRE2 10.42), unicodedata2==16.0.0 and tokenizers.
"""
import pathlib
import unicodedata

import unicodedata2
from tokenizers import normalizers

assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
assert unicodedata2.unidata_version == "16.0.0", unicodedata2.unidata_version
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
NFC = normalizers.NFC()


def ranges(code_points):
    out = []
    for c in sorted(code_points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def new_categories():
    out = []
    for c in CODE_POINTS:
        old, new = unicodedata.category(chr(c)), unicodedata2.category(chr(c))
        if old != "Cn" or new == "Cn":
            continue
        if out and out[-1][1] == c - 1 and out[-1][2] == new:
            out[-1][1] = c
        else:
            out.append([c, c, new])
    return out


def compositions():
    """composite -> its canonical parts, where there are two"""
    out = {}
    for c in CODE_POINTS:
        decomposition = unicodedata2.decomposition(chr(c))
        if decomposition and not decomposition.startswith("<"):
            parts = [int(part, 16) for part in decomposition.split()]
            if len(parts) == 2:
                out[c] = parts
    return out


def reference_knows_as_combining(c):
    """Whether the reference reorders c against marks of a lower and of a higher class."""
    lower, higher = "x" + chr(c) + "\u0334", "x\u0315" + chr(c)
    return NFC.normalize_str(lower) != lower or NFC.normalize_str(higher) != higher


def main():
    pairs = compositions()
    combining = {c for c in CODE_POINTS if unicodedata2.combining(chr(c))}
    inert = {c for c in combining if not reference_knows_as_combining(c)}
    for composite, parts in pairs.items():
        text = "".join(map(chr, parts))
        if NFC.normalize_str(text) != unicodedata2.normalize("NFC", text):
            inert |= {composite} | {p for p in parts if p > 0x10000}
    changed = {c for c in CODE_POINTS if unicodedata2.normalize("NFC", chr(c)) != chr(c)}
    active = (combining | changed | {parts[1] for parts in pairs.values()}) - inert

    lines = [
        "// Written by tools/make_unicode_tables.py; do not edit.",
        '#include "text/unicode.h"',
        "",
        "namespace fathom::text {",
        "namespace {",
        "",
        "constexpr CategoryRange kNewCategories[] = {",
        *[f"    {{0x{a:04X}, 0x{b:04X}, \"{k}\"}}," for a, b, k in new_categories()],
        "};",
    ]
    for name, table in (("kNfcActive", active), ("kNfcInert", inert)):
        lines += ["", f"constexpr CodePointRange {name}[] = {{",
                  *[f"    {{0x{a:04X}, 0x{b:04X}}}," for a, b in ranges(table)], "};"]
    lines += [
        "",
        "}  // namespace",
        "",
        "std::span<const CategoryRange> NewCategories() { return kNewCategories; }",
        "std::span<const CodePointRange> NfcActive() { return kNfcActive; }",
        "std::span<const CodePointRange> NfcInert() { return kNfcInert; }",
        "",
        "}  // namespace fathom::text",
        "",
    ]
    target = pathlib.Path(__file__).resolve().parent.parent / "src/text/unicode_tables.cc"
    target.write_text("\n".join(lines))
    print(f"{target}: {len(lines)} lines")


if __name__ == "__main__":
    main()
