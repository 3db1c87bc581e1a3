#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The whole way of a model of each architecture: transformers saves it, Cuboid imports it, trains it on 4 ranks and
exports it, and transformers loads it. The losses before and after training agree.

    compare_export.py CUBOID          in a Python environment with torch and transformers

A loss of Cuboid is that of the first step of a run: before its update. Both programs see the same four samples. Each
exported folder is loaded with from_pretrained as it is, in fp32 and in bf16."""
import json
import os
import subprocess
import sys
import tempfile

import torch
import transformers

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import models  # noqa: E402
from fixtures import write_dataset  # noqa: E402

CUBOID, SEQUENCE, SAMPLES, STEPS = os.path.abspath(sys.argv[1]), 32, 4, 20
IDS = [(i * i + i // 7) % models.VOCAB for i in range(SAMPLES * SEQUENCE + 1)]
RECIPE = """
base: {name}-ckpt/model.yaml
train: {{global_batch_size: {samples}, micro_batch_size: 1, train_iters: {steps}}}
optimizer: {{lr: 3.0e-3, lr_decay_style: constant}}
data: {{train: text, split: "1, 0, 0"}}
checkpoint: {{load: {load}, finetune: true}}
cluster: {{threads_per_rank: 1}}
"""


def run(*words):
    done = subprocess.run([CUBOID, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{words}: status {done.returncode}\n{done.stdout}{done.stderr}")


def train(name, run_dir, load, steps, *keys):
    with open("recipe.yaml", "w", encoding="utf-8") as file:
        file.write(RECIPE.format(name=name, samples=SAMPLES, steps=steps, load=load))
    length = () if name == "gpt2" else (f"model.seq_length={SEQUENCE}",) # learned positions keep their table
    run("train", "recipe.yaml", f"logging.run_dir={run_dir}", "model.hidden_dropout=0", "model.attention_dropout=0",
        *length, *keys)
    with open(f"{run_dir}/metrics.jsonl", encoding="utf-8") as file:
        return json.loads(file.readline())["loss"]


def loss_of(folder, sequence):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    count = (len(IDS) - 1) // sequence
    x = torch.tensor(IDS[:count * sequence]).view(count, sequence)
    y = torch.tensor(IDS[1:count * sequence + 1])
    with torch.no_grad():
        logits = model(x).logits.float()
    return float(torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), y))


def compare(name, when, ours, theirs):
    print(f"{name}: loss {ours:.6f} {when}; transformers {theirs:.6f} ({abs(ours - theirs) / theirs:.1e})")
    if not abs(ours - theirs) <= 1e-5 * theirs:
        sys.exit(f"{name}: the losses {when} differ by more than 1e-5")


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_dataset("text", IDS)
        for name, config in models.CASES.items():
            sequence = models.CONTEXT if name == "gpt2" else SEQUENCE
            one_batch = f"train.global_batch_size={(len(IDS) - 1) // sequence}"
            models.write_model(f"{name}-written", config)
            transformers.AutoModelForCausalLM.from_pretrained(f"{name}-written").save_pretrained(name)
            run("checkpoint", "import", name, "-o", f"{name}-ckpt")
            imported = train(name, f"{name}-trained", f"{name}-ckpt", STEPS, "tp=2", "pp=2", one_batch)
            trained = train(name, f"{name}-loss", f"{name}-trained/checkpoints", 1, one_batch)
            run("checkpoint", "export", f"{name}-trained/checkpoints", "-o", f"{name}-out")
            run("checkpoint", "export", f"{name}-trained/checkpoints", "-o", f"{name}-bf16", "--dtype", "bf16")
            compare(name, "imported", imported, loss_of(name, sequence))
            compare(name, f"after {STEPS} steps", trained, loss_of(f"{name}-out", sequence))
            print(f"{name}: in bf16 {loss_of(f'{name}-bf16', sequence):.4f}")


main()
