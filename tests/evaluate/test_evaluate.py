#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cuboid evaluate: losses of transformers, on several layouts, and what it refuses.

    test_evaluate.py CUBOID [MPIRUN]

Losses differ by at most 1e-6 from those of transformers in double precision (expected.json), so perplexities do, too;
pipeline and data parallelism do not change a bit, since losses are added in the order of windows."""
import json
import math
import os
import subprocess
import sys
import tempfile

import inputs
import models
from fixtures import write_dataset, write_documents

CUBOID, MPIRUN = os.path.abspath(sys.argv[1]), sys.argv[2:3]
BOUND = 1e-6
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def run(*words, launcher=(), status=0):
    done = subprocess.run([*launcher, CUBOID, *words], capture_output=True, text=True, errors="replace", check=False,
                          timeout=100, env=ENVIRONMENT)
    if done.returncode != status:
        sys.exit(f"{words}: status {done.returncode}, expected {status}\n{done.stdout}{done.stderr}")
    return done.stdout if status == 0 else done.stderr


def evaluate(*words, launcher=()):
    return json.loads(run("evaluate", *words, "--json", launcher=launcher))


def compare(name, result, expected):
    if result["tokens"] != expected["tokens"]:
        sys.exit(f"{name}: {result['tokens']} tokens, expected {expected['tokens']}")
    if not abs(result["loss"] - expected["loss"]) <= BOUND * expected["loss"]:
        sys.exit(f"{name}: loss {result['loss']}, but transformers has {expected['loss']}")
    if not math.isclose(result["perplexity"], math.exp(expected["loss"]), rel_tol=1e-5):
        sys.exit(f"{name}: perplexity {result['perplexity']}")


def import_models(cases):
    for name, config in cases.items():
        models.write_model(name, config)
        run("checkpoint", "import", name, "-o", f"{name}-ckpt")


def streams(expected):
    """Any layout: in batches of one window and of several, also when the last batch is not full."""
    layouts = {"gpt2": ["tp=2", "train.global_batch_size=4 train.micro_batch_size=2"],
               "llama3": ["pp=2 train.global_batch_size=4",
                          "dp=2 parallel.zero_stage=3 train.global_batch_size=4",
                          "dp=3 pp=2 parallel.zero_stage=1 train.global_batch_size=3"],
               "qwen3": ["dp=2 train.global_batch_size=4", "pp=2 tp=2 dp=2 train.global_batch_size=2 "
                         "parallel.sequence_parallel=true pipeline.schedule=zb-h1"]}
    for name in inputs.STREAM:
        one = evaluate(f"{name}-ckpt", "--data", "stream")
        compare(name, one, expected[name])
        if one["windows"] != 6 or one["documents"] != 1 or one["bits_per_byte"] is not None:
            sys.exit(f"{name}: {one}")
        for layout in layouts[name]:
            other = evaluate(f"{name}-ckpt", "--data", "stream", *layout.split())
            compare(f"{name} {layout}", other, expected[name])
            if "tp=" not in layout and "micro" not in layout and other["loss"] != one["loss"]:
                sys.exit(f"{name} {layout}: loss {other['loss']} is not bit-identical to {one['loss']}")
    if MPIRUN:
        other = evaluate("qwen3-ckpt", "--data", "stream", "dp=2", "train.global_batch_size=2",
                         launcher=(*MPIRUN, "-n", "2"))
        compare("qwen3 under mpirun", other, expected["qwen3"])


def documents(expected):
    """Each document alone, and the size of its text."""
    size = sum(len(text.encode()) for text in inputs.TEXTS)
    for name in inputs.BYTES:
        words = (f"{name}-ckpt", "tokenizer.tokenizer_type=byte", "--data", "documents")
        result = evaluate(*words, "--by-document", "train.global_batch_size=3")
        compare(name, result, expected[name])
        bits = expected[name]["loss"] * expected[name]["tokens"] / (math.log(2) * size)
        if result["bytes"] != size or not math.isclose(result["bits_per_byte"], bits, rel_tol=1e-5):
            sys.exit(f"{name}: {result['bytes']} bytes, {result['bits_per_byte']} bits per byte; expected {size}, "
                     f"{bits}")
        # As one stream, all tokens but the first are predicted: the ends of documents, too.
        stream = evaluate(*words)
        if stream["tokens"] != sum(map(len, inputs.DOCUMENTS)) - 1 or stream["bytes"] != size - 1:
            sys.exit(f"{name}: as a stream {stream}")


def splits():
    """A run: its split, its layout, and the loss that training has reported for the same windows."""
    write_dataset("train", inputs.IDS[:400])
    write_dataset("valid", inputs.IDS[:4 * 64 + 1])
    with open("recipe.yaml", "w", encoding="utf-8") as file:
        file.write("name: run\nmodel: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, vocab_size: 64, "
                   "seq_length: 64}\ntrain: {global_batch_size: 4, train_iters: 3, eval_interval: 3, eval_iters: 1}\n"
                   "data: {train: train, valid: valid}\noptimizer: {lr: 1.0e-2}\ntokenizer: {tokenizer_type: none}\n"
                   "parallel: {data_parallel_size: 2}\n")
    run("train", "recipe.yaml")
    with open("runs/run/metrics.jsonl", encoding="utf-8") as file:
        trained = json.loads(file.readlines()[-1])["valid_loss"]
    for model in ("recipe.yaml", "runs/run", "runs/run/checkpoints", "runs/run/checkpoints/step-00000003"):
        result = evaluate(model)
        if result["step"] != 3 or result["windows"] != 4 or not math.isclose(result["loss"], trained, rel_tol=1e-12):
            sys.exit(f"{model}: {result}, but training has valid_loss {trained}")
    # With ZeRO the checkpoint has shards, and each rank holds whole weights to evaluate.
    for stage in (1, 3):
        run("train", "recipe.yaml", f"name=zero-{stage}", f"parallel.zero_stage={stage}")
        with open(f"runs/zero-{stage}/metrics.jsonl", encoding="utf-8") as file:
            valid = json.loads(file.readlines()[-1])["valid_loss"]
        for layout in ([], ["dp=1", "parallel.zero_stage=0"], ["dp=4"]):
            result = evaluate(f"runs/zero-{stage}", *layout)
            if not math.isclose(result["loss"], valid, rel_tol=1e-12):
                sys.exit(f"zero_stage {stage}, {layout}: {result}, but training has valid_loss {valid}")
    # Documents 7 and 8 of ten, and the last one.
    write_documents("ten", [[i] * (10 + i) for i in range(10)])
    for split, tokens in (("valid", 17 + 18 - 1), ("test", 19 - 1)):
        result = evaluate("runs/run", "data.train=ten", "data.valid=[]", "data.split=70, 20, 10", "--split", split)
        if result["tokens"] != tokens:
            sys.exit(f"--split {split}: {result}, expected {tokens} tokens")
    text = run("evaluate", "runs/run")
    if f"loss           {trained:.6f}\n" not in text or "split valid: 1 document, 256 predicted tokens" not in text:
        sys.exit(f"evaluate prints\n{text}")


def beginnings():
    """--by-document begins with bos_token, also if the tokenizer does not add it, as if the documents had it."""
    texts = [[(7 * i + 3 * k) % 400 + 50 for k in range(40 + 25 * i)] for i in range(4)]
    with open(os.path.join(inputs.HERE, "..", "fixtures", "tokenizers", "llama3.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    tokenizer["post_processor"] = None
    os.mkdir("bos")
    with open("bos/tokenizer.json", "w", encoding="utf-8") as file:
        json.dump(tokenizer, file)
    run("train", "recipe.yaml", "name=bos", "model.vocab_size=461")
    words = ("--by-document", "tokenizer.tokenizer_type=HuggingFaceTokenizer", "tokenizer.tokenizer_model=bos")
    write_documents("texts", texts)
    for config, begin in [({"bos_token": "<|begin_of_text|>"}, 0), ({"bos_token": None}, 1), ({}, 1)]:
        with open("bos/tokenizer_config.json", "w", encoding="utf-8") as file:
            json.dump({**config, "eos_token": "<|end_of_text|>"}, file)
        write_documents("begun", [[begin, *ids] for ids in texts])
        result = evaluate("runs/bos", *words, "--data", "texts")
        other = evaluate("runs/bos", "--data", "begun", "data.pack_documents=true")
        if result["tokens"] != sum(map(len, texts)) or not math.isclose(result["loss"], other["loss"], rel_tol=1e-12):
            sys.exit(f"{config}: {result}, expected {other}")


def conversations():
    """With packed documents and a loss mask, the loss that training reports for the same conversations."""
    with open("chat.jsonl", "w", encoding="utf-8") as file:
        for i in range(18):
            file.write(json.dumps({"prompt": "q" * (1 + i % 5), "completion": "answer"[i % 4:] * (1 + i % 3)}) + "\n")
    run("data", "prepare", "chat.jsonl", "-o", "chat", "--chat-template", "plain")
    keys = ["data.train=chat", "data.valid=chat", "data.loss_mask=true", "data.pack_documents=true", "name=chat",
            "data.reset_attention_mask=true", "data.reset_position_ids=true", "tokenizer.tokenizer_type=byte",
            "model.vocab_size=257", "train.train_iters=1", "train.eval_interval=1",
            "train.global_batch_size=4"]  # all packs
    run("train", "recipe.yaml", *keys)
    with open("runs/chat/metrics.jsonl", encoding="utf-8") as file:
        trained = json.loads(file.readlines()[-1])["valid_loss"]
    result = evaluate("runs/chat")
    if not math.isclose(result["loss"], trained, rel_tol=1e-6) or result["documents"] != 18:
        sys.exit(f"conversations: {result}, but training has valid_loss {trained}")
    if result["bytes"] != sum(len("answer"[i % 4:]) * (1 + i % 3) for i in range(18)):
        sys.exit(f"conversations: {result['bytes']} bytes of answers")
    # An imported model's recipe has mock data, which --data replaces: no key of data is reported to have no effect.
    done = subprocess.run([CUBOID, "evaluate", "llama-bytes-ckpt", "tokenizer.tokenizer_type=byte", "--data", "chat",
                           "data.pack_documents=true", "data.loss_mask=true", "--json"], capture_output=True, text=True,
                          check=False, env=ENVIRONMENT)
    if done.returncode != 0 or done.stderr != "" or json.loads(done.stdout)["bytes"] != result["bytes"]:
        sys.exit(f"conversations with an imported model: {done.returncode} {done.stdout}{done.stderr}")


def tasks(expected):
    """Every choice of lm-evaluation-harness's rules on 50 items, and its accuracies."""
    for name in inputs.BYTES:
        words = (f"{name}-ckpt", "tokenizer.tokenizer_type=byte", "--task", f"{inputs.HERE}/items.jsonl")
        for layout in ([], ["train.global_batch_size=8", "dp=2", "pp=2"]):
            result = evaluate(*words, "--samples", "samples.jsonl", *layout)
            with open("samples.jsonl", encoding="utf-8") as file:
                items = [json.loads(line) for line in file]
            os.remove("samples.jsonl")
            wanted = expected[name]["items"]
            for ours, theirs in zip(items, wanted, strict=True):
                close = all(math.isclose(a, b, rel_tol=1e-5)
                            for a, b in zip(ours.pop("log_likelihood"), theirs["log_likelihood"], strict=True))
                if not close or any(theirs[key] != value for key, value in ours.items()):
                    sys.exit(f"{name}: {ours}, expected {theirs}")
            for metric in ("acc", "acc_norm", "acc_bytes"):
                right = sum(item[metric] == item["correct"] for item in wanted)
                if result["items"] != 50 or result[metric] != right / 50:
                    sys.exit(f"{name}: {metric} {result[metric]}, expected {right} / 50")


ARC = '{"question": "Q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "A"}'


ITEMS = [  # the second line of a task, what the error says
    ("{", "task:2: not JSON"),
    ("[]", "task:2: not an object; use {...}"),
    ('{"text": "x"}', 'task:2: neither "endings" (HellaSwag) nor "question" (ARC)'),
    (ARC.replace('"answerKey": "A"', '"id": 1'), 'task:2: "answerKey" is missing; use the label of the right'),
    (ARC.replace('"answerKey": "A"', '"answerKey": 1'), 'task:2: "answerKey" is 1; use the label of the right'),
    (ARC.replace('"label": ["A", "B"]', '"label": ["A", "A"]'),
     'task:2: choices 0 and 1 both have the label A; use a label for each'),
    (ARC.replace('"answerKey": "A"', '"answerKey": "\\u001b[31m"'),
     'task:2: "answerKey" \\x1b[31m is not the label of a choice'),
    (ARC.replace('["a", "b"]', '["a"]'), 'task:2: "choices" has 1 texts and 2 labels; use a label for each text'),
    (ARC.replace('["a", "b"]', '["a"]').replace('["A", "B"]', '["A"]'),
     'task:2: "choices" has 1 choice; use a list of 2 to 64'),
    (ARC.replace('["a", "b"]', "[]").replace('["A", "B"]', "[]"), 'task:2: "choices" has 0 choices; use a list of'),
    (ARC.replace('"choices":', '"choices": null, "other":'), 'task:2: "choices" is null; use {"text": [...], "label"'),
    (ARC.replace('"choices"', '"other"'), 'task:2: "choices" is missing; use {"text": [...], "label": [...]}'),
    (ARC.replace('{"text": ["a", "b"], "label": ["A", "B"]}', "[]"), 'task:2: "choices" has 0 choices; use a list'),
    (ARC.replace('"label": ["A", "B"]', '"label": "AB"'), 'task:2: "choices" is {"text":["a","b"],"label":"AB"}; use'),
    ('{"question": {"stem": "Q", "choices": null}, "answerKey": "A"}',
     'task:2: "choices" is null; use a list of {"text": ..., "label": ...}'),
    ('{"question": {"stem": "Q", "choices": [{"text": "a", "label": "A"}, "b"]}, "answerKey": "A"}',
     'task:2: "choices": the text of element 1 is missing; use a string'),
    (ARC.replace('"b"', "7"), 'task:2: "choices": the text of element 1 is 7; use a string'),
    (ARC.replace('"A", "B"', '"A", null'), 'task:2: "choices": the label of element 1 is null; use a string'),
    (ARC.replace('"b"', '""'), 'task:2: "choices": the text of element 1 is ""; use a string that is not empty'),
    ('{"endings": null, "ctx_a": "x", "ctx_b": "y", "activity_label": "z", "label": 0}',
     'task:2: "endings" is null; use a list of strings'),
    ('{"endings": ["a", "  "], "ctx_a": "x", "ctx_b": "y", "activity_label": "z", "label": 0}',
     'task:2: "endings": element 1 is "  "; use a string that is not empty'),
    ('{"endings": ["a", 7], "ctx_a": "x", "ctx_b": "y", "activity_label": "z", "label": 0}',
     'task:2: "endings": element 1 is 7; use a string'),
    ('{"endings": ["a", "b"], "ctx_a": "x", "ctx_b": "y", "activity_label": "z", "label": ""}',
     'task:2: "label" is ""; use the index of the right ending, from 0'),
    ('{"endings": ["a", "b"], "ctx_a": "x", "ctx_b": "y", "activity_label": "z", "label": 2}',
     'task:2: "label" 2 is not one of the 2 endings; use 0 to 1'),
    ('{"endings": ["a", "b"], "ctx_b": "y", "label": 1, "activity_label": "z"}',
     'task:2: "ctx_a" is missing; use a string'),
    (ARC.replace('"Q"', f'"{"q" * 120}"'),
     "task:2: choice 0 with its context has 140 tokens, but the model has model.seq_length 128; use at most 129"),
]


def refuses_items():
    """The line and what is wrong with it; the first line is always right."""
    words = ("llama-bytes-ckpt", "tokenizer.tokenizer_type=byte", "--task")
    for line, why in ITEMS:
        with open("task", "w", encoding="utf-8") as file:
            file.write(f"{ARC}\n{line}\n")
        text = run("evaluate", *words, "task", status=2)
        if why not in text or len(text.splitlines()) > 2:
            sys.exit(f"item {line}: expected \"{why}\", got\n{text}")
    with open("task", "w", encoding="utf-8", newline="") as file:
        file.write(f"\ufeff{ARC}\r\n\r\n{ARC}\r\n")  # as some programs for Windows write it
    if evaluate(*words, "task")["items"] != 2:
        sys.exit("a byte order mark or line ends of Windows are not accepted")
    with open("task", "w", encoding="utf-8") as file:
        file.write("\n")
    for words, why in (((*words, "task"), "task: no items"), ((*words, "nothing"), "--task: nothing"),
                       (("gpt2-ckpt", "--task", "task"), "--task needs a tokenizer"),
                       ((*words, "task", "--split", "test"), "--task replaces the dataset"),
                       (("gpt2-ckpt", "--samples", "x"), "add --task FILE")):
        text = run("evaluate", *words, status=2)
        if why not in text:
            sys.exit(f"evaluate {words}: expected \"{why}\", got\n{text}")


def one_item():
    """A single item has no standard error."""
    with open("task", "w", encoding="utf-8") as file:
        file.write(f"{ARC}\n")
    words = ("llama-bytes-ckpt", "tokenizer.tokenizer_type=byte", "--task", "task")
    text, result = run("evaluate", *words), evaluate(*words)
    if text.count(" (standard error n/a)\n") != 3 or result["acc_stderr"] is not None:
        sys.exit(f"one item: {result}\n{text}")


def keeps_files():
    """--samples refuses a file that exists: before the evaluation, with one line of rank 0, and it is unchanged."""
    with open("task", "w", encoding="utf-8") as file:
        file.write(f"{ARC}\n")
    model = ("llama-bytes-ckpt", "tokenizer.tokenizer_type=byte", "--task", "task")
    for name in ("llama-bytes-ckpt/manifest.json", "documents.bin"):
        kept = os.stat(name)
        text = run("evaluate", *model, "--samples", name, status=2)
        if text != f"cuboid: evaluate: --samples {name} exists; remove it, or name another file\n":
            sys.exit(f"--samples {name}: {text}")
        now = os.stat(name)
        if (now.st_ino, now.st_mtime_ns, now.st_size) != (kept.st_ino, kept.st_mtime_ns, kept.st_size):
            sys.exit(f"--samples {name}: the file has changed")
    if MPIRUN:
        text = run("evaluate", *model, "dp=2", "train.global_batch_size=2", "--samples", "documents.bin", status=2,
                   launcher=(*MPIRUN, "-n", "2"))
        if text.count("documents.bin exists; remove it") != 1:
            sys.exit(f"--samples under mpirun: {text}")


def refuses():
    write_dataset("one", [1])
    write_dataset("large", [1, 64, 2])
    cases = [
        ([], "no model given"),
        (["nothing"], "nothing"),
        (["gpt2-ckpt"], "data.mock_data has no documents to evaluate; use --data PREFIX"),
        (["gpt2-ckpt", "--data", "nothing"], "nothing.idx"),
        (["gpt2-ckpt", "--data", ""], "evaluate: --data is empty; use the prefix of a dataset"),
        (["gpt2-ckpt", "--task", ""], "evaluate: --task is empty; use a file with an item on each line"),
        ([""], '"" is no checkpoint; use a checkpoint, a directory of checkpoints or a run directory'),
        (["gpt2-ckpt", "--data", "one"], "one: 1 token, nothing to predict; use a dataset of at least two tokens"),
        (["gpt2-ckpt", "--data", "large"], "large.bin: document 0, position 1"),
        (["gpt2-ckpt", "--data", "one", "--split", "test"], "use one of them"),
        (["runs/run", "--split", "train"], "--split train is invalid; use valid or test"),
        (["runs/run", "--split", "test"], "with data.valid there is no test split"),
        (["gpt2-ckpt", "--data", "stream", "--by-document"], "set tokenizer.tokenizer_type"),
        (["gpt2-ckpt", "--data", "stream", "model.hidden_size=32"], "model.hidden_size 16, but the recipe has 32"),
        (["gpt2-ckpt", "--data", "stream", "cluster.device=dry"], "computes nothing"),
        (["gpt2-ckpt", "--dta", "stream"], "did you mean --data?"),
        (["runs/run", "data.train=train", "data.valid=[]", "train.eval_interval=0"],
         "--split valid has 0 of the 1 documents of train"),
    ]
    for words, why in cases:
        text = run("evaluate", *words, status=2)
        if why not in text or len(text.splitlines()) > 2:
            sys.exit(f"evaluate {words}: expected \"{why}\", got\n{text}")


def main():
    with open(f"{inputs.HERE}/expected.json", encoding="utf-8") as file:
        expected = json.load(file)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        import_models({**inputs.STREAM, **inputs.BYTES})
        write_dataset("stream", inputs.IDS)
        write_documents("documents", inputs.DOCUMENTS)
        streams(expected)
        documents(expected)
        splits()
        beginnings()
        conversations()


        tasks(expected)
        refuses()
        refuses_items()
        one_item()
        keeps_files()
        os.chdir("/")


main()
