#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/unit/bpe_fixture.h: a small byte-level BPE in GPT-2's file formats, and texts with the ids that GPT-2's
algorithm gives. Standard library only, and written apart from trainer/bpe*.c: the pattern is matched with
unicodedata, the merges go over tuples of characters.

    tests/unit/make_bpe_fixture.py > tests/unit/bpe_fixture.h
"""
import json
import unicodedata

MERGES = 260
TRAINING = """
The quick brown fox jumps over the lazy dog, and the dog doesn't mind; it's the fox that they're all watching.
We'll see whether I'd've known: you've 1234 chances, they have 56, and nobody'll count to 7890 by the 12th of May 2024.
    for i in range(10):
        print("hello,", i)      # hello, 0
A pipeline of four stages has three gaps; the gaps are bubbles, and the bubbles shrink when the microbatches are many.
Das Mädchen fährt über die Brücke. Où est l'été? Дом стоит у реки, а река течёт в море. 東京は日本の首都です。中文也可以。
The rank that waits tells which rank it waits for. The rank that sends tells which rank it sends to. 👍🏽 ½ Ⅷ ١٢٣
""" * 2
CASES = [
    "", "a", " ", "\n", "  ", "hello", " hello", "The quick brown fox",
    "doesn't it's they're I'd've you've we'll I'm", "'S 'T 'RE ''s 'sx ' s 'l 'v",
    "a  b   c\n\nd \n e\t\tf \t", "trailing spaces   ", "   leading", "\r\n\r\n x\r\n",
    "1234567 12ab34 ab12 3.14 1,000", "Mädchen Brücke été", "Дом стоит", "東京は日本の首都です。中文",
    "👍🏽👍 ½ Ⅷ ١٢٣ x² ₂", "a\u00a0b\u00a0 c\u3000d\u3000\u3000e\u2003 f\u0085g\u2028h\u200bi",
    "e\u0301 \u0301x", "<|endoftext|>", "\x00\x01\x7f\x1c\x1d\x1e\x1f", "the the the the " * 5, "x" * 200,
    "ab" * 100 + "!" * 150, "...!!!???---===", "$100% of (it) [is] {fine}", "_under_score_ a_b", b"\xff",
    b"a\xffb \xff\xfe c\xc3", b"\xc3\xa9\xc3", b"\xe4\xb8",
    b" \x80\x80 \xed\xa0\x80 \xf4\x90\x80\x80 \xc0\xaf", bytes(range(256)),
]


def alphabet():
    """byte -> the character that stands for it in the files"""
    printable = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + n) for n, b in enumerate(others)}


def kind(c):
    if c in "\t\n\v\f\r\x85" or unicodedata.category(c)[0] == "Z":
        return "space"
    return {"L": "letter", "N": "number"}.get(unicodedata.category(c)[0], "other")


def words(text):
    """'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"""
    i = 0
    while i < len(text):
        end = next((i + len(e) for e in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d") if text.startswith(e, i)), None)
        if end is None:
            first = i + 1 if text[i] == " " and i + 1 < len(text) and kind(text[i + 1]) != "space" else i
            end = first + 1
            while end < len(text) and kind(text[end]) == kind(text[first]):
                end += 1
            if kind(text[first]) == "space" and end < len(text) and end - i > 1:
                end -= 1
        yield text[i:end]
        i = end


def merge(word, pair):
    out, i = [], 0
    while i < len(word):
        if tuple(word[i:i + 2]) == pair:
            out.append(pair[0] + pair[1])
            i += 2
        else:
            out.append(word[i])
            i += 1
    return out


CHARACTERS = alphabet()


def spelled(word):
    return [CHARACTERS[b] for b in word.encode("utf-8", "surrogateescape")]


def train():
    parts, merges = [spelled(w) for w in words(TRAINING)], []
    while len(merges) < MERGES:
        counts = {}
        for word in parts:
            for pair in zip(word, word[1:]):
                counts[pair] = counts.get(pair, 0) + 1
        best = max(counts, key=lambda p: (counts[p], p))
        merges.append(best)
        parts = [merge(w, best) for w in parts]
    return merges


def encode(data, ranks, vocabulary):
    ids = []
    for word in words(data.decode("utf-8", "surrogateescape")):
        tokens = spelled(word)
        while True:
            best = min(zip(tokens, tokens[1:]), key=lambda p: ranks.get(p, len(ranks)), default=None)
            if best is None or best not in ranks:
                break
            tokens = merge(tokens, best)
        ids += [vocabulary[t] for t in tokens]
    return ids


def c_string(data):
    """The bytes as string literals, one a line."""
    lines = [""]
    for b in data:
        c = chr(b) if 32 <= b <= 126 and chr(b) not in '"\\?' else "\\" + (chr(b) if b in b'"\\' else f"{b:03o}")
        if len(lines[-1]) + len(c) > 96:
            lines.append("")
        lines[-1] += c
    return "\n".join(f'    "{line}"' for line in lines)


def main():
    merges = train()
    tokens = [CHARACTERS[b] for b in sorted(CHARACTERS, key=lambda b: CHARACTERS[b])]
    tokens += [a + b for a, b in merges] + ["<|endoftext|>"]
    tokens = list(dict.fromkeys(tokens))
    vocabulary = {t: i for i, t in enumerate(tokens)}
    ranks = {pair: i for i, pair in enumerate(merges)}
    vocab_file = json.dumps(vocabulary, ensure_ascii=True).encode()
    merge_file = ("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges)).encode()
    print("// SPDX-License-Identifier: Apache-2.0")
    print("// Made by make_bpe_fixture.py, which says how. Not to be edited.")
    print("#pragma once\n\n// clang-format off")
    print(f"static const char fixture_vocab[] =\n{c_string(vocab_file)};\n")
    print(f"static const char fixture_merges[] =\n{c_string(merge_file)};\n")
    print("static const struct fixture_case {\n    const char *bytes;\n    int length, count;\n    const int *ids;")
    print("} fixture_cases[] = {")
    for case in CASES:
        data = case if isinstance(case, bytes) else case.encode()
        ids = encode(data, ranks, vocabulary)
        print("    {" + c_string(data).strip() + f",\n     {len(data)}, {len(ids)}, (const int[]){{")
        for i in range(0, max(len(ids), 1), 18):
            print("     " + ", ".join(map(str, ids[i:i + 18] or [0])) + ",")
        print("     }},")
    print("};\n// clang-format on")


main()
