#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning of imported models on conversations, on one rank and on eight, compared with transformers.

    test_finetune.py CUBOID

golden_finetune.txt has its losses, gradient norms and weights: make_finetune.py computes them in double precision,
each conversation as a sequence of its own. Here they are packed, in fp32."""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import finetune  # noqa: E402
import models  # noqa: E402

CUBOID = os.path.abspath(sys.argv[1])
HERE = os.path.dirname(os.path.abspath(__file__))
BOUND = 1e-5  # of losses and norms, relative; of weights, absolute


def run(*words):
    done = subprocess.run([CUBOID, *words], capture_output=True, text=True, errors="replace", check=False, timeout=100)
    if done.returncode != 0:
        sys.exit(f"{words}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def read_golden(name):
    golden = {"loss": [], "norm": [], "weight": []}
    with open(f"{HERE}/golden_finetune.txt", encoding="utf-8") as file:
        for line in file:
            words = line.split()
            if words[:2] == [name, "shifted"]:
                golden["shifted"] = float(words[2])
            elif words[0] == name:
                golden[words[1]].append((*words[2:-1], float(words[-1])))
    return golden


def train(name, run_dir, *keys):
    with open("recipe.yaml", "w", encoding="utf-8") as file:
        file.write(finetune.RECIPE.replace("NAME", name))
    run("train", "recipe.yaml", f"logging.run_dir={run_dir}", *keys)
    with open(f"{run_dir}/metrics.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def compare_steps(what, steps, golden):
    worst = 0.0
    for key, column in (("loss", "loss"), ("norm", "grad_norm")):
        for step, ((_, expected), line) in enumerate(zip(golden[key], steps, strict=True), 1):
            worst = max(worst, abs(line[column] - expected) / expected)
            if not worst <= BOUND:
                sys.exit(f"{what}, step {step}: {column} {line[column]}, but transformers has {expected}")
    counted = sum(sum(counts) for _, counts in map(finetune.chatml, finetune.CONVERSATIONS))
    if any(line["loss_tokens"] != counted for line in steps):
        sys.exit(f"{what}: {steps[0]['loss_tokens']} tokens count, not {counted}")
    # The comparison is worthless unless it finds a mask that is shifted by a token.
    if not abs(steps[0]["loss"] - golden["shifted"]) > 100 * BOUND * golden["shifted"]:
        sys.exit(f"{what}: a shifted mask has nearly the same loss, {golden['shifted']}")
    return worst


def compare_weights(what, run_dir, golden):
    run("checkpoint", "export", f"{run_dir}/checkpoints", "-o", f"{run_dir}-out")
    tensors, worst = models.read_model(f"{run_dir}-out"), 0.0
    for name, element, expected in golden["weight"]:
        value = struct.unpack_from("<f", tensors[name][2], 4 * int(element))[0]
        worst = max(worst, abs(value - expected))
        if not worst <= BOUND:
            sys.exit(f"{what}: element {element} of {name} is {value}, but transformers has {expected}")
    return worst


def prepare():
    """The dataset does not depend on the number of threads."""
    with open("tokenizer.json", "w", encoding="utf-8") as file:
        json.dump(finetune.tokenizer_json(), file)
    finetune.write_conversations("chat.jsonl")
    for prefix, threads in (("chat", "1"), ("other", "3")):
        run("data", "prepare", "chat.jsonl", "-o", prefix, "--tokenizer", "hf", "--tokenizer-model", "tokenizer.json",
            "--chat-template", "chatml", "--seq-length", str(finetune.SEQUENCE), "--threads", threads)
    for ending in ("bin", "idx", "mask"):
        with open(f"chat.{ending}", "rb") as one, open(f"other.{ending}", "rb") as other:
            if one.read() != other.read():
                sys.exit(f"chat.{ending} depends on the number of threads")
    with open("chat.bin", "rb") as file:
        ids = [i for (i,) in struct.iter_unpack("<H", file.read())]
    if ids != [i for conversation in finetune.CONVERSATIONS for i in finetune.chatml(conversation)[0]]:
        sys.exit("chat.bin has other ids")


def write_files(folder, files):
    for name, content in files.items():
        with open(f"{folder}/{name}", "w", encoding="utf-8") as file:
            file.write(content if isinstance(content, str) else json.dumps(content))
        os.chmod(f"{folder}/{name}", 0o600)


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def expect(what, seen, expected):
    if seen != expected:
        sys.exit(f"{what}: {seen}, expected {expected}")


def carries_the_files():
    """A run has what it needs of the model that it began with, whose folder may disappear: the tokenizer, the ids that
    end a text, the length of its context. The template is that of the conversations, and its end of an answer ends a
    text. Copies keep the mode of the original."""
    config = {**finetune.CASES["llama"], "max_position_embeddings": 200, "bos_token_id": 1, "eos_token_id": 257,
              "pad_token_id": 3, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    models.write_model("carried", config)
    write_files("carried", {"tokenizer.json": finetune.tokenizer_json(), "tokenizer_config.json": {"a": 10 ** 30},
                            "generation_config.json": {"eos_token_id": [257, 5], "temperature": 0.7},
                            "chat_template.jinja": "{{ messages }}"})
    run("checkpoint", "import", "carried", "-o", "carried-ckpt")
    run("checkpoint", "export", "carried-ckpt", "-o", "carried-out")
    for name in ("generation_config.json", "chat_template.jinja", "tokenizer.json"):
        with open(f"carried/{name}", "rb") as file, open(f"carried-out/{name}", "rb") as copy:
            expect(f"{name} of an export", copy.read(), file.read())
    train("carried", "carried-run", "tp=2", "train.train_iters=1")
    run("checkpoint", "reshard", "carried-run", "-o", "resharded", "tp=1")
    for path in ("carried", "carried-ckpt", "carried-out"):
        shutil.rmtree(path)
    os.mkdir("elsewhere")
    os.rename("carried-run", "elsewhere/moved")
    os.chdir("elsewhere")
    end = finetune.END_MESSAGE
    expect("a text", run("generate", "moved", "--prompt", "abab", "--tokens", "1", "--temperature", "0")[:4], "abab")
    run("evaluate", "moved", "--data", "../chat")
    run("train", "moved/recipe.yaml", "logging.run_dir=moved", "data.train=../chat", "train.train_iters=2")
    run("train", "moved/recipe.yaml", "logging.run_dir=next", "checkpoint.load=moved/checkpoints", "data.train=none",
        "data.mock_data=true", "data.loss_mask=false", "data.pack_documents=false", "data.split=98,1,1", "tp=1",
        "data.reset_attention_mask=false", "data.reset_position_ids=false", "train.train_iters=1")
    for checkpoint in ("moved", "../resharded", "next"):
        run("checkpoint", "export", checkpoint, "-o", "out")
        written, generation = read_json("out/config.json"), read_json("out/generation_config.json")
        for key in ("max_position_embeddings", "bos_token_id", "pad_token_id"):
            expect(f"{checkpoint}: {key}", written[key], config[key])
        expect("rope_scaling", written["rope_scaling"]["original_max_position_embeddings"], 200)
        expect(f"{checkpoint}: ends", written["eos_token_id"], [end, 257, 5])
        expect(f"{checkpoint}: generation_config.json", generation,
               {"bos_token_id": 1, "pad_token_id": 3, "eos_token_id": [end, 257, 5], "temperature": 0.7})
        expect(f"{checkpoint}: tokenizer", read_json("out/tokenizer.json"), finetune.tokenizer_json())
        with open("out/chat_template.jinja", encoding="utf-8") as file:
            expect(f"{checkpoint}: template", file.read()[:32], "{# cuboid chat template chatml #}"[:32])
        expect(f"{checkpoint}: mode", oct(os.stat("out/tokenizer_config.json").st_mode), oct(0o100600))
        shutil.rmtree("out")
    os.chdir("..")


CHAIN = [*finetune.encode("\nWet!"), finetune.END_MESSAGE, *finetune.encode("no"), finetune.END]


def write_chain(folder, config):
    """A model without attention and MLP, whose greedy text is the chain: each row of the head is the embedding of the
    token before it, and embeddings have the same length, so their product is largest with itself."""
    tensors = {}
    for name, shape in models.shapes_of(config).items():
        values = [0.0] * models.elements_of(shape)
        if "norm" in name:
            values = [1.0] * len(values)
        tensors[name] = shape, values
    width = config["hidden_size"]
    embeddings = []
    for i in range(config["vocab_size"]):
        row = models.values_of(f"row {i}", [width, 1])
        embeddings.append([value / sum(v * v for v in row) ** 0.5 for value in row])
    head = [[0.0] * width for _ in embeddings]
    for before, after in zip(CHAIN, CHAIN[1:]):
        head[after] = [30 * value for value in embeddings[before]]
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"][0], sum(embeddings, [])
    tensors["lm_head.weight"] = tensors["lm_head.weight"][0], sum(head, [])
    os.mkdir(folder)
    write_files(folder, {"config.json": config, "tokenizer.json": finetune.tokenizer_json()})
    models.write_safetensors(f"{folder}/model.safetensors", {
        name: ("F32", shape, models.encode(values, "F32")) for name, (shape, values) in tensors.items()})


def stops_after_answers():
    """A text ends at the tokenizer's end of a document, at the ids of the model, at the end of an answer of the run's
    template, and before a text of --stop. With --chat-template the prompt is a message."""
    write_chain("chain", {**finetune.CASES["llama"], "eos_token_id": None})
    run("checkpoint", "import", "chain", "-o", "chain-ckpt")
    write_files("chain", {"generation_config.json": {"eos_token_id": [7, finetune.END_MESSAGE]}})
    run("checkpoint", "import", "chain", "-o", "ends-ckpt")
    train("chain", "chain-run", "train.train_iters=1", "optimizer.lr=1e-9")
    options = ["--tokens", "8", "--temperature", "0"]
    for checkpoint, words, text in (
            ("chain-ckpt", [], "Wet!<|im_end|>no"), ("ends-ckpt", [], "Wet!"), ("chain-run", [], "Wet!"),
            ("ends-ckpt", ["--no-stop"], "Wet!<|im_end|>no<|endoftext|>"),
            ("chain-run", ["--no-stop", "--stop", "x", "--stop", "nd|>n"], "Wet!<|im_e"),
            ("chain-run", ["--stop", "!?", "--stop", "et", "--stop", "t!"], "W")):
        printed = run("generate", checkpoint, "--prompt", "a\n", *options, *words)
        expect(f"{checkpoint} {words}", printed, f"a\n{text}\n")
    with open("prompts", "w", encoding="utf-8") as file:
        file.write("a\nb\n")
    for checkpoint, words, system in (("chain-run", ["auto"], []),
                                      ("chain-ckpt", ["chatml", "--system", "s"], [("system", "s")])):
        words = ["generate", checkpoint, *options, "--chat-template", *words]
        expect(f"{words}", run(*words, "--prompt", "a"), "Wet!\n")
        expect(f"{words}", [json.loads(line) for line in run(*words, "--prompts", "prompts").splitlines()],
               [{"prompt": prompt, "text": "Wet!", "tokens": 5, "stopped": True} for prompt in ("a", "b")])
        done = subprocess.run([CUBOID, *words, "--prompt", "a"], capture_output=True, text=True, check=True)
        asked = finetune.chatml([*system, ("user", "a")])[0]
        asked += [finetune.BEGIN_MESSAGE, *finetune.encode("assistant\n")]
        expect(f"{words}", f"prompt of {len(asked)} tokens" in done.stderr, True)
    for words, message in ((["--chat-template", "auto"], "chain-ckpt was not trained on data of data prepare --chat"),
                           (["--system", "s"], "--system is a message of a conversation; use it with --chat-template"),
                           (["--stop", ""], "--stop is empty; use a text, or remove it"),
                           (["--chat-template", "chatml", "--system", ""], "prompt 1: the message of the system is")):
        words = ["generate", "chain-ckpt", "--prompt", "a", *words]
        done = subprocess.run([CUBOID, *words], capture_output=True, text=True, check=False)
        expect(f"{words}: {done.stderr}", (done.returncode, message in done.stderr), (2, True))


def main():
    models.VOCAB, models.CONTEXT = finetune.VOCAB, finetune.SEQUENCE
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        prepare()
        for name, config in finetune.CASES.items():
            golden = read_golden(name)
            models.write_model(name, config)
            run("checkpoint", "import", name, "-o", f"{name}-ckpt")
            steps = compare_steps(name, train(name, f"{name}-one"), golden)
            weights = compare_weights(name, f"{name}-one", golden)
            wide = compare_steps(f"{name}, 8 ranks", train(name, f"{name}-wide", "dp=2", "tp=2", "pp=2"), golden)
            print(f"{name}: losses and norms differ by {steps:.1e}, on 8 ranks by {wide:.1e}; weights by {weights:.1e}")
        carries_the_files()
        stops_after_answers()


main()
