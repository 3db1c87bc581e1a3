#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cuboid generate: the greedy tokens of the forward pass of training, with the key/value cache and on several ranks;
batches.

    test_generate.py CUBOID LOGITS [MPIRUN|sample]        sample: fewer models, for a sanitizer

LOGITS (tests/huggingface/logits.c) recomputes all tokens for each new one; the test huggingface_models compares it with
transformers."""
import codecs
import json
import os
import subprocess
import sys
import tempfile

import inputs
import models

CUBOID, LOGITS = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
SAMPLE = sys.argv[3:4] == ["sample"]
LONG = "CUBOID_LONG_TESTS" in os.environ
MPIRUN = [] if SAMPLE else sys.argv[3:4]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
GREEDY = ("--temperature", "0")
codecs.register_error("each", lambda error: ("\ufffd", error.start + 1))  # U+FFFD for each byte, as in JSON
PROMPTS = ["Ocean", "", "a" * 100, "The quick brown fox"]
RECIPE = """
train: {train_iters: 0, micro_batch_size: 1, global_batch_size: 1, eval_interval: 0}
optimizer: {lr: 0.001}
data: {mock_data: true}
tokenizer: {tokenizer_type: byte}
model:
  num_layers: 2
  hidden_size: 16
  num_attention_heads: 4
  seq_length: 48
  init_method_std: 0.3
"""


def run(*words, program=CUBOID, prompt=b"", launcher=(), status=0):
    done = subprocess.run([*launcher, program, *words], input=prompt, capture_output=True, check=False, timeout=100,
                          env=ENVIRONMENT)
    if done.returncode != status:
        sys.exit(f"{words}: status {done.returncode}, expected {status}\n{done.stdout}{done.stderr}")
    return done.stdout if status == 0 else done.stderr.decode()


def generate(name, *words, **more):
    return run("generate", f"{name}-ckpt", "tokenizer.tokenizer_type=byte", *words, **more)


def import_model(name, config):
    models.write_model(name, config)
    run("checkpoint", "import", name, "-o", f"{name}-ckpt")


def recomputed(name, prompt, count):
    """The prompt and greedy tokens, each computed from all before it; the end of a document has no byte."""
    lines = run(f"{name}-ckpt", "1", str(count), *map(str, prompt), program=LOGITS).decode().splitlines()
    tokens = [int(word) for line in lines if line.startswith("greedy") for word in line.split()[1:]]
    return bytes([*prompt, *(token for token in tokens if token != inputs.END)]) + b"\n"


def check_greedy(name, prompt, count, layouts=("",)):
    expected = recomputed(name, prompt, count)
    for layout in layouts:
        words = (*layout.split(), "--no-stop", "--prompt", "-", "--tokens", str(count), *GREEDY)
        text = generate(name, *words, prompt=bytes(prompt))
        if text != expected:
            sys.exit(f"{name} {layout}: {list(text)}\nexpected {list(expected)}")


def imported():
    """Of every architecture, to the end of the context and past it: prompts of less than a chunk of 64 tokens, and
    of more."""
    layouts = {"gpt2": ["", "tp=2"], "llama": ["", "tp=2 pp=2", "pp=2"], "qwen3": ["", "tp=2"]}
    for name, config in models.CASES.items():
        import_model(name, {**config, "vocab_size": inputs.END + 1})
        if SAMPLE and name not in layouts:
            continue
        check_greedy(name, models.PROMPT, models.CONTEXT - 24 + 10, layouts.get(name, [""]))
        check_greedy(name, list(b"word " * 14), 20, layouts.get(name, [""]))


def initialized():
    """Of both families, with each feature that attention or a layer has, at random weights."""
    gpt = {"position_embedding_type": "learned_absolute"}
    llama = {"position_embedding_type": "rope", "num_query_groups": 2, "normalization": "RMSNorm",
             "activation": "swiglu", "add_bias_linear": "false", "tie_word_embeddings": "false"}
    cases = {"window": {"window_size": 9}, "alternating": {"window_size": 9, "window_attn_skip_freq": 2},
             "parallel": {"block_type": "parallel"}, "alibi": {"position_embedding_type": "alibi"},
             "norms": {"qk_layernorm": "true", "embed_layernorm": "true"},
             "caps": {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 2}}
    for family, keys in {"gpt": gpt, "llama": llama}.items():
        for number, (case, more) in enumerate(cases.items()):
            if SAMPLE and (number + len(family)) % 2 != 0:
                continue
            name = f"{family}-{case}"
            with open(f"{name}.yaml", "w", encoding="utf-8") as file:
                file.write(RECIPE + "".join(f"  {key}: {value}\n" for key, value in {**keys, **more}.items()))
            run("train", f"{name}.yaml", f"logging.run_dir={name}-run")
            os.rename(f"{name}-run/checkpoints/step-00000000", f"{name}-ckpt")
            layouts = ["tp=2", "pp=2"]  # of a feature, one for each family
            check_greedy(name, list(b"Ocean"), 60, ["", *(layouts if LONG else [layouts[(number + len(family)) % 2]])])


def launched():
    """Under mpirun, whose standard output may be a terminal: lines of JSON are the same there."""
    words = ("--prompts", "prompts", "--tokens", "8", *GREEDY)
    here = [json.loads(line) for line in generate("llama", *words).splitlines()]
    there = generate("llama", "tp=2", *words, launcher=(*MPIRUN, "-n", "2")).splitlines()
    if list(map(json.loads, there)) != here:
        sys.exit(f"llama under mpirun: {there}\nexpected {here}")
    why = "generate: --prompt -: only one of 2 processes has a standard input; use --prompt TEXT or --prompts FILE"
    text = generate("llama", "tp=2", "--prompt", "-", launcher=(*MPIRUN, "-n", "2"), status=2)
    if why not in text or text.count(why) != 1:
        sys.exit(f"llama under mpirun: expected \"{why}\", got\n{text}")


def batches():
    """Prompts of any length together have the texts that each has alone; past the context, too."""
    with open("prompts", "w", encoding="utf-8") as file:
        file.write("\n".join(PROMPTS) + "\n")
    with open("two-prompts", "w", encoding="utf-8") as file:
        file.write("\n".join(PROMPTS[:2]) + "\n")
    for name, config in inputs.BYTES.items():
        import_model(name, config)
        for layout in ((), ("tp=2",)):
            words = ("--tokens", "40", *GREEDY, *layout)
            lines = generate(name, "--prompts", "prompts", *words).splitlines()
            for prompt, line in zip(PROMPTS, map(json.loads, lines), strict=True):
                if layout and prompt != PROMPTS[-1] and not LONG:
                    continue
                alone = generate(name, "--prompt", prompt, *words).decode(errors="each")
                if line["prompt"] != prompt or prompt + line["text"] + "\n" != alone:
                    sys.exit(f"{name} {words}: {line}\nbut alone {alone!r}")
        check_samples(name)


def check_samples(name):
    """The tokens of a line do not depend on the others, nor on the layout; those of the first line are those of
    --prompt."""
    for sampling in (("--temperature", "0.9"), ("--top-k", "40"), ("--top-p", "0.9"),
                     ("--temperature", "1.3", "--top-k", "40", "--top-p", "0.9")):
        words = ("--tokens", "20", "--seed", "5", *sampling)
        lines = generate(name, "--prompts", "prompts", *words).splitlines()
        for more in (("--prompts", "two-prompts"), ("--prompts", "prompts", "tp=2"), ("--prompts", "prompts", "pp=2")):
            again = generate(name, *more, *words).splitlines()
            if again != lines[:len(again)] or len(again) < 2:
                sys.exit(f"{name} {words} {more}: {again}\nexpected {lines}")
        alone = generate(name, "--prompt", PROMPTS[0], *words).decode(errors="each")
        if PROMPTS[0] + json.loads(lines[0])["text"] + "\n" != alone:
            sys.exit(f"{name} {words}: {lines[0]}\nbut alone {alone!r}")


def windows_lines():
    """A file of prompts as some programs for Windows write it."""
    with open("windows", "wb") as file:
        file.write("\ufeffab\r\n\r\ncd\r\n".encode())
    lines = generate("llama-bytes", "--prompts", "windows", "--tokens", "1").splitlines()
    if [json.loads(line)["prompt"] for line in lines] != ["ab", "", "cd"]:
        sys.exit(f"prompts with line ends of Windows: {lines}")


def refuses():
    with open("long", "w", encoding="utf-8") as file:
        file.write("short\n" + "x" * 129 + "\n")
    open("empty", "w", encoding="utf-8").close()
    for words, why in (
            (("--prompts", "long"), "prompt 2 has 129 tokens, but the model has model.seq_length 128"),
            (("--prompts", "empty"), "--prompts empty: the file is empty; use a prompt per line"),
            (("--prompts", "nothing"), "--prompts: nothing"),
            (("--prompts", ""), "--prompts is empty; use a file with a prompt per line"),
            (("--prompts", "long", "--prompt", "x"), "--prompt and --prompts are mutually exclusive")):
        text = generate("llama-bytes", *words, status=2)
        if why not in text or len(text.splitlines()) != 1:
            sys.exit(f"generate {words}: expected one line, \"{why}\", got\n{text}")
    lost = ("tokenizer.tokenizer_type=HuggingFaceTokenizer", "tokenizer.tokenizer_model=gone/tokenizer.json")
    for words in (("generate", "llama-bytes-ckpt", *lost, "--prompt", "x"), ("evaluate", "llama-bytes-ckpt", *lost)):
        text = run(*words, status=2)
        why = ("tokenizer.tokenizer_model: gone/tokenizer.json: No such file or directory; restore the file, or use a "
               "copy of it: tokenizer.tokenizer_model=PATH")
        if why not in text or len(text.splitlines()) != 1:
            sys.exit(f"{words}: {text}")
    text = generate("llama-bytes", "--prompt", "x", "tp=3", status=2)
    if "is not divisible by parallel.tensor_parallel_size 3" not in text:
        sys.exit(f"generate tp=3: {text}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        imported()
        initialized()
        batches()
        windows_lines()
        if MPIRUN:
            launched()
        refuses()
        os.chdir("/")


main()
