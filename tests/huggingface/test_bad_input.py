#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cuboid checkpoint import and export of what they must refuse: one line that names the file, the key or tensor and
its value, exit status 2, and nothing under the name of the output, or next to it.

    test_bad_input.py CUBOID [unlimited]       unlimited: a sanitizer needs more address space"""
import json
import math
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import finetune  # noqa: E402
import models  # noqa: E402
from fixtures import no_file_beyond, pending_signal  # noqa: E402

CUBOID = os.path.abspath(sys.argv[1])
MIB = 1 << 20


def command(*words, **options):
    return subprocess.run([CUBOID, "checkpoint", *words], capture_output=True, text=True, check=False, timeout=60,
                          **options)


def expect_refused(what, words, message, statuses=(2,), **options):
    """One line with the message, and no output."""
    check_refused(what, command(*words, "-o", "out", **options), message, statuses)


def check_refused(what, done, message, statuses=(2,)):
    lines = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]
    left = [name for name in os.listdir(".") if name.startswith("out")]
    if done.returncode not in statuses or len(lines) != 1 or message not in lines[0] or left:
        sys.exit(f"{what}: status {done.returncode}, {left} left, expected \"{message}\"\n{done.stderr}")


# ---- config.json: name of the model, changes of its keys, message ----
MISSING = object()
CONFIGS = [
    ("llama", {"architectures": ["BertModel"]}, 'architectures ["BertModel"] is not supported; supported are GPT2LM'),
    ("llama", {"architectures": [], "model_type": "llama"}, "architectures [] is not supported"),
    ("llama", {"model_type": "gpt2"}, 'model_type "gpt2", but the architecture is LlamaForCausalLM'),
    ("llama", {"architectures": MISSING, "model_type": MISSING}, "neither architectures nor model_type"),
    ("llama", {"hidden_size": -16}, "hidden_size -16 is not valid; expected an integer from 1 to 1000000000"),
    ("llama", {"vocab_size": 10**18}, "vocab_size 1000000000000000000 is not valid"),
    ("llama", {"vocab_size": 10**9}, "embed_tokens.weight has shape [64, 16], but config.json needs [1000000000, "),
    ("llama", {"num_hidden_layers": 99999}, "99999 layers, but the folder has only 21 tensors"),
    ("llama", {"num_hidden_layers": 3}, "tensor model.layers.2.input_layernorm.weight is missing"),
    ("llama", {"num_hidden_layers": 1}, "tensor model.layers.1.input_layernorm.weight is not part of the Llama"),
    ("llama", {"num_attention_heads": 5}, "config.json: hidden_size 16 is not divisible by num_attention_heads 5; us"),
    ("llama", {"num_key_value_heads": 3}, "json: num_attention_heads 4 is not divisible by num_key_value_heads 3; us"),
    ("llama", {"head_dim": 7}, "config.json: head_dim 7 must be even and positive: rope rotates pairs of channels; us"),
    ("llama", {"rms_norm_eps": 0}, "config.json: rms_norm_eps 0 is out of range; expected a number above 0; use 1e-5"),
    ("llama", {"rope_theta": -1}, "config.json: rope_theta -1 is out of range; expected a number, 1 or more"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 0.5}}, "config.json: factor 0.5 is out of range; expected"),
    ("llama", {"max_position_embeddings": 10**9}, "config.json: max_position_embeddings 1000000000 is out of range"),
    ("gpt2", {"layer_norm_epsilon": -1}, "config.json: layer_norm_epsilon -1 is out of range; expected a number above"),
    ("gpt2", {"n_layer": 10**6}, "config.json: n_layer 1000000 is out of range; expected an integer from 1 to 100000"),
    ("llama", {"vocab_size": MISSING}, "vocab_size is missing, which LlamaForCausalLM needs"),
    ("llama", {"hidden_act": "gelu"}, 'hidden_act "gelu" of LlamaForCausalLM cannot be expressed; Cuboid supports s'),
    ("llama", {"attention_bias": True}, "mlp_bias false, but attention_bias true cannot be expressed"),
    ("llama", {"quantization_config": {"bits": 4}}, 'quantization_config {"bits":4} cannot be expressed'),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 'rope_scaling {"type":"dynamic","factor":2.0}'),
    ("llama", {"rope_scaling": {"rope_type": "linear"}}, "factor of RoPE is missing"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4, "mscale": 0.7, "mscale_all_dim": 1.0}},
     "mscale 0.7 of rope_type"),
    ("llama", {"rope_parameters": {"rope_type": "longrope"}}, 'rope_parameters {"rope_type":"longrope"}'),
    ("llama", {"rms_norm_eps": "tiny"}, 'rms_norm_eps "tiny" is not valid; expected a number'),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 cannot be expressed; Cuboid supports 1"),
    ("mistral", {"sliding_window": 0}, "sliding_window 0 is not valid; expected an integer from 1 to 1000000000"),
    ("mistral", {"layer_types": ["full_attention", "sliding_attention"]}, "Cuboid supports full_attention in every l"),
    ("qwen3", {"layer_types": MISSING, "use_sliding_window": 1}, "use_sliding_window 1 is not valid; expected true"),
    ("qwen3", {"use_sliding_window": False}, 'layer_types "sliding_attention" cannot be expressed; Cuboid supports f'),
    ("qwen3", {"layer_types": ["full_attention"]}, "layer_types has 1 entries, but num_hidden_layers is another"),
    ("qwen3", {"layer_types": MISSING, "max_window_layers": -1}, "max_window_layers -1 is not valid; expected an int"),
    ("qwen3", {"attention_bias": True}, "attention_bias true cannot be expressed; Cuboid supports false"),
    ("gpt2", {"embd_pdrop": 0.0}, "embd_pdrop 0, but resid_pdrop 0.1 cannot be expressed"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx true cannot be expressed"),
    ("gpt2", {"n_positions": 64}, "transformer.wpe.weight has shape [128, 16], but config.json needs [64, 16]"),
]


def refused_configs():
    for name, changes, message in CONFIGS:
        config = {key: value for key, value in {**models.CASES[name], **changes}.items() if value is not MISSING}
        shutil.copytree(name, "changed")
        with open("changed/config.json", "w", encoding="utf-8") as file:
            json.dump(config, file)
        expect_refused(f"{name} {changes}", ["import", "changed"], message)
        shutil.rmtree("changed")


# ---- tensors ----
def change_tensors(change):
    path = "changed/model.safetensors"
    tensors = models.read_safetensors(path)
    change(tensors)
    models.write_safetensors(path, tensors)


def change_index(change):
    path = "changed/model.safetensors.index.json"
    with open(path, encoding="utf-8") as file:
        index = json.load(file)
    change(index["weight_map"])
    with open(path, "w", encoding="utf-8") as file:
        json.dump(index, file)


def reshape(tensors):
    dtype, shape, data = tensors["model.norm.weight"]
    tensors["model.norm.weight"] = dtype, [1, *shape], data


def retype(tensors):
    _, shape, data = tensors["model.norm.weight"]
    tensors["model.norm.weight"] = "I32", shape, data


def different(tensors):
    """The embedding with another last element."""
    dtype, shape, data = tensors["model.embed_tokens.weight"]
    return dtype, shape, data[:-4] + struct.pack("<f", 0.25)


def overwrite(path, data):
    with open(path, "wb") as file:
        file.write(data)


SHARD, NORM = "model-00002-of-00003.safetensors", "model.norm.weight"
TENSORS = [
    ("llama", lambda: change_tensors(lambda t: t.pop(NORM)), "tensor model.norm.weight is missing"),
    ("llama", lambda: change_tensors(lambda t: t.update(extra=t[NORM])), "tensor extra is not part of the LlamaFor"),
    ("llama", lambda: change_tensors(reshape), "model.norm.weight has shape [1, 16], but config.json needs [16]"),
    ("llama", lambda: change_tensors(retype), "model.norm.weight has dtype I32; Cuboid supports F32, BF16 and F16"),
    ("tied", lambda: change_tensors(lambda t: t.update({"lm_head.weight": different(t)})),
     "element 1023 of lm_head.weight is 0.25, but -0.197037 in model.embed_tokens.weight, although"),
    ("tied", lambda: change_tensors(lambda t: t.update({"lm_head.weight": different(t)})),
     "; use --untie to import this head, as transformers 5 does, or --tie to drop it, as transformers 4 does"),
    ("tied", lambda: change_tensors(lambda t: t.update({"lm_head.weight": t[NORM]})),
     "lm_head.weight is [16] of type F32, but model.embed_tokens.weight has shape [64, 16]"),
    ("llama", lambda: os.remove("changed/model.safetensors"), "has neither model.safetensors nor model.safetensors.in"),
    ("llama", lambda: os.remove("changed/config.json"), "changed/config.json: No such file"),
    ("llama", lambda: (os.remove("changed/model.safetensors"), os.symlink("gone", "changed/model.safetensors")),
     "changed/model.safetensors: is a link to a file that does not exist"),
    ("llama", lambda: overwrite("changed/config.json", b"{"), "changed/config.json:1:1: not valid JSON"),
    ("llama", lambda: overwrite("changed/config.json", b"[" * 10**6), "not valid JSON"),
    ("llama", lambda: overwrite("changed/config.json", b"[]"), "is not a JSON object"),
    ("llama", lambda: overwrite("changed/model.safetensors", struct.pack("<Q", 2**62)), "header"),
    ("files", lambda: os.remove(f"changed/{SHARD}"), f"{SHARD} is missing, which model.safetensors.index.json lists"),
    ("files", lambda: change_index(lambda m: m.update({NORM: "../llama/model.safetensors"})), "in this folder"),
    ("files", lambda: change_index(lambda m: m.update({NORM: "/etc/passwd"})), '"/etc/passwd"; expected the name'),
    ("files", lambda: change_index(lambda m: m.update({NORM: 3})), "expected the name of a file in this folder"),
    ("files", lambda: change_index(lambda m: m.update(extra=SHARD)), "has no tensor extra, which model.safetensors.in"),
    ("files", lambda: change_index(lambda m: m.pop(NORM)), "has tensor model.norm.weight, which model.safetensors.in"),
    ("files", lambda: change_index(lambda m: m.clear()), "has no weight_map"),
    ("files", lambda: shutil.copy(f"changed/{SHARD}", "changed/model-00001-of-00003.safetensors"), "is in model-00001"),
    ("files", lambda: overwrite("changed/model.safetensors.index.json", b"\xff"), "not valid JSON"),
]


def refused_tensors():
    for i, (name, change, message) in enumerate(TENSORS):
        shutil.copytree(name, "changed")
        change()
        expect_refused(f"damage {i}", ["import", "changed"], message)
        shutil.rmtree("changed")


def refused_choices():
    expect_refused("untie", ["import", "llama", "--untie"], "has tie_word_embeddings false, so there is nothing to cho")
    expect_refused("tie", ["import", "llama", "--tie"], "so there is nothing to choose; remove --untie or --tie")
    expect_refused("both", ["import", "tied", "--tie", "--untie"], "--untie and --tie are mutually exclusive")
    expect_refused("none", ["import", "tied", "--untie"], "lm_head.weight is missing, which --untie needs")


def refused_bytes():
    """Bytes of headers and of config.json, replaced at random: refused with one line, or accepted."""
    numbers = random.Random(1)
    for name in ("config.json", "model.safetensors"):
        shutil.copytree("llama", "changed")
        with open(f"changed/{name}", "rb") as file:
            data = file.read()
        header = len(data) if name == "config.json" else 8 + struct.unpack_from("<Q", data)[0]
        for _ in range(60):
            changed = bytearray(data)
            changed[numbers.randrange(header)] = numbers.choice(b'0189-"{}[],:e.' + bytes([numbers.randrange(256)]))
            overwrite(f"changed/{name}", changed)
            done = command("import", "changed", "-o", "out")
            if done.returncode == 0:
                shutil.rmtree("out")
            else:
                check_refused(f"{name} {bytes(changed[:200])}", done, "changed")
        shutil.rmtree("changed")


# ---- tokenizer.json ----
TOKENIZERS = [
    ("", "/tokenizer.json, line 1, column 0"),
    ("tokens", "/tokenizer.json, line 1, column"),
    ("{}", "/tokenizer.json: no model section"),
    ('{"model": {"type": "WordPiece", "vocab": {}}}', 'model.type "WordPiece" is not supported, only BPE'),
    ('{"model": {"type": "Unigram", "vocab": []}}', "use the model's SentencePiece file with GPTSentencePieceToken"),
]


def not_finite():
    """A value that is not finite, in each type: the first tensor is named, and the element."""
    values = {"F32": ("<f", math.nan, -math.inf, 3.4e38), "BF16": ("<H", 0xFFC0, 0x7F80, 0x7F7F),
              "F16": ("<H", 0x7C01, 0xFC00, 0x7BFF)}
    for dtype, (form, nan, infinite, largest) in values.items():
        for value, message in ((nan, "NaN"), (infinite, "infinite"), (largest, None)):
            shutil.copytree("llama", "changed")
            tensors = {name: (dtype, shape, bytes(struct.calcsize(form) * models.elements_of(shape)))
                       for name, shape in models.shapes_of(models.CASES["llama"]).items()}
            for name in ("model.layers.1.mlp.up_proj.weight", "model.norm.weight"):
                _, shape, data = tensors[name]
                at = 5 * struct.calcsize(form)
                tensors[name] = dtype, shape, data[:at] + struct.pack(form, value) + data[at + struct.calcsize(form):]
            models.write_safetensors("changed/model.safetensors", tensors)
            if message is None:
                if command("import", "changed", "-o", "out").returncode != 0:
                    sys.exit(f"the largest number of {dtype} is refused")
                shutil.rmtree("out")
            else:
                expect_refused(f"{dtype} {value}", ["import", "changed"],
                               "changed/model.safetensors: element 5 of tensor model.layers.1.mlp.up_proj.weight is "
                               f"{message}, so every result")
            shutil.rmtree("changed")


def unusable_tokenizers():
    """Imported without tokenizer, and a warning; one with more ids than the model has rows is refused."""
    for text, message in TOKENIZERS:
        shutil.copytree("llama", "changed")
        overwrite("changed/tokenizer.json", text.encode())
        done = command("import", "changed", "-o", "out")
        if done.returncode != 0 or done.stderr.count("warning: ") != 1 or message not in done.stderr or \
                "tokenizer_type: none" not in done.stdout:
            sys.exit(f"tokenizer {text}: {done.returncode}, expected \"{message}\"\n{done.stderr}{done.stdout}")
        shutil.rmtree("changed")
        shutil.rmtree("out")
    shutil.copytree("llama", "changed")
    os.symlink("gone", "changed/tokenizer.json")
    if "warning: changed/tokenizer.json: No such file" not in command("import", "changed", "-o", "out").stderr:
        sys.exit("a link to a tokenizer.json that is missing causes no warning")
    shutil.rmtree("out")
    os.remove("changed/tokenizer.json")
    os.mkdir("changed/tokenizer.json")
    expect_refused("a folder", ["import", "changed"], "changed/tokenizer.json: is a folder; use a regular file")
    shutil.rmtree("changed")
    shutil.copytree("llama", "changed")
    overwrite("changed/tokenizer.json", json.dumps(finetune.tokenizer_json()).encode())
    expect_refused("large tokenizer", ["import", "changed"], " ids, but vocab_size 64 in config.json; remove it to")
    shutil.rmtree("changed")


# ---- export, and the output ----
def set_recipe(folder, *keys):
    """A checkpoint of another model, trained for no step."""
    with open("recipe.yaml", "w", encoding="utf-8") as file:
        file.write("model: {num_layers: 1, hidden_size: 8, num_attention_heads: 2, seq_length: 8, vocab_size: 16}\n"
                   "train: {global_batch_size: 1, train_iters: 0}\noptimizer: {lr: 1.0e-3}\n"
                   "data: {mock_data: true}\ntokenizer: {tokenizer_type: none}\n")
    done = subprocess.run([CUBOID, "train", "recipe.yaml", f"logging.run_dir={folder}", *keys], capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"train {keys}: {done.stdout}{done.stderr}")


def refused_exports():
    cases = [(["model.normalization=RMSNorm"], "model.normalization RMSNorm cannot be expressed by GPT2LMHeadModel"),
             (["model.position_embedding_type=rope", "model.normalization=RMSNorm", "model.activation=swiglu",
               "model.add_bias_linear=false", "model.rotary_percent=0.5"],
              "model.rotary_percent 0.5 cannot be expressed by LlamaForCausalLM"),
             (["model.final_logit_softcapping=30"],
              "model.final_logit_softcapping 30 cannot be expressed by GPT2LMHeadModel")]
    for i, (keys, message) in enumerate(cases):
        set_recipe(f"run-{i}", *keys)
        expect_refused(f"export {keys}", ["export", f"run-{i}/checkpoints"], message)
    set_recipe("lost", "tokenizer.tokenizer_type=HuggingFaceTokenizer",
               "tokenizer.tokenizer_model=gone/tokenizer.json")
    expect_refused("lost tokenizer", ["export", "lost/checkpoints"],
                   "no tokenizer.json that can be read, the tokenizer of its recipe (tokenizer.tokenizer_model gone/to")
    expect_refused("no tokenizer there", ["export", "lost/checkpoints", "--tokenizer", "gone"], "gone: No such file")
    set_recipe("large", "model.init_method_std=1e5")
    expect_refused("fp16", ["export", "large/checkpoints", "--dtype", "fp16"], "too large for fp16; use --dtype bf16")
    expect_refused("dtype", ["export", "large/checkpoints", "--dtype", "fp8"], "--dtype fp8; use fp32, bf16 or fp16")
    expect_refused("architecture", ["export", "large/checkpoints", "--architecture", "LlamaForCausalLM"],
                   "cannot be expressed by LlamaForCausalLM")
    expect_refused("no checkpoint", ["export", "llama"], "; use cuboid checkpoint import llama -o CKPT first")
    expect_refused("an empty name", ["export", ""], '"" is no checkpoint; use a checkpoint, a directory of checkpoint')
    expect_refused("an empty name", ["import", ""], "import: the name of the model's folder is empty; use a folder wi")
    os.rename("large/checkpoints", "moved")
    expect_refused("no checkpoints", ["export", "large"], "; use the directory of checkpoint.save in large/recipe.yaml")
    os.mkdir("large/checkpoints")
    expect_refused("no complete one", ["export", "large"], "large/checkpoints: not a checkpoint: contains neither ma")


def refused_loads():
    with open("base.yaml", "w", encoding="utf-8") as file:
        file.write("base: recipe.yaml\ncheckpoint: {load: llama, finetune: true}\n")
    done = subprocess.run([CUBOID, "train", "base.yaml", "logging.run_dir=load"], capture_output=True, text=True,
                          check=False)
    if done.returncode != 2 or ": cuboid checkpoint import llama -o CKPT makes one" not in done.stderr:
        sys.exit(f"checkpoint.load=llama: {done.returncode} {done.stderr}")


# ---- folders of another user ----
SECRET = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n"


def link_outside(name, target="../secret"):
    if os.path.lexists(f"changed/{name}"):
        os.remove(f"changed/{name}")
    os.symlink(target, f"changed/{name}")


def hostile_imports():
    """Links to other folders, and files that are not what their names say."""
    with open("secret", "w", encoding="utf-8") as file:
        file.write(SECRET)
    os.chmod("secret", 0o600)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
                 "generation_config.json", "merges.txt", "chat_template.jinja"):
        shutil.copytree("llama", "changed")
        link_outside(name)
        expect_refused(f"{name}, a link", ["import", "changed"],
                       f"changed/{name}: is a link to {os.path.abspath('secret')}, outside of the folder; replace the")
        if "model" not in name and name not in ("config.json", "tokenizer.json"):
            os.remove(f"changed/{name}")
            shutil.copy("secret", f"changed/{name}")
            expect_refused(f"{name}, a key", ["import", "changed"], f"changed/{name}: is not ")
        shutil.rmtree("changed")


def hub_caches():
    """The links of the hub's cache, and links inside the folder, are followed; others from there are not."""
    os.makedirs("hub/snapshots")
    shutil.copytree("llama", "hub/blobs")
    shutil.copy("secret", "hub/secret")
    os.mkdir("hub/snapshots/changed")
    with open("hub/blobs/template", "w", encoding="utf-8") as file:
        file.write("{{ messages }}")
    os.chmod("hub/blobs/template", 0o640)
    os.chdir("hub/snapshots")
    for name in ("config.json", "model.safetensors"):
        os.symlink(f"../../blobs/{name}", f"changed/{name}")
    os.symlink("../../blobs/template", "changed/chat_template.jinja")
    os.symlink("config.json", "changed/generation_config.json")
    if command("import", "changed", "-o", "out").returncode != 0:
        sys.exit("the cache of a hub is refused")
    if os.stat("out/chat_template.jinja").st_mode & 0o777 != 0o640:
        sys.exit("the copy of a file of mode 640 has another mode")
    if not os.path.exists("out/generation_config.json"):
        sys.exit("a link inside of the folder is not followed")
    shutil.rmtree("out")
    link_outside("merges.txt", "../../secret")
    expect_refused("a link out of the cache", ["import", "changed"], "changed/merges.txt: is a link to ")
    os.chdir("../..")


def hostile_checkpoints():
    """reshard copies no file of another folder."""
    set_recipe("hostile")
    for name in ("data.json", "recipe.yaml", "tokenizer_config.json"):
        step = "hostile/checkpoints/step-00000000"
        if os.path.exists(f"{step}/{name}"):
            os.rename(f"{step}/{name}", "kept")
        os.symlink(os.path.abspath("kept" if name == "recipe.yaml" else "secret"), f"{step}/{name}")
        expect_refused(f"{name}, a link", ["reshard", "hostile", "tp=1"], f"{step}/{name}: is a link to ")
        os.remove(f"{step}/{name}")
        if os.path.exists("kept"):
            os.rename("kept", f"{step}/{name}")
    shutil.rmtree("hostile")


def hostile_exports():
    """A recipe names a file outside of its checkpoint, which is not copied unless the user names it, too."""
    for key, value in (("HuggingFaceTokenizer", ["tokenizer.tokenizer_model=secret"]),
                       ("GPT2BPE", ["tokenizer.vocab_file=secret", "tokenizer.merge_file=secret"])):
        set_recipe("hostile", f"tokenizer.tokenizer_type={key}", *value)
        expect_refused(key, ["export", "hostile"], "secret); use --tokenizer PATH, or --tokenizer none to export wi")
        expect_refused(f"{key}, named", ["export", "hostile", "--tokenizer", "secret"],
                       "--tokenizer secret: is not tokenizer.json that can be read" if key[0] == "H" else
                       "has two files; use the folder that has them")
        if key[0] == "H":
            step = "hostile/checkpoints/step-00000000"
            os.symlink(os.path.abspath("secret"), f"{step}/tokenizer.json")
            expect_refused("a link", ["export", "hostile"], f"{step}/tokenizer.json: is a link to ")
            os.remove(f"{step}/tokenizer.json")
            shutil.copy("secret", f"{step}/tokenizer.json")
            expect_refused("a key", ["export", "hostile"], "no tokenizer.json that can be read")
            overwrite(f"{step}/tokenizer.json", b"{}")
            expect_refused("another JSON", ["export", "hostile"], "tokenizer.json: no model section")
            os.remove(f"{step}/tokenizer.json")
        done = command("export", "hostile", "-o", "out", "--tokenizer", "none")
        if done.returncode != 0 or any(name.startswith(("tok", "vocab", "merges")) for name in os.listdir("out")):
            sys.exit(f"export without tokenizer: {done.returncode} {done.stderr}")
        shutil.rmtree("out")
        shutil.rmtree("hostile")


def run_directories():
    """The newest complete checkpoint of a run directory is used, and named."""
    set_recipe("run", "train.train_iters=2", "checkpoint.save_interval=1")
    for step in (2, 1):
        for path in ("run", "run/checkpoints"):
            done = command("export", path, "-o", "out")
            if done.returncode != 0 or f"GPT2LMHeadModel of run/checkpoints/step-0000000{step}, " not in done.stdout:
                sys.exit(f"export {path}: {done.returncode} {done.stdout}{done.stderr}")
            shutil.rmtree("out")
        os.remove(f"run/checkpoints/step-0000000{step}/manifest.json")
    if command("inspect", "ckpt").returncode != 0 or "step-00000001" not in command("inspect", "run").stderr:
        sys.exit("inspect of a run directory does not look for its checkpoints")


def ignored_signal():
    """The same signal, ignored, as SIGINT is in the background jobs of a script."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pending_signal()


def refused_outputs():
    for words, status in ((["import", "llama"], 2), (["export", "ckpt"], 2)):
        os.mkdir("there")
        done = command(*words, "-o", "there")
        if done.returncode != status or "there: exists; use the name of a folder that" not in done.stderr:
            sys.exit(f"{words} into a folder that exists: {done.returncode} {done.stderr}")
        if os.listdir("there"):
            sys.exit(f"{words}: wrote into a folder that exists")
        os.rmdir("there")
        for out, why in (("new\nname", "-o new\\x0aname: has a character that cannot be printed; use another name"),
                         ("", '-o "": the name is empty; use the name of a folder that does not exist'),
                         ("new/", "-o new/: ends with a slash; use the name of a folder, without a / at its end")):
            done = command(*words, "-o", out)
            if done.returncode != 2 or why not in done.stderr:
                sys.exit(f"{words} -o {out}: {done.returncode} {done.stderr}")
        done = command(*words, "-o", "llama/config.json/new")
        if done.returncode != 2 or "-o llama/config.json/new: cannot create its parent: llama/co" not in done.stderr:
            sys.exit(f"{words} into a file: {done.returncode} {done.stderr}")
        done = command(*words, "-o", "new/parents/model")
        if done.returncode != 0 or os.listdir("new/parents") != ["model"]:
            sys.exit(f"{words} does not create the parents of its output: {done.returncode} {done.stderr}")
        shutil.rmtree("new")
        expect_refused("full disk", words, "out.partial/", statuses=(1,), preexec_fn=no_file_beyond(20000))
        expect_refused("a signal", words, "stopped by Terminated; nothing was kept", statuses=(1,),
                       preexec_fn=pending_signal)
        if command(*words, "-o", "out", preexec_fn=ignored_signal).returncode != 0:
            sys.exit(f"{words}: a signal that is ignored ends it")
        shutil.rmtree("out")


def memory():
    """Less than twice the largest tensor, of 96 MB in fp32, and 64 MiB."""
    vocab, hidden = 1_500_000, 16
    config = {**models.CASES["llama"], "vocab_size": vocab, "tie_word_embeddings": True}
    tensors = {name: ("F32", shape, bytes(4 * models.elements_of(shape)))
               for name, shape in models.shapes_of(models.CASES["llama"]).items() if name != "lm_head.weight"}
    tensors["model.embed_tokens.weight"] = "F32", [vocab, hidden], bytes(4 * vocab * hidden)
    os.mkdir("wide")
    with open("wide/config.json", "w", encoding="utf-8") as file:
        json.dump(config, file)
    models.write_safetensors("wide/model.safetensors", tensors)
    limit = (2 * 4 * vocab * hidden + 64 * MIB,) * 2
    for words in (["import", "wide", "-o", "wide-ckpt"], ["export", "wide-ckpt", "-o", "wide-out"]):
        unlimited = "unlimited" in sys.argv
        done = command(*words, preexec_fn=None if unlimited else lambda: resource.setrlimit(resource.RLIMIT_AS, limit))
        if done.returncode != 0:
            sys.exit(f"{words}: {done.stderr}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in ("llama", "mistral", "qwen3", "gpt2"):
            models.write_model(name, models.CASES[name])
        models.write_model("files", models.CASES["llama"], files=3)
        models.write_model("tied", {**models.CASES["llama"], "tie_word_embeddings": True})
        done = command("import", "llama", "-o", "ckpt")
        if done.returncode != 0:
            sys.exit(done.stderr)
        refused_configs()
        refused_tensors()
        refused_choices()
        refused_bytes()
        unusable_tokenizers()
        not_finite()
        refused_exports()
        refused_loads()
        hostile_imports()
        hub_caches()
        hostile_checkpoints()
        hostile_exports()
        run_directories()
        refused_outputs()
        memory()


main()
