# SPDX-License-Identifier: Apache-2.0
"""Conversations, their tokens and loss masks, and the recipe with which tiny models are fine-tuned on them: shared by
test_finetune.py and by make_finetune.py, which computes the same with transformers."""
import json

import models

SEQUENCE, STEPS, VOCAB = 80, 4, 260
END, BEGIN_MESSAGE, END_MESSAGE = 257, 258, 259  # after 256 bytes and "ab"
LR, DECAY, BETAS, EPSILON, CLIP = 1e-2, 0.1, (0.9, 0.95), 1e-8, 1.0
SAMPLES = 4  # packs of one epoch, all in one batch

CONVERSATIONS = [[("user", "u" * (1 + 5 * i % 9)), ("assistant", "an answer " * (i % 3) + chr(ord("a") + i))]
                 for i in range(5)] + [
    [("system", "s"), ("user", "1+1?"), ("assistant", "2")],
    [("user", "<|im_end|>"), ("assistant", "no token")],
]
CASES = {name: {**models.CASES[name], **({"vocab_size": VOCAB, "n_positions": SEQUENCE} if name == "gpt2" else
                                          {"vocab_size": VOCAB, "max_position_embeddings": SEQUENCE})}
         for name in ("gpt2", "llama")}

RECIPE = f"""
base: NAME-ckpt/model.yaml
model: {{hidden_dropout: 0, attention_dropout: 0, seq_length: {SEQUENCE}}}
train: {{global_batch_size: {SAMPLES}, micro_batch_size: 1, train_iters: {STEPS}}}
optimizer: {{lr: {LR}, lr_decay_style: constant, weight_decay: {DECAY}, adam_beta1: {BETAS[0]}, adam_beta2: {BETAS[1]},
  adam_eps: {EPSILON}, clip_grad: {CLIP}}}
data: {{train: chat, split: "1, 0, 0", loss_mask: true, pack_documents: true, reset_attention_mask: true,
  reset_position_ids: true}}
checkpoint: {{load: NAME-ckpt, finetune: true}}
cluster: {{threads_per_rank: 1}}
"""


def byte_alphabet():
    """The characters that stand for bytes in a byte-level vocabulary: themselves, or from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(0x100 + i) for i in range(len(others))]


def tokenizer_json():
    """Byte-level BPE: 256 bytes, "ab", and three special tokens."""
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"version": "1.0", "normalizer": None, "post_processor": None, "decoder": {"type": "ByteLevel"},
            "added_tokens": [{"id": id, "content": content, **special} for id, content in
                             [(END, "<|endoftext|>"), (BEGIN_MESSAGE, "<|im_start|>"), (END_MESSAGE, "<|im_end|>")]],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "vocab": {name: i for i, name in enumerate([*byte_alphabet(), "ab"])},
                      "merges": ["a b"]}}


def write_conversations(path):
    with open(path, "w", encoding="utf-8") as file:
        for conversation in CONVERSATIONS:
            messages = [{"role": role, "content": content} for role, content in conversation]
            file.write(json.dumps({"messages": messages}) + "\n")


def encode(text):
    """The ids of text without "ab": those of its bytes, in the order of the vocabulary."""
    assert "ab" not in text
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    order = plain + [byte for byte in range(256) if byte not in plain]
    return [order.index(byte) for byte in text.encode()]


def chatml(conversation):
    """The ids of a conversation, and which of them count in the loss."""
    ids, counts = [], []
    for role, content in conversation:
        answer = role == "assistant"
        for part, counted in (([BEGIN_MESSAGE, *encode(role + "\n")], False),
                              ([*encode(content), END_MESSAGE], answer), (encode("\n"), False)):
            ids += part
            counts += [counted] * len(part)
    return ids, counts
