#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Cuboid's ids with those of PyPI's `tokenizers` or `sentencepiece` on random strings and text files.

    tests/oracle/compare_tokenizers.py build/cuboid FOLDER/tokenizer.json [--strings N] [--seed N] [TEXT...]
    tests/oracle/compare_tokenizers.py build/cuboid tokenizer.model       [--strings N] [--seed N] [TEXT...]

Not part of the tests: it needs `pip install tokenizers sentencepiece`. Strings mix words, numbers, spaces, line ends,
special tokens and characters of all scripts. Characters that the Unicode version of this Python does not know are left
out, since libraries differ in them, and so are texts that the reference and this Python normalize differently. Bytes
that are not UTF-8 are compared by their defined result: with tokenizer.json a run of them is a word of its own, between
texts. Prints the first differences; exit status 1 if there are any."""
import argparse
import array
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

WORDS = ["the", "Hello", "don't", "WE'LL", "I'd've", "it'ſ", "naïve", "Straße", "привет", "東京", "한국어", "مرحبا",
         "हिन्दी", "ไทย", "e\u0301", "ﬁ", "Å", "\u1100\u1161", "12345", "3.14", "x²", "½", "١٢٣", "👍🏽", "👩‍👩‍👧",
         "\u200d", "\u200b", "\ufeff", "\x00", "\x1f", "\u00a0", "\u180e", "\u3000", "\u0085", "\u2028", "<", "|", ">",
         "!!!", "...\n\n", "()", "{};\n", "__", "'s", "'S", "'Re", "''", "▁", "<s>", "</s>", "<0x41>",
         "http://a.b/c?d=e"]
SPACES = [" ", "  ", "   ", "\n", "\n\n", " \n", "\n ", "\t", "\r\n", " \r\n  ", "\t\t ", "\v", "\f", ""]


def random_character(rng):
    while True:
        c = chr(rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x3000), rng.randrange(0x10000),
                            rng.randrange(0x1F000, 0x1FB00), rng.randrange(0x110000)]))
        if unicodedata.category(c) not in ("Cn", "Cs"):
            return c


def random_string(rng, special):
    parts = []
    for _ in range(rng.randrange(12)):
        kind = rng.random()
        if kind < 0.4:
            parts.append(rng.choice(WORDS))
        elif kind < 0.7:
            parts.append(rng.choice(SPACES) * rng.choice([1, 1, 1, 2, 40]))
        elif kind < 0.78 and special:
            parts.append(rng.choice(special))
        elif kind < 0.95:
            parts.append("".join(random_character(rng) for _ in range(rng.randrange(1, 6))))
        else:
            parts.append(rng.choice("aZ1 -\n'") * rng.randrange(1, 300))
    return "".join(parts)


def encode_all(cuboid, arguments, inputs, kind):
    """The ids of each document of the files."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([cuboid, "data", "prepare", *inputs, "-o", folder + "/ids", "--no-append-eod", *kind,
                        *arguments], check=True, stdout=subprocess.DEVNULL)
        with open(folder + "/ids.idx", "rb") as file:
            head = file.read()
        wide = head[17] == 4
        ids = array.array("i" if wide else "H")
        with open(folder + "/ids.bin", "rb") as file:
            ids.frombytes(file.read())
    count = int.from_bytes(head[18:26], "little")
    lengths = array.array("i")
    lengths.frombytes(head[34:34 + 4 * count])
    out, at = [], 0
    for length in lengths:
        out.append(list(ids[at:at + length]))
        at += length
    return out


class HuggingFace:
    def __init__(self, path):
        import tokenizers
        self.tokenizer = tokenizers.Tokenizer.from_file(path)
        self.tokenizer.no_truncation()
        self.arguments = ["--tokenizer", "hf", "--tokenizer-model", path]
        with open(path, encoding="utf-8") as file:
            description = json.load(file)
        self.special = [t["content"] for t in description.get("added_tokens", [])]
        self.form = (description.get("normalizer") or {}).get("type")

    def knows(self, text):
        """False for the combining marks whose order the library's normalizer does not know."""
        if self.form not in ("NFC", "NFD", "NFKC", "NFKD"):
            return True
        return self.tokenizer.normalizer.normalize_str(text) == unicodedata.normalize(self.form, text)

    def encode(self, text):
        return self.tokenizer.encode(text).ids

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def encode_bytes(self, data):
        """Valid parts as texts of their own; a run of other bytes as one word without a pattern."""
        ids, prefix = [], self.tokenizer.encode("").ids
        text = data.decode("utf-8", "surrogateescape")
        at = 0
        while at < len(text):
            end = at
            invalid = "\udc80" <= text[at] <= "\udcff"
            while end < len(text) and ("\udc80" <= text[end] <= "\udcff") == invalid:
                end += 1
            if invalid:
                ids += [("bytes", text[at:end].encode("utf-8", "surrogateescape"))]
            else:
                ids += self.tokenizer.encode(text[at:end], add_special_tokens=False).ids
            at = end
        return prefix + ids


class SentencePiece:
    def __init__(self, path):
        import sentencepiece
        self.tokenizer = sentencepiece.SentencePieceProcessor(model_file=path)
        self.arguments = ["--tokenizer", "GPTSentencePieceTokenizer", "--tokenizer-model", path]
        self.special = ["<s>", "</s>", "<unk>"]

    def knows(self, text):
        return True

    def encode(self, text):
        return self.tokenizer.encode(text)

    def decode(self, ids):
        return self.tokenizer.decode(ids)


def compare(what, texts, ours, theirs):
    wrong = 0
    for text, mine, other in zip(texts, ours, theirs):
        if mine != other:
            wrong += 1
            if wrong <= 5:
                print(f"{what}: {text[:300]!r}\n    cuboid    {mine[:60]}\n    reference {other[:60]}")
    print(f"{what}: {len(texts)} documents, {sum(map(len, ours))} ids, {wrong} differ")
    return wrong + (len(texts) != len(ours))


def compare_bytes(reference, cuboid, rng, count):
    """Texts with invalid UTF-8; ids between the valid parts are only counted by their bytes."""
    with tempfile.TemporaryDirectory() as folder:
        texts = []
        for _ in range(count):
            text = random_string(rng, reference.special).replace("\f", "").encode()
            for _ in range(rng.randrange(1, 4)):
                at = rng.randrange(len(text) + 1)
                text = text[:at] + bytes(rng.randrange(0x80, 0x100) for _ in range(rng.randrange(1, 4))) + text[at:]
            texts.append(text)
        with open(folder + "/text.txt", "wb") as file:
            file.write(b"\f".join(texts))
        ours = encode_all(cuboid, reference.arguments, [folder + "/text.txt"], ["--documents", "form-feed"])
    wrong = 0
    single = {b: reference.tokenizer.token_to_id(c) for b, c in alphabet().items()}
    for text, mine in zip(texts, ours):
        expected, at = reference.encode_bytes(text), 0
        for part in expected:
            if isinstance(part, tuple):  # (its bytes are few: no merge joins them, or any that do)
                rest, ids = part[1], [single[b] for b in part[1]]
                size = len(ids)
                while size > 0 and mine[at:at + size] != ids[:size]:
                    size -= 1
                if size < len(rest):
                    at = -10**9  # merged: not compared
                at += len(rest)
            else:
                if at >= 0 and (at >= len(mine) or mine[at] != part):
                    wrong += 1
                    if wrong <= 5:
                        print(f"bytes: {text!r}\n    cuboid    {mine}\n    reference {expected}")
                    break
                at += 1
    print(f"bytes: {count} texts with invalid UTF-8, {wrong} differ")
    return wrong


def alphabet():
    printable = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + n) for n, b in enumerate(others)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cuboid")
    parser.add_argument("tokenizer")
    parser.add_argument("texts", nargs="*")
    parser.add_argument("--strings", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_intermixed_args()
    rng = random.Random(options.seed)
    path = options.tokenizer
    if os.path.isdir(path):
        path += "/tokenizer.json"
    reference = HuggingFace(path) if path.endswith(".json") else SentencePiece(path)
    # (Empty documents are skipped.)
    texts = [random_string(rng, reference.special) or "-" for _ in range(options.strings)]
    texts = [text for text in texts if reference.knows(text)]
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/strings.jsonl", "w", encoding="utf-8") as file:
            for text in texts:
                file.write(json.dumps({"text": text}) + "\n")
        ours = encode_all(options.cuboid, reference.arguments, [folder + "/strings.jsonl"], [])
    wrong = compare("strings", texts, ours, [reference.encode(t) for t in texts])
    for name in options.texts:
        with open(name, encoding="utf-8", newline="") as file:
            text = file.read()
        ours = encode_all(options.cuboid, reference.arguments, [name], ["--format", "text"])
        wrong += compare(name, [text], ours, [reference.encode(text)])
    if isinstance(reference, HuggingFace):
        wrong += compare_bytes(reference, options.cuboid, rng, options.strings // 10)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
