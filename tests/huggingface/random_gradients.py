#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gradients of random models on random layouts against autograd in double precision.

    random_gradients.py CUBOID [SHAPES [FIRST]]      in a Python environment with torch and transformers

For each family, SHAPES (default 150) random shapes: a model of transformers is imported, and trained for one step on a
random layout. The first moments that the step stores are 0.125 times the gradients, exactly. Their error, and that of
PyTorch in fp32 with its default attention, is the Euclidean norm of the difference to float64, over all parameters.
Exit status 1 if an error is more than five times PyTorch's, or the median of the ratios is above 1."""
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from fixtures import write_dataset  # noqa: E402

CUBOID = os.path.abspath(sys.argv[1])
SHAPES = int(sys.argv[2]) if len(sys.argv) > 2 else 150
FIRST = int(sys.argv[3]) if len(sys.argv) > 3 else 0
ONE_MINUS_BETA1 = 0.125
RECIPE = """
base: ckpt/model.yaml
train: {{global_batch_size: {samples}, micro_batch_size: {micro}, train_iters: 1}}
model: {{hidden_dropout: 0, attention_dropout: 0, seq_length: {sequence}}}
optimizer: {{lr: 1.0e-3, lr_decay_style: constant, clip_grad: 0, adam_beta1: 0.875}}
data: {{train: text, split: "1, 0, 0"}}
checkpoint: {{load: ckpt, finetune: true, save_interval: 1}}
logging: {{run_dir: run}}
cluster: {{threads_per_rank: 1}}
"""
LAYOUTS = ["", "parallel.sequence_parallel=true", "parallel.zero_stage=1", "parallel.zero_stage=2",
           "parallel.zero_stage=3", "pipeline.schedule=gpipe", "pipeline.schedule=zb-h1",
           "pipeline.schedule=zb-v", "memory.recompute_granularity=full", "memory.recompute_granularity=selective"]


def gpt2(draw, shape):
    return transformers.GPT2Config(
        vocab_size=shape.vocab, n_positions=shape.sequence, n_embd=shape.heads * shape.head, n_layer=shape.layers,
        n_head=shape.heads, n_inner=draw.choice([None, 8 * draw.randint(1, 20)]), resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=None, eos_token_id=None)


def decoder(config, **keys):
    def make(draw, shape):
        groups = draw.choice([g for g in range(1, shape.heads + 1) if shape.heads % g == 0])
        return config(
            vocab_size=shape.vocab, hidden_size=2 * shape.heads * draw.randint(2, 8),
            intermediate_size=4 * draw.randint(2, 40), num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads, num_key_value_heads=groups,
            head_dim=shape.head, max_position_embeddings=shape.sequence, tie_word_embeddings=draw.random() < 0.3,
            bos_token_id=None, eos_token_id=None, pad_token_id=None,
            **{key: value(draw, shape) for key, value in keys.items()})
    return make


FAMILIES = {
    "gpt2": gpt2,
    "llama": decoder(transformers.LlamaConfig),
    "mistral": decoder(transformers.MistralConfig, sliding_window=lambda draw, shape: draw.randint(1, shape.sequence)),
    "qwen3": decoder(transformers.Qwen3Config),
}


class Shape:
    def __init__(self, draw):
        self.heads, self.head = 2 * draw.randint(1, 3), 2 * draw.randint(2, 12)
        self.layers, self.vocab = 2 * draw.randint(1, 2), draw.randint(20, 200)
        self.sequence, self.micro = 4 * draw.randint(2, 16), draw.choice([1, 1, 2])
        self.dp = draw.choice([1, 2])
        self.samples = self.micro * self.dp * draw.randint(1, 4)

    def layout(self, draw):
        tp, pp = draw.choice([1, 2]), draw.choice([1, 2])
        return [f"tp={tp}", f"dp={self.dp}", f"pp={pp}", *draw.choice(LAYOUTS).split()]


def run(*words):
    done = subprocess.run([CUBOID, *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def must(*words):
    status, text = run(*words)
    if status != 0:
        sys.exit(f"{words}: status {status}\n{text}")


def names_of(name):
    """The tensors of Cuboid that make up a parameter of transformers, and whether it is stored transposed."""
    parts, kind = name.split("."), name.rsplit(".", 1)[1]
    if "layers" not in parts and "h" not in parts:
        plain = {"wte": "embedding", "embed_tokens": "embedding", "wpe": "position", "ln_f": "norm",
                 "norm": "norm", "lm_head": "head"}
        return [f"{plain[parts[-2]]}.{kind}"], False
    layer = f"layers.{parts[2]}."
    if parts[-2] == "c_attn":
        return [f"{layer}attention.{part}.{kind}" for part in "qkv"], kind == "weight"
    inner = {"q_proj": "attention.q", "k_proj": "attention.k", "v_proj": "attention.v", "o_proj": "attention.proj",
             "q_norm": "attention.q_norm", "k_norm": "attention.k_norm", "gate_proj": "mlp.gate",
             "up_proj": "mlp.up", "down_proj": "mlp.fc2", "input_layernorm": "norm1",
             "post_attention_layernorm": "norm2", "ln_1": "norm1", "ln_2": "norm2", "c_fc": "mlp.fc1"}
    part = parts[-2]
    if part == "c_proj":
        return [f"{layer}{'attention.proj' if parts[-3] == 'attn' else 'mlp.fc2'}.{kind}"], kind == "weight"
    return [f"{layer}{inner[part]}.{kind}"], part == "c_fc" and kind == "weight"


def gradients_of(folder, ids, shape, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    x = torch.tensor(ids[:-1]).view(shape.samples, shape.sequence)
    y = torch.tensor(ids[1:])
    logits = model(x).logits
    torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), y).backward()
    return {name: parameter.grad.double() for name, parameter in model.named_parameters()}


def trained_gradients(names):
    moments = load_file("out/rank-00000.safetensors")
    result = {}
    for name in names:
        tensors, transposed = names_of(name)
        whole = torch.cat([moments.pop(f"optimizer.m.{tensor}") for tensor in tensors]).double() / ONE_MINUS_BETA1
        result[name] = whole.T if transposed else whole
    left = [name for name in moments if name.startswith("optimizer.m.")]
    if left:
        sys.exit(f"not compared: {left}")
    return result


def error(gradients, reference):
    return sum(float(((gradients[name] - reference[name]) ** 2).sum()) for name in reference) ** 0.5


def clean():
    for name in ("model", "ckpt", "run", "out"):
        shutil.rmtree(name, ignore_errors=True)


def one_shape(family, number):
    """(error / PyTorch's error, layout); None if no layout of the first ten is valid."""
    draw = random.Random(f"{family} {number}")
    clean()
    shape = Shape(draw)
    config = FAMILIES[family](draw, shape)
    torch.manual_seed(number)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # far from the symmetric start
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained("model")
    ids = [draw.randrange(shape.vocab) for _ in range(shape.samples * shape.sequence + 1)]
    write_dataset("text", ids)
    must("checkpoint", "import", "model", "-o", "ckpt")
    with open("recipe.yaml", "w", encoding="utf-8") as file:
        file.write(RECIPE.format(samples=shape.samples, micro=shape.micro, sequence=shape.sequence))
    for _ in range(10):
        layout = shape.layout(draw)
        status, text = run("train", "recipe.yaml", *layout)
        if status == 0:
            break
        if status != 2:
            sys.exit(f"{family} {number} {layout}: status {status}\n{text}")
    else:
        return None
    must("checkpoint", "reshard", "run/checkpoints", "-o", "out", "tp=1", "pp=1", "dp=1")
    exact = gradients_of("model", ids, shape, torch.float64)
    theirs = gradients_of("model", ids, shape, torch.float32)
    return error(trained_gradients(exact), exact) / error(theirs, exact), layout


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    bad = False
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for family in FAMILIES:
            ratios, none = [], 0
            for number in range(FIRST, FIRST + SHAPES):
                got = one_shape(family, number)
                if got is None:
                    none += 1
                    continue
                ratios.append((got[0], number, " ".join(got[1])))
            worst = max(ratios)
            middle = statistics.median(ratio for ratio, _, _ in ratios)
            print(f"{family}: {len(ratios)} shapes, error / PyTorch fp32's: median {middle:.2f}, "
                  f"largest {worst[0]:.2f} (shape {worst[1]}: {worst[2]}); {none} without a valid layout", flush=True)
            bad = bad or worst[0] > 5.0 or middle > 1.0
    return bad


sys.exit(main())
