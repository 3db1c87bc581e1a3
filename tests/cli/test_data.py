#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Inputs of `cuboid data prepare` as people have them: compressed, archived, in other encodings, no text at all,
damaged. The references are Python's gzip, lzma, bz2 and tarfile.

    test_data.py CUBOID SOURCE_ROOT [archives]      the word: the build has libarchive"""
import array
import base64
import bz2
import gzip
import io
import json
import lzma
import os
import random
import subprocess
import sys
import tarfile
import tempfile

CUBOID, ROOT, ARCHIVES = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), "archives" in sys.argv[3:]
TWO = b'{"text": "one"}\n{"text": "two"}\n'
# TWO, by the programs zstd and lz4, which Python's library does not have.
ZSTD = base64.b64decode("KLUv/SQg5QAAsHsidGV4dCI6ICJvbmUifQp0d28ifQoBAGabS28tKp8=")
LZ4 = base64.b64decode("BCJNGGRApxsAAAD2AXsidGV4dCI6ICJvbmUifQoQAGB0d28ifQoAAAAAnCoFUg==")
failures = []


def write(name, data):
    with open(name, "wb") as file:
        file.write(data)


def prepare(inputs, *options, data=None, ends="--no-append-eod"):
    """Returns the finished process, and the documents as bytes (the byte tokenizer, without their ends)."""
    for end in (".bin", ".idx", ".mask"):
        if os.path.exists("out" + end):
            os.remove("out" + end)
    done = subprocess.run([CUBOID, "data", "prepare", *inputs, "-o", "out", ends, *options], input=data,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    left = [name for name in os.listdir(".") if name.startswith("out.")]
    if done.returncode != 0 and left:
        failures.append(f"{inputs}: {left} after a failure")
    return done, documents() if done.returncode == 0 else None


def documents():
    with open("out.idx", "rb") as file:
        index = file.read()
    count = int.from_bytes(index[18:26], "little")
    lengths = array.array("i", index[34:34 + 4 * count])
    with open("out.bin", "rb") as file:
        ids = bytes(array.array("H", file.read()))
    out, at = [], 0
    for length in lengths:
        out.append(ids[2 * at:2 * (at + length):2])
        at += length
    return out


def expect(what, holds, done):
    if not holds:
        failures.append(what)
        print(f"{what}: status {done.returncode}\n  stdout {done.stdout!r:.400}\n  stderr {done.stderr!r:.600}")


def expect_error(what, inputs, *messages, options=(), ends="--no-append-eod", status=2):
    done, _ = prepare(inputs, *options, ends=ends)
    expect(what, done.returncode == status and all(m.encode() in done.stderr for m in messages), done)


def tar_of(members, form=tarfile.PAX_FORMAT):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, members[0][0]
        archive.addfile(link)
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    return out.getvalue()


def packed_forms():
    """Pairs of name and bytes; each has the documents "one" and "two"."""
    members = [("dir/a.jsonl", TWO[:16]), ("dir/._a.jsonl", b"\0\5\x16\7 of macOS"), ("dir/é東.txt", b"two")]
    tar = tar_of(members)
    return [("a.jsonl.gz", gzip.compress(TWO)), ("a.jsonl.xz", lzma.compress(TWO)), ("a.jsonl.bz2", bz2.compress(TWO)),
            ("a.jsonl.zst", ZSTD), ("a.jsonl.lz4", LZ4),
            ("two.jsonl.gz", gzip.compress(TWO[:16]) + gzip.compress(TWO[16:]) + b"\0" * 600),
            ("two.jsonl.bz2", bz2.compress(TWO[:16]) + bz2.compress(TWO[16:])),
            ("two.jsonl.xz", lzma.compress(TWO[:16]) + lzma.compress(TWO[16:])),
            ("a.tar", tar), ("gnu.tar", tar_of(members, tarfile.GNU_FORMAT)),
            ("two.tar", tar_of(members[:2]) + tar_of(members[2:])),
            ("a.tgz", gzip.compress(tar)), ("a.data", lzma.compress(tar)),
            ("deep.tar", tar_of([("x.jsonl.gz", gzip.compress(TWO[:16])), ("y.tar", tar_of([("z", b"two")]))]))]


def test_packed_text():
    for name, data in packed_forms():
        write(name, data)
        if not ARCHIVES:
            expect_error(name, [name], f"{name} is ", "this build has no libarchive; use ", f" {name} | cuboid data ",
                         status=1)
            continue
        done, got = prepare([name])
        expect(f"{name} is read", got == [b"one", b"two"], done)
        done, got = prepare(["-"], *(["--format", "jsonl"] if "jsonl" in name else []), data=data)
        expect(f"{name} is read from a pipe", got == [b"one", b"two"], done)
        write("bytes", data)
        done, got = prepare(["bytes"], "--format", "bytes")
        expect(f"{name} has bytes", got == [data], done)
    if not ARCHIVES:
        return
    # More text than any buffer.
    words = "".join(random.Random(1).choices(["the ", "é", "\n", "東", "ab"], k=900000)).encode()
    for name, data in [("large.gz", gzip.compress(words, 1)), ("large.bz2", bz2.compress(words, 1)),
                       ("large.tar", tar_of([("large.txt", words)]))]:
        write(name, data)
        done, got = prepare([name])
        expect(f"{name} is read", got == [words], done)


def test_damaged_archives():
    if not ARCHIVES:
        return
    text = b"".join(b"%d words of text\n" % i for i in range(3000))
    whole = {"gz": gzip.compress(text), "xz": lzma.compress(text), "bz2": bz2.compress(text),
             "tar": tar_of([("a.txt", text), ("b.txt", text)])}
    for end, data in whole.items():
        write("cut." + end, data[:len(data) * 2 // 3])
        expect_error(f"a truncated {end}", ["cut." + end], f"cut.{end}: corrupt, read up to byte ", "runcated"
                     if end != "xz" else "Lzma")
        write("more." + end, data + b"more text" * 300)
        expect_error(f"text after a {end}", ["more." + end], f"more.{end}: corrupt, read up to byte ")
        if end == "tar":
            continue  # it has no checksum of contents
        for seed in range(6):
            flipped = bytearray(data)
            at = random.Random(seed).randrange(12, len(data))
            flipped[at] ^= 1 << seed
            write("flipped." + end, flipped)
            done, got = prepare(["flipped." + end])
            expect(f"bit {seed} of byte {at} in a {end}", got == [text] or b": corrupt, " in done.stderr, done)


def test_compressed_text_that_is_not_read():
    """What libarchive does not recognize, or cannot read, is not called corrupt text or text."""
    if not ARCHIVES:
        return
    large_window = ZSTD[:4] + b"\0\xA8" + (len(TWO) << 3 | 1).to_bytes(3, "little") + TWO  # 2^31 bytes
    for name, data, message in [
            ("begun.bz2", b"BZh91AY&SY", ": corrupt, read up to byte 10: truncated (bzip2)"),
            ("begun.lz4", LZ4[:4], ": corrupt, read up to byte 4: truncated (lz4)"),
            ("long.zst", large_window, ": zstd with a window above 128 MiB (--long), which libarchive does not read; "),
            ("pzstd.zst", b"\x50\x2A\x4D\x18\4\0\0\0abcd" + ZSTD, " is zstd that begins with a skippable frame, ")]:
        write(name, data)
        expect_error(name, [name], name + message)


def test_what_is_no_text():
    text = "Über 東 ".encode() * 100
    for name, data, message in [
            ("a.parquet", b"PAR1" + text, "a Parquet file, not UTF-8 text; use python3 -c "),
            ("a.arrow", b"\xFF\xFF\xFF\xFF\0\1\0\0" + text, "an Arrow stream, not UTF-8 text; use python3 -c "),
            ("utf16.txt", "text".encode("utf-16"), "UTF-16, not UTF-8 text; use iconv -f UTF-16 -t UTF-8 FILE"),
            ("utf16be.txt", b"\xFE\xFF" + "text".encode("utf-16-be"), "UTF-16, "),
            ("utf32.txt", "text".encode("utf-32"), "UTF-32, "),
            ("unmarked.txt", ("text " * 100).encode("utf-16-le"), "50 % of its first 1000 bytes are not UTF-8"),
            ("a.zip", b"PK\3\4" + text, "a zip archive, not UTF-8 text; use unzip -p FILE"),
            ("a.pdf", b"%PDF-1.7\n" + text, "a PDF file, "),
            ("a.db", b"SQLite format 3\0" + text, "an SQLite database, "),
            ("a.png", b"\x89PNG\r\n\x1A\n" + text, "a PNG image, not text"),
            ("a.so", b"\x7FELF\2\1" + text, "an ELF program or library, not text"),
            ("a.npy", b"\x93NUMPY\1\0" + text, "a NumPy array, not text"),
            ("a.safetensors", len(text).to_bytes(8, "little") + b'{"a": ' + text, "a safetensors file, not"),
            ("latin.txt", "Füße, Äpfel, Öl".encode("latin-1"), "not UTF-8 text, the first one at byte 1;"),
            ("noise", random.Random(1).randbytes(100000), " of its first 65536 bytes are not UTF-8"),
            ("late.txt", text * 100 + random.Random(1).randbytes(100000), "not UTF-8 text, the first one at byte ")]:
        write(name, data)
        expect_error(name, [name], name, message)
        if ARCHIVES and not name.startswith("late"):
            write("packed", gzip.compress(tar_of([(name, data)])))
            expect_error(f"{name} in an archive", ["packed"], f"packed: {name}", message)
        done, got = prepare([name], "--format", "bytes")
        expect(f"{name} as bytes", got == [data], done)
    # Few such bytes are kept, and reported if they are not very few.
    for count, warned in [(1, False), (40, True)]:
        data = b"\xFF" * count + text
        write("some.txt", data)
        done, got = prepare(["some.txt"])
        expect(f"{count} bytes are not UTF-8", got == [data] and warned == (b"are not UTF-8" in done.stderr), done)


def test_invalid_lines():
    """Values of Python's json are no errors; others end the reading, or are skipped and counted."""
    good = json.dumps({"text": "ä", "score": float("nan"), "x": ["\ud83d", float("-inf")]}).encode() + b"\n"
    bad = [(b'{"text": "lone \\ud83d half"}\n', "line 2, column 16: lone surrogate"),
           (b'{"text": NaN}\n', 'line 2: the object has no string under "text"'),
           (b'{"text": "\xFF"}\n', "line 2, column 11: invalid UTF-8"), (b'{"text": \n', "line 2, column "),
           (b"7\n", "line 2: not a JSON object"),
           (b'{"messages": []}\n', 'it has "messages": for conversations, use --chat-template'),
           (b'{"conversations": []}\n', 'it has "conversations": for --chat-template, rename'),
           (b'{"instruction": "a", "output": "b"}\n', 'it has "instruction": for --chat-template, write it and'),
           (b'{"prompt": "a", "completion": "b"}\n', 'it has "completion": for a prompt and its answer, use --chat')]
    for line, message in bad:
        write("a.jsonl", good + line + good)
        expect_error(line, ["a.jsonl"], "a.jsonl, " + message if "line" in message else message)
        done, got = prepare(["a.jsonl"], "--skip-invalid")
        expect(f"{line} is skipped", got == ["ä".encode()] * 2 and
               b"1 invalid line skipped:\n  a.jsonl, line 2" in done.stderr, done)
    write("b.jsonl", b"".join(good + line for line, _ in bad))
    done, got = prepare(["a.jsonl", "b.jsonl"], "--skip-invalid")
    expect("many are skipped", len(got or []) == 2 + len(bad) and
           all(message in done.stderr for message in
               [b"warning: 10 invalid lines skipped:\n", b"  b.jsonl, line 2, ", b"  and 7 more\n"]), done)
    write("c.jsonl", bad[0][0])
    expect_error("all are invalid", ["c.jsonl"], "all 1 lines are invalid; the first: c.jsonl, line 1, column 16: lone",
                 options=["--skip-invalid"])


def test_invalid_conversations():
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    good = json.dumps(chat).encode() + b"\n"
    write("a.jsonl", good + json.dumps({"score": float("nan"), **chat}).encode() + b'\n{"messages": []}\n' + good)
    expect_error("a conversation without an answer", ["a.jsonl"], "a.jsonl, line 3: messages has no answer",
                 options=["--chat-template", "plain"], ends="--append-eod")
    done, _ = prepare(["a.jsonl"], "--chat-template", "plain", "--skip-invalid", ends="--append-eod")
    expect("it is skipped", done.returncode == 0 and b" 3 documents" in done.stdout and
           b"1 invalid line skipped:\n  a.jsonl, line 3: messages has no answer" in done.stderr, done)


def test_ends_of_documents():
    """A post-processor that adds the end of a document makes no second one."""
    with open(os.path.join(ROOT, "tests", "fixtures", "tokenizers", "llama3.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    begin, end = ({"SpecialToken": {"id": f"<|{name}_of_text|>", "type_id": 0}} for name in ("begin", "end"))
    template = tokenizer["post_processor"]["processors"][1]
    template["special_tokens"]["<|end_of_text|>"] = {"id": "<|end_of_text|>", "ids": [1], "tokens": ["<|end_of_text|>"]}
    text, end_id = {"Sequence": {"id": "A", "type_id": 0}}, 1
    write("a.txt", b"cats")
    for single, ends, expected in [
            ([text], "--append-eod", ([], [1])), ([text], "--no-append-eod", ([], [])),
            ([begin, text], "--append-eod", ([0], [1])), ([begin, text, end], "--append-eod", ([0], [1])),
            ([begin, text, end], "--no-append-eod", ([0], [1])), ([text, end, begin], "--append-eod", ([], [1, 0, 1]))]:
        template["single"] = single
        write("tokenizer.json", json.dumps(tokenizer).encode())
        done, _ = prepare(["a.txt"], "--tokenizer", "hf", "--tokenizer-model", "tokenizer.json", ends=ends)
        with open("out.bin", "rb") as file:
            ids = list(array.array("H", file.read()))
        before, after = expected
        expect(f"{len(single)} pieces, {ends}", len(ids) > len(before) + len(after) and ids[:len(before)] == before and
               ids[len(ids) - len(after):] == after and ids.count(end_id) == after.count(end_id), done)


def test_datasets_that_are_not_there():
    write("my.jsonl", TWO)
    recipe = ["train.train_iters=1", "optimizer.lr_warmup_iters=0", "tokenizer.tokenizer_type=GPT2BPE",
              "tokenizer.vocab_file=v.json", "tokenizer.merge_file=m.txt"]
    quickstart = os.path.join(ROOT, "recipes", "quickstart.yaml")
    options = "--tokenizer GPT2BPE --vocab-file v.json --merge-file m.txt"
    for words, message in [
            (["data", "inspect", "my.jsonl"], "my.jsonl is a file, not the PREFIX of a dataset, PREFIX.bin and "
             "PREFIX.idx; make one of its text: cuboid data prepare my.jsonl -o PREFIX"),
            (["data", "inspect", "none"], "none.idx: No such file or directory (a dataset is two files, PREFIX.bin and "
             "PREFIX.idx, made by cuboid data prepare TEXT -o PREFIX)"),
            (["train", quickstart, *recipe, "data.train=data/none"], "data.train: data/none.idx: No such file or "
             f"directory; make the dataset with cuboid data prepare TEXT -o data/none {options}"),
            (["train", quickstart, *recipe, "data.train=my.jsonl"], "my.jsonl is a file, not the prefix of a dataset: "
             f"prepare its text with cuboid data prepare my.jsonl -o PREFIX {options}, and use PREFIX here")]:
        done = subprocess.run([CUBOID, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        expect(words, done.returncode == 2 and message.encode() in done.stderr, done)


def test_inputs_are_not_replaced():
    """An input, or another file, that has the name of an output."""
    for name in ["text.bin", "text.idx"]:
        write(name, TWO)
        for input_name, options, message in [
                (name, [], "is an input"), (name, ["--overwrite"], "is an input"),
                ("./" + name, ["--overwrite"], "is an input"), (os.path.join(ROOT, "README.md"), [], "already exists")]:
            done = subprocess.run([CUBOID, "data", "prepare", input_name, "-o", "text", *options], capture_output=True,
                                  check=False)
            with open(name, "rb") as file:
                expect(f"{input_name} {options}", done.returncode == 2 and message.encode() in done.stderr and
                       file.read() == TWO, done)
        os.remove(name)


def test_a_dataset_is_named_by_its_prefix():
    """PREFIX.bin and PREFIX.idx are the same dataset when a run resumes."""
    write("text", b"".join(b"%d words of text\n" % i for i in range(300)))
    prepare(["text"], "--documents", "line", ends="--append-eod")
    model = ["model.hidden_size=16", "model.num_attention_heads=2", "model.num_layers=2", "model.seq_length=8",
             "optimizer.lr_warmup_iters=1", "optimizer.lr_decay_iters=4", "train.global_batch_size=2", "dp=1", "tp=1",
             "pp=1", "train.eval_interval=0", "parallel.sequence_parallel=false", "logging.run_dir=run"]
    for steps, path in [(2, "out"), (3, "out.bin"), (4, "out.idx")]:
        done = subprocess.run([CUBOID, "train", os.path.join(ROOT, "recipes", "quickstart.yaml"), *model,
                               f"train.train_iters={steps}", f"data.train={path}"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        expect(path, done.returncode == 0 and b"changed" not in done.stdout + done.stderr and
               (steps == 2 or b"resum" in done.stdout + done.stderr), done)


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, test in sorted(globals().items()):
            if name.startswith("test_"):
                test()
        os.chdir("/")
    sys.exit(f"failed: {failures}" if failures else 0)


main()
