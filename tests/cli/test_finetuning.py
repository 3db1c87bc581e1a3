#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The worked example of docs/finetuning.md (page.py), and conversations and datasets that must be refused. Every number
of the page matches any number; many steps are 2, evaluations and verify take 1.

    test_finetuning.py CUBOID SOURCE-ROOT"""
import os
import subprocess
import sys
import tempfile

import page

CUBOID, ROOT = os.path.abspath(sys.argv[1]), sys.argv[2]
QUICKSTART = "mkdir -p runs/data && cuboid data prepare text.txt -o runs/data/quickstart --split-lines 20 > /dev/null"
SHORTER = [("train recipes/finetune.yaml",
            "train recipes/finetune.yaml train.train_iters=2 train.eval_interval=0 optimizer.lr_warmup_iters=1"),
           ("train.train_iters=20", "train.train_iters=2 train.eval_iters=1"),
           ("cuboid verify ", "cuboid verify --steps 1 "),
           ("--temperature 0", "--temperature 0 --tokens 4")]
NUMBER = r"\d+(?:\.\d+)?(?:e[-+]?\d+)?"
GOOD = b'{"prompt": "abc", "completion": "de"}\n'
BAD = [  # lines of a file, what the error says
    (GOOD + b"\n{\n", "bad.jsonl, line 3: column "),
    (GOOD + b'{"text": "a"}', "bad.jsonl, line 2: the object has neither messages nor prompt"),
    (GOOD * 2 + b'{"prompt": "a"}', "bad.jsonl, line 3: completion is missing"),
    (b'{"messages": [{"role": "user", "content": "a"}]}', "bad.jsonl, line 1: messages has no answer"),
    (b'{"messages": [{"role": "tool", "content": "a"}]}', 'line 1: messages[0].role "tool" is unknown; use system'),
    (b'{"prompt": "a", "completion": ""}', "bad.jsonl, line 1: completion is empty"),
    (b'{"prompt": "%b", "completion": "b"}\n' % (b"a" * 20) + GOOD +
     b'{"prompt": "%b", "completion": "b"}' % (b"a" * 30),
     "bad.jsonl, line 1: more tokens than --seq-length 21, as 2 of 3 conversations have; shorten them, use "
     "--seq-length 32 for the longest (bad.jsonl, line 3), or omit"),
    (GOOD + b'{"prompt": "a", "completion": "\xff"}', "line 2: column "),
    (GOOD + b'{"prompt": "a", "completion": "\0"}', "line 2: column "),
    (b"", "bad.jsonl: no conversations; use a file with one on each line"),
    (b"\n \r\n", "bad.jsonl: no conversations; use a file with one on each line"),
]


def shorter(command):
    for long, short in SHORTER:
        command = command.replace(long, short)
    return QUICKSTART if command == "tools/quickstart" else command


def example():
    tour = [("tools/quickstart", [])] + page.commands(os.path.join(ROOT, "docs", "finetuning.md"))
    with tempfile.TemporaryDirectory() as folder:
        results = page.outcomes(folder, ROOT, {"cuboid": CUBOID}, page.script(tour, shorter))
    return page.report(tour, results, NUMBER, 8, "docs/finetuning.md")


def refuses(words, command):
    """Whether a command fails with status 2 or 1 and one line that has the words."""
    done = subprocess.run([CUBOID, *command], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode in (1, 2) and words in done.stderr and done.stderr.count("\n") == 1:
        return True
    print(f"{command}: status {done.returncode}, expected {words!r}\n{done.stdout}{done.stderr}")
    return False


def bad_input():
    prepare = ["data", "prepare", "bad.jsonl", "-o", "bad", "--chat-template", "plain", "--seq-length", "21"]
    failures = 0
    for lines, words in BAD:
        with open("bad.jsonl", "wb") as file:
            file.write(lines)
        failures += not refuses(words, prepare)
        failures += any(name.startswith("bad.") and name != "bad.jsonl" for name in os.listdir())
    failures += not refuses("--seq-length 0 is invalid", [*prepare[:-1], "0"])
    failures += not refuses("remove --documents", [*prepare, "--documents", "line"])
    failures += not refuses("--seq-length 9 limits conversations", ["data", "prepare", "bad.jsonl", "-o", "bad",
                                                                    "--seq-length", "9"])
    with open("bad.jsonl", "wb") as file:
        file.write(b'{"text": ""}\n' * 3)
    failures += not refuses('bad.jsonl: no text; use a file with {"text": "..."} on each line',
                            ["data", "prepare", "bad.jsonl", "-o", "bad", "--no-append-eod"])
    for words, use in ((["prepare", "", "-o", "bad"], "a file with text"), (["inspect", ""], "the prefix of a data")):
        failures += not refuses(f"{words[0]}: the name of input 1 is empty; use {use}", ["data", *words])
    failures += not refuses("/dev/null, /dev/null: no text; use a file that is not empty",
                            ["data", "prepare", "/dev/null", "/dev/null", "-o", "bad"])
    return failures


def bad_masks():
    """A run refuses the mask of another dataset, and one that is missing; a long conversation, too."""
    failures = 0
    for name, count in (("one", 30), ("two", 31)):
        with open(f"{name}.jsonl", "wb") as file:
            file.write(GOOD * count)
        subprocess.run([CUBOID, "data", "prepare", f"{name}.jsonl", "-o", name, "--chat-template", "plain"], check=True,
                       capture_output=True)
    train = ["train", f"{ROOT}/recipes/quickstart.yaml", "data.train=one", "data.loss_mask=true", "data.split=1,0,0",
             "train.eval_interval=0", "data.pack_documents=true"]
    failures += not refuses("6 tokens; use model.seq_length=6", [*train, "model.seq_length=4"])
    failures += not refuses("data.truncate_documents cuts every answer at model.seq_length 2; use a larger",
                            [*train, "model.seq_length=2", "data.truncate_documents=true"])
    os.replace("two.mask", "one.mask")
    failures += not refuses("one.mask, byte 16: a mask of 186 tokens, but the dataset has 180", train)
    failures += not refuses("one.mask, byte 16", ["data", "inspect", "one"])
    os.remove("one.mask")
    failures += not refuses("one.mask: No such file or directory (data.loss_mask needs the mask", train)
    failures += not refuses("; set data.loss_mask=false to count all tokens)", train)
    return failures


def main():
    failures = example()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        failures += bad_input() + bad_masks()
        os.chdir("/")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
