#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes golden_finetune.txt: fine-tuning of tiny models on conversations by transformers, in double precision.

    make_finetune.py         in a Python environment with torch and transformers

Every conversation is a sequence of its own, so that no packing and no document mask is involved; labels that do not
count are -100. A second pass packs them into rows with a block-diagonal attention mask, and must agree. Lines are

    NAME loss STEP VALUE             mean over the counted tokens of the batch, before the update
    NAME norm STEP VALUE             global gradient norm before clipping
    NAME shifted VALUE               the loss of step 1 with a mask that is shifted by one token
    NAME weight TENSOR ELEMENT VALUE    after the last step, where the gradient of the first one is largest"""
import os
import sys
import tempfile

import torch
import transformers

sys.dont_write_bytecode = True
import finetune  # noqa: E402
import models  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
ELEMENTS = 3  # of each tensor


def loss_of(logits, ids, counts):
    labels = torch.tensor([i if counted else -100 for i, counted in zip(ids, counts)])
    return torch.nn.functional.cross_entropy(logits[0, :-1], labels[1:], reduction="sum", ignore_index=-100)


def batch_loss(model, conversations):
    counted = sum(sum(counts[1:]) for _, counts in conversations)
    return sum(loss_of(model(torch.tensor([ids])).logits, ids, counts) for ids, counts in conversations) / counted


def packed_loss(model, conversations):
    """All conversations in one row, with positions that restart and attention within each."""
    ids = [i for part, _ in conversations for i in part]
    counts = [counted and at > 0 for _, part in conversations for at, counted in enumerate(part)]
    owner = torch.tensor([k for k, (part, _) in enumerate(conversations) for _ in part])
    positions = torch.tensor([[at for part, _ in conversations for at in range(len(part))]])
    allowed = (owner[:, None] == owner[None, :]).tril()[None, None]
    mask = torch.zeros(allowed.shape, dtype=torch.float64).masked_fill(~allowed, -torch.inf)
    logits = model(torch.tensor([ids]), attention_mask=mask, position_ids=positions).logits
    return loss_of(logits, ids, counts) / sum(counts)


def shifted(conversations):
    return [(ids, [False, *counts[:-1]]) for ids, counts in conversations]


def fine_tune(name, model, write):
    conversations = [finetune.chatml(conversation) for conversation in finetune.CONVERSATIONS]
    parameters = dict(model.named_parameters())
    matrices = [p for p in parameters.values() if p.dim() == 2]
    vectors = [p for p in parameters.values() if p.dim() == 1]
    adamw = torch.optim.AdamW([{"params": matrices, "weight_decay": finetune.DECAY},
                               {"params": vectors, "weight_decay": 0.0}],
                              lr=finetune.LR, betas=finetune.BETAS, eps=finetune.EPSILON)
    write("shifted", f"{batch_loss(model, shifted(conversations)).item():.12g}")
    largest = {}
    for step in range(1, finetune.STEPS + 1):
        adamw.zero_grad()
        loss = batch_loss(model, conversations)
        difference = abs(loss.item() - packed_loss(model, conversations).item())
        if not difference < 1e-12:
            sys.exit(f"{name}: the packed loss differs by {difference}")
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), finetune.CLIP)
        if step == 1:
            largest = {key: p.grad.abs().flatten().topk(ELEMENTS).indices.tolist() for key, p in parameters.items()}
        write("loss", step, f"{loss.item():.12g}")
        write("norm", step, f"{norm.item():.12g}")
        adamw.step()
    for key, elements in largest.items():
        for element in elements:
            write("weight", key, element, f"{float(parameters[key].detach().flatten()[element]):.9g}")


def main():
    torch.set_num_threads(1)
    with open(f"{HERE}/golden_finetune.txt", "w", encoding="utf-8") as file:
        file.write(f"# transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, fp64\n")
        for name, config in finetune.CASES.items():
            with tempfile.TemporaryDirectory() as folder:
                models.VOCAB, models.CONTEXT = finetune.VOCAB, finetune.SEQUENCE
                models.write_model(f"{folder}/model", config)
                # Not the fused kernel, whose mask differs between versions.
                model = transformers.AutoModelForCausalLM.from_pretrained(
                    f"{folder}/model", dtype=torch.float64, attn_implementation="eager")
            model.eval()
            fine_tune(name, model, lambda *words: file.write(" ".join(map(str, (name, *words))) + "\n"))


main()
