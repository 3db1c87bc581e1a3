#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of transformers, imported: their logits and greedy tokens, and equal tensors after export.

    test_models.py CUBOID LOGITS

Logits differ by at most 1e-5 of the largest from those of transformers (golden_NAME.txt, in fp32), and all greedy
tokens are the same. Export writes every tensor byte for byte, also from several files, in bf16 and in fp16."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import models  # noqa: E402

CUBOID, LOGITS = map(os.path.abspath, sys.argv[1:3])
HERE = os.path.dirname(os.path.abspath(__file__))
BOUND = 1e-5


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False,
                          timeout=100)
    if done.returncode != 0:
        sys.exit(f"{words}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def parse(text):
    """Rows of logits, and the greedy tokens."""
    lines = [line.split() for line in text.splitlines()]
    return ([[float(word) for word in line[1:]] for line in lines if line[0] == "logits"],
            [line[1:] for line in lines if line[0] == "greedy"][0])


def compare_logits(name):
    with open(f"{HERE}/golden_{name}.txt", encoding="utf-8") as file:
        expected, greedy = parse(file.read())
    logits, tokens = parse(run(LOGITS, f"{name}-ckpt", str(len(expected)), str(len(greedy)), *map(str, models.PROMPT)))
    largest = max(abs(value) for row in expected for value in row)
    worst = max(abs(a - b) for row, other in zip(expected, logits) for a, b in zip(row, other)) / largest
    if len(logits) != len(expected) or not worst <= BOUND:
        sys.exit(f"{name}: a logit differs by {worst:.2g} of the largest")
    if tokens != greedy:
        sys.exit(f"{name}: greedy tokens {tokens}\nbut transformers has {greedy}")
    return worst


def round_trip(name, config, dtype, files, *options):
    folder = f"{name}-{dtype}"
    if not os.path.exists(folder):
        models.write_model(folder, config, dtype, files)
        run(CUBOID, "checkpoint", "import", folder, "-o", f"{folder}-ckpt")
    run(CUBOID, "checkpoint", "export", f"{folder}-ckpt", "-o", f"{folder}-out", *options)
    if models.read_model(f"{folder}-out") != models.read_model(folder):
        sys.exit(f"{folder}: export(import(x)) differs from x")
    with open(f"{folder}-out/config.json", encoding="utf-8") as file:
        written = json.load(file)
    for key, value in config.items():
        if key not in ("architectures", "model_type", "n_inner") and written.get(key) != value:
            if key != "rope_scaling" or any(written[key].get(k) != v for k, v in value.items()):
                sys.exit(f"{folder}: config.json has {key} {written.get(key)}, not {value}")


def continues_on_any_layout():
    """One step from an imported model has the same loss on one rank and on four."""
    with open("recipe.yaml", "w", encoding="utf-8") as file:
        file.write("base: llama-ckpt/model.yaml\ntrain: {global_batch_size: 4, train_iters: 1}\n"
                   "optimizer: {lr: 1.0e-3}\nmodel: {seq_length: 32}\ndata: {mock_data: true}\n"
                   "checkpoint: {load: llama-ckpt, finetune: true, save: none}\ncluster: {threads_per_rank: 1}\n")
    losses = []
    for run_dir, keys in (("one", []), ("four", ["tp=2", "pp=2"]),
                          ("fresh", ["checkpoint.load=none", "checkpoint.finetune=false"])):
        run(CUBOID, "train", "recipe.yaml", f"logging.run_dir={run_dir}", *keys)
        with open(f"{run_dir}/metrics.jsonl", encoding="utf-8") as file:
            losses.append(json.loads(file.readline())["loss"])
    if not abs(losses[0] - losses[1]) < 1e-6 * losses[0] or abs(losses[0] - losses[2]) < 1e-3:
        sys.exit(f"losses on one rank, on four, and without the imported model: {losses}")


def grows_the_vocabulary():
    """Fine-tuning with a larger vocabulary begins with the rows of the checkpoint, then those of a new run, on any
    layout; moments are zero, although the checkpoint has some."""
    rows, more = models.VOCAB, 75
    layouts = [["tp=2", "pp=2"], ["tp=4", "dp=2", "parallel.zero_stage=3"], ["tp=2", "precision.params_dtype=bf16"], []]
    for name in ("llama", "qwen2", "gpt2"):
        with open("recipe.yaml", "w", encoding="utf-8") as file:
            file.write(f"base: {name}-ckpt/model.yaml\ntrain: {{global_batch_size: 2, train_iters: 0}}\n"
                       "optimizer: {lr: 1.0e-3}\ndata: {mock_data: true}\ncluster: {threads_per_rank: 1}\n")
        run(CUBOID, "train", "recipe.yaml", "logging.run_dir=small", f"checkpoint.load={name}-ckpt",
            "checkpoint.finetune=true", "train.train_iters=1")
        run(CUBOID, "checkpoint", "export", "small", "-o", "small-out")
        old = models.read_model("small-out")
        train = ["train", "recipe.yaml", f"model.vocab_size={more}"]
        run(CUBOID, *train, "logging.run_dir=new")
        run(CUBOID, "checkpoint", "export", "new", "-o", "new-out")
        new = models.read_model("new-out")
        for keys in layouts:
            printed = run(CUBOID, *train, "checkpoint.load=small/checkpoints", "checkpoint.finetune=true",
                          "logging.run_dir=grown", *keys)
            if f"the last {more - rows} rows of the embedding" not in printed:
                sys.exit(f"{name} {keys}: new rows are not reported: {printed}")
            run(CUBOID, "checkpoint", "export", "grown", "-o", "grown-out", "--dtype", "fp32")
            for tensor, (dtype, shape, data) in models.read_model("grown-out").items():
                _, of, loaded = old[tensor]
                if (dtype, shape) != new[tensor][:2] or data != loaded + new[tensor][2][len(loaded):] or \
                        (of != shape and of != [rows, shape[1]]):
                    sys.exit(f"{name} {keys}: {tensor} is not the rows of the checkpoint, then those of a new run")
            differs = subprocess.run([CUBOID, "checkpoint", "diff", "new", "grown"], capture_output=True, text=True,
                                     check=False)
            if differs.returncode != 1 or "embedding.weight" not in differs.stdout or "optimizer." in differs.stdout:
                sys.exit(f"{name} {keys}: moments are not zero: {differs.stdout}{differs.stderr}")
            shutil.rmtree("grown")
            shutil.rmtree("grown-out")
        for size, keys, words in ((rows - 1, ["checkpoint.finetune=true"], f"; set model.vocab_size={rows}, or anot"),
                                  (more, [], "; with checkpoint.finetune=true the new rows of a larger vocabulary")):
            done = subprocess.run([CUBOID, *train[:2], f"model.vocab_size={size}", "checkpoint.load=small/checkpoints",
                                   "logging.run_dir=refused", *keys], capture_output=True, text=True, check=False)
            if done.returncode != 2 or words not in done.stderr:
                sys.exit(f"{name}, {size} rows: {done.returncode} {done.stderr}")
        for folder in ("small", "small-out", "new", "new-out"):
            shutil.rmtree(folder)


def reads_old_files():
    """Names without the prefix of the base model, constants of attention, a stored copy of the tied head, and several
    types in one file: the same values."""
    config = models.CASES["gpt2"]
    tensors = {name.removeprefix("transformer."): (dtype, shape, models.encode(models.values_of(name, shape), dtype))
               for i, (name, shape) in enumerate(models.shapes_of(config).items())
               for dtype in ["BF16" if i % 3 == 0 else "F32"]}
    tensors["h.0.attn.bias"] = "U8", [1, 1, 2, 2], b"\1\0\1\1"
    tensors["h.1.attn.masked_bias"] = "F32", [], bytes(4)
    tensors["lm_head.weight"] = tensors["wte.weight"]
    os.mkdir("old")
    with open("old/config.json", "w", encoding="utf-8") as file:
        json.dump(config, file)
    models.write_safetensors("old/model.safetensors", tensors)
    run(CUBOID, "checkpoint", "import", "old", "-o", "old-ckpt")
    run(CUBOID, "checkpoint", "export", "old-ckpt", "-o", "old-out")
    for name, (dtype, shape, data) in models.read_model("old-out").items():
        old = tensors[name.removeprefix("transformer.")]
        if old[0] == "BF16":
            old = "F32", old[1], b"".join(b"\0\0" + old[2][i:i + 2] for i in range(0, len(old[2]), 2))
        if old != (dtype, shape, data):
            sys.exit(f"old: {name} has other values")


def import_changed(name, change, keys, *options):
    """Imports a copy of a model with other tensors and keys of its config.json."""
    shutil.copytree(name, "changed")
    tensors = models.read_safetensors("changed/model.safetensors")
    change(tensors)
    models.write_safetensors("changed/model.safetensors", tensors)
    with open("changed/config.json", "w", encoding="utf-8") as file:
        json.dump({**models.CASES[name], **keys}, file)
    run(CUBOID, "checkpoint", "import", "changed", "-o", "changed-ckpt", *options)
    shutil.rmtree("changed")


def imports_heads_by_choice():
    """A tied model with another lm_head.weight: untied it is the model with this head, tied the one without. A head
    that is a copy, also in another type, is dropped without a choice."""
    def same(what, other):
        run(CUBOID, "checkpoint", "diff", "changed-ckpt", other)
        shutil.rmtree("changed-ckpt")
        print(f"{what}: the same as {other}")

    embedding = "model.embed_tokens.weight"
    import_changed("llama", lambda t: None, {"tie_word_embeddings": True}, "--untie")
    same("llama, tied in config.json, --untie", "llama-ckpt")
    import_changed("llama", lambda t: t.pop("lm_head.weight"), {"tie_word_embeddings": True})
    os.rename("changed-ckpt", "tied-ckpt")
    import_changed("llama", lambda t: None, {"tie_word_embeddings": True}, "--tie")
    same("llama, tied in config.json, --tie", "tied-ckpt")
    import_changed("llama", lambda t: t.update({"lm_head.weight": t[embedding]}), {"tie_word_embeddings": True})
    same("llama, a copy as its head", "tied-ckpt")

    def narrow_copy(tensors):
        _, shape, data = tensors[embedding]
        halves = b"".join(data[i + 2:i + 4] for i in range(0, len(data), 4))
        tensors["lm_head.weight"] = "BF16", shape, halves
        tensors[embedding] = "F32", shape, b"".join(b"\0\0" + halves[i:i + 2] for i in range(0, len(halves), 2))
    import_changed("llama", narrow_copy, {"tie_word_embeddings": True})
    shutil.rmtree("changed-ckpt")


def exports_uneven_heads():
    """transformers refuses a LlamaForCausalLM whose heads do not divide the hidden size; Mistral's it loads. The keys
    of yarn that transformers does not read are no obstacle."""
    config = {**models.CASES["mistral"], "sliding_window": None, "head_dim": 8, "num_attention_heads": 6,
              "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0}}
    models.HEADS = 6
    models.write_model("uneven", config)
    models.HEADS = 4
    run(CUBOID, "checkpoint", "import", "uneven", "-o", "uneven-ckpt")
    run(CUBOID, "checkpoint", "export", "uneven-ckpt", "-o", "uneven-out")
    with open("uneven-out/config.json", encoding="utf-8") as file:
        if json.load(file)["architectures"] != ["MistralForCausalLM"]:
            sys.exit("6 heads of 8 channels, hidden_size 16: not exported as MistralForCausalLM")
    done = subprocess.run([CUBOID, "checkpoint", "export", "uneven-ckpt", "-o", "llama-out", "--architecture",
                           "LlamaForCausalLM"], capture_output=True, text=True, check=False)
    if done.returncode != 2 or "num_attention_heads 6 cannot be expressed by LlamaForCausalLM" not in done.stderr:
        sys.exit(f"export of uneven heads as LlamaForCausalLM: {done.returncode} {done.stderr}")


def byte_alphabet():
    """The characters that stand for bytes in a byte-level vocabulary: themselves, or from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(0x100 + i) for i in range(len(others))]


def tokenizer_json(end):
    """Byte-level BPE: 256 bytes, "ab", and the end of a document."""
    return {"version": "1.0", "normalizer": None, "post_processor": None, "decoder": {"type": "ByteLevel"},
            "added_tokens": [{"id": end, "content": "<|endoftext|>", "single_word": False, "lstrip": False,
                              "rstrip": False, "normalized": False, "special": True}],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "vocab": {name: i for i, name in enumerate([*byte_alphabet(), "ab"])},
                      "merges": ["a b"]}}


def copies_the_tokenizer():
    """tokenizer.json and the files next to it; the end of a document is its token's id."""
    models.VOCAB, end = 260, 257
    models.write_model("words", {**models.CASES["llama"], "vocab_size": models.VOCAB})
    files = {"tokenizer.json": json.dumps(tokenizer_json(end)), "tokenizer_config.json": "{}", "unrelated.txt": "1"}
    for name, text in files.items():
        with open(f"words/{name}", "w", encoding="utf-8") as file:
            file.write(text)
    run(CUBOID, "checkpoint", "import", "words", "-o", "words-ckpt")
    generated = run(CUBOID, "generate", "words-ckpt", "--prompt", "abab", "--tokens", "3", "--temperature", "0")
    if not generated.startswith("abab"):
        sys.exit(f"generate from an imported model prints {generated}")
    run(CUBOID, "checkpoint", "export", "words-ckpt", "-o", "words-out")
    for name, text in files.items():
        path = f"words-out/{name}"
        if name == "unrelated.txt":
            if os.path.exists(path):
                sys.exit(f"{path} was copied")
            continue
        with open(path, encoding="utf-8") as file:
            if file.read() != text:
                sys.exit(f"{path} differs")
    os.rename("words-ckpt", "words-moved")
    if run(CUBOID, "generate", "words-moved", "--prompt", "abab", "--tokens", "3", "--temperature", "0") != generated:
        sys.exit("generate from a folder that was moved prints another text")
    run(CUBOID, "checkpoint", "export", "words-moved", "-o", "moved-out")
    for name in ("tokenizer.json", "config.json"):
        with open(f"words-out/{name}", encoding="utf-8") as file, open(f"moved-out/{name}", encoding="utf-8") as moved:
            if file.read() != moved.read():
                sys.exit(f"export of a folder that was moved has another {name}")
    with open("words-out/config.json", encoding="utf-8") as file:
        if json.load(file)["eos_token_id"] != end:
            sys.exit("words-out/config.json has another end of a document")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        os.remove(f"words-moved/{name}")
    run(CUBOID, "checkpoint", "export", "words-moved", "-o", "given-out", "--tokenizer", "words/tokenizer.json")
    same_files("words", "given-out", ["tokenizer.json", "tokenizer_config.json"])


def same_files(one, other, names):
    for name in names:
        with open(f"{one}/{name}", "rb") as file, open(f"{other}/{name}", "rb") as copy:
            if file.read() != copy.read():
                sys.exit(f"{other}/{name} differs from that of {one}")


def reads_sentencepiece():
    """tokenizer.model, with a tokenizer.json that Cuboid cannot read: Llama 2 and Mistral. Export has both."""
    models.VOCAB = 400
    files = {"tokenizer.json": json.dumps({"model": {"type": "BPE", "vocab": {}, "byte_fallback": True}}),
             "tokenizer_config.json": "{}"}
    models.write_model("pieces", {**models.CASES["mistral"], "vocab_size": models.VOCAB})
    shutil.copy(f"{HERE}/../fixtures/tokenizers/bpe.model", "pieces/tokenizer.model")
    for kind in ("Llama2Tokenizer", "GPTSentencePieceTokenizer"):
        for name, text in files.items():
            with open(f"pieces/{name}", "w", encoding="utf-8") as file:
                file.write(text)
        done = subprocess.run([CUBOID, "checkpoint", "import", "pieces", "-o", "ckpt"], capture_output=True, text=True,
                              check=True)
        if "this build lacks" in done.stderr:
            break
        if f"tokenizer.model is used, as {kind}" not in done.stderr or \
                f"tokenizer_type: {kind}\n  tokenizer_model: ckpt/tokenizer.model\n" not in done.stdout:
            sys.exit(f"{kind}: {done.stdout}{done.stderr}")
        os.rename("ckpt", "moved")
        generated = run(CUBOID, "generate", "moved", "--prompt", "ab c", "--tokens", "3", "--temperature", "0")
        run(CUBOID, "checkpoint", "export", "moved", "-o", "out")
        same_files("pieces", "out", [*files, "tokenizer.model"])
        if not generated.startswith("ab c"):
            sys.exit(f"{kind}: generate prints {generated}")
        files["tokenizer_config.json"] = json.dumps({"add_bos_token": False, "model_max_length": 10**30})
        shutil.rmtree("moved")
        shutil.rmtree("out")


def exports_gpt2_files():
    """vocab.json and merges.txt of a run, and the class that AutoTokenizer needs for another architecture."""
    with open(f"{HERE}/../fixtures/tokenizers/gpt2.json", encoding="utf-8") as file:
        model = json.load(file)["model"]
    with open("words.json", "w", encoding="utf-8") as file:
        json.dump(model["vocab"], file)
    with open("pairs.txt", "w", encoding="utf-8") as file:
        file.write("".join(f"{pair}\n" for pair in ["#version: 0.2", *model["merges"]]))
    with open("gpt2.yaml", "w", encoding="utf-8") as file:
        file.write("name: bpe\nmodel: {num_layers: 1, hidden_size: 8, num_attention_heads: 2, seq_length: 8, "
                   f"vocab_size: {len(model['vocab'])}}}\ntrain: {{global_batch_size: 1, train_iters: 0}}\n"
                   "optimizer: {lr: 0.1}\ndata: {mock_data: true}\ntokenizer: {tokenizer_type: GPT2BPE, "
                   "vocab_file: words.json, merge_file: pairs.txt}\n")
    run(CUBOID, "train", "gpt2.yaml")
    if "with tokenizer" not in run(CUBOID, "checkpoint", "export", "runs/bpe", "-o", "bpe-out"):
        sys.exit("export does not mention the tokenizer")
    for name, copy in (("words.json", "vocab.json"), ("pairs.txt", "merges.txt")):
        os.rename(name, copy)
    same_files(".", "bpe-out", ["vocab.json", "merges.txt"])
    with open("bpe-out/tokenizer_config.json", encoding="utf-8") as file, \
            open("bpe-out/config.json", encoding="utf-8") as config:
        if json.load(file) != {"tokenizer_class": "GPT2Tokenizer"} or json.load(config)["eos_token_id"] != 0:
            sys.exit("bpe-out names another tokenizer")


def keeps_unknown_tokenizers():
    """A tokenizer.json that Cuboid cannot read is exported as it was imported."""
    models.VOCAB = 64
    models.write_model("other", models.CASES["llama"])
    with open("other/tokenizer.json", "w", encoding="utf-8") as file:
        file.write('{"model": {"type": "Unigram", "vocab": []}}')
    run(CUBOID, "checkpoint", "import", "other", "-o", "other-ckpt")
    if "with tokenizer" not in run(CUBOID, "checkpoint", "export", "other-ckpt", "-o", "other-out"):
        sys.exit("export does not mention the tokenizer")
    same_files("other", "other-out", ["tokenizer.json"])


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, config in models.CASES.items():
            models.write_model(name, config)
            printed = run(CUBOID, "checkpoint", "import", name, "-o", f"{name}-ckpt")
            with open(f"{name}-ckpt/model.yaml", encoding="utf-8") as file:
                if file.read() != printed:
                    sys.exit(f"{name}: model.yaml is not what was printed")
            print(f"{name}: {compare_logits(name):.1e} of the largest logit")
            round_trip(name, config, "F32", 3)
            round_trip(name, config, "BF16", 2)
            round_trip(name, config, "F16", 1, "--dtype", "fp16")
        continues_on_any_layout()
        grows_the_vocabulary()
        reads_old_files()
        imports_heads_by_choice()
        exports_uneven_heads()
        copies_the_tokenizer()
        reads_sentencepiece()
        keeps_unknown_tokenizers()
        exports_gpt2_files()


main()
