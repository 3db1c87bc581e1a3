# SPDX-License-Identifier: Apache-2.0
"""Trains GPT-2 with PyTorch and transformers as a recipe of Cuboid says, from the same weights and on the same samples.

    train_torch.py MODEL RECIPE OUT [--rows N] [--steps N] [--threads N] [--clip-grad-norm]

MODEL: the initial weights as `cuboid checkpoint export` writes them. RECIPE: a resolved recipe (recipe.yaml of a run).
OUT: the metrics, with the keys of Cuboid's metrics.jsonl. --rows: samples of a microbatch, by default the whole batch.

Model and optimizer are those of the libraries; what is computed here is the learning rate, and the norm of the
gradients in double precision. torch.nn.utils.clip_grad_norm_ (--clip-grad-norm) sums squares in fp32: on a CPU its norm
of these 124 M elements is too small by 5e-5 of it."""
import argparse
import json
import math
import time

import torch
import transformers
import yaml
from sample_order import Samples


WORDS = ("name", "lr_decay_style", "lr_wsd_decay_style")


def load_model(folder):
    """The model in training mode; every tensor of the folder is used, and none is missing."""
    model, info = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    problems = {key: value for key, value in info.items() if value}
    if problems:
        raise SystemExit(f"{folder}: {problems}")
    rates = [model.config.resid_pdrop, model.config.embd_pdrop, model.config.attn_pdrop]
    if any(rates):
        raise SystemExit(f"{folder}: dropout {rates}, and the comparison needs none")
    return model.train()


def make_optimizer(model, recipe):
    """AdamW; matrices and embeddings decay, biases and norms do not."""
    groups = [{"params": [p for p in model.parameters() if (p.dim() == 2) == decays],
               "weight_decay": recipe["weight_decay"] if decays else 0.0} for decays in (True, False)]
    return torch.optim.AdamW(groups, lr=recipe["lr"], betas=(recipe["adam_beta1"], recipe["adam_beta2"]),
                             eps=recipe["adam_eps"])


def learning_rate(recipe, step, last):
    """Linear warm-up, then a cosine to min_lr; step counts from 1."""
    warmup = recipe["lr_warmup_iters"]
    if step <= warmup:
        return recipe["lr"] * step / warmup
    share = 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / (last - warmup)))
    return recipe["min_lr"] + share * (recipe["lr"] - recipe["min_lr"])


def loss_of(model, rows):
    """The mean loss of the tokens of rows [B, S + 1], in fp32."""
    ids = torch.from_numpy(rows)
    logits = model(ids[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def clip(model, limit, in_double):
    """Clips the gradients -> their norm before."""
    if not in_double:
        return torch.nn.utils.clip_grad_norm_(model.parameters(), limit).item()
    norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), limit, torch.tensor(norm))
    return norm


def train_step(model, optimizer, batch, limit, arguments):
    """-> (loss, norm of the gradients before clipping)"""
    optimizer.zero_grad()
    rows, total = arguments.rows or len(batch), 0.0
    for begin in range(0, len(batch), rows):
        part = batch[begin:begin + rows]
        loss = loss_of(model, part) * (len(part) / len(batch))
        loss.backward()
        total += loss.item()
    norm = clip(model, limit, not arguments.clip_grad_norm)
    optimizer.step()
    return total, norm


def validate(model, data, train):
    with torch.no_grad():
        losses = [loss_of(model, data.batch("valid", i, train["global_batch_size"])).item()
                  for i in range(train["eval_iters"])]
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "recipe", "out"):
        parser.add_argument(name)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--steps", type=int, help="only the first N steps")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clip-grad-norm", action="store_true", help="clip with torch.nn.utils.clip_grad_norm_")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with open(arguments.recipe, encoding="utf-8") as file:
        recipe = yaml.safe_load(file)
    train = recipe["train"]
    optim = {key: float(value) for key, value in recipe["optimizer"].items() if key not in WORDS}  # YAML 1.1: "3e-05"
    data = Samples(recipe["data"]["train"][0]["path"], recipe["model"]["seq_length"], recipe["seed"],
                   recipe["data"]["split"])
    model = load_model(arguments.model)
    optimizer = make_optimizer(model, optim)
    with open(arguments.out, "w", encoding="utf-8") as out:
        for step in range(1, (arguments.steps or train["train_iters"]) + 1):
            begin, lr = time.perf_counter(), learning_rate(optim, step, optim["lr_decay_iters"])
            for group in optimizer.param_groups:
                group["lr"] = lr
            batch = data.batch("train", step - 1, train["global_batch_size"])
            loss, norm = train_step(model, optimizer, batch, optim["clip_grad"], arguments)
            record = {"step": step, "loss": loss, "grad_norm": norm, "lr": lr,
                      "step_time_s": time.perf_counter() - begin}
            if step == train["train_iters"]:
                record["valid_loss"] = validate(model, data, train)
            print(json.dumps(record), file=out, flush=True)


main()
