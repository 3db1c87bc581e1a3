# SPDX-License-Identifier: Apache-2.0
"""The self-check of the reference: `reference_gpt.py --self-check` runs it.

Derivatives against finite differences; packed documents against the same documents in separate rows; Philox against
its published answers; AdamW against a step computed by hand. Each comparison also gets an
injected fault and must detect it: a check that cannot fail proves nothing.
"""

import sys
from dataclasses import replace

import numpy as np

from activations import FUNCTIONS
from philox import philox_key, philox_normal, philox_words
from reference_adamw import Adam, AdamW
from reference_gpt import (
    ALIBI,
    GPT2,
    LLAMA,
    NEOX,
    PARALLEL,
    QWEN,
    SOFTCAP,
    WINDOW,
    YARN,
    Batch,
    Network,
    loss_and_grads,
    parameter_table,
)


def random_batch(model, rng, rows=2, documents=None):
    """`documents` [rows, S]: positions restart where it changes. A third of the labels are masked."""
    shape = (rows, model.seq_length)
    if documents is None:
        documents = np.zeros(shape, dtype=np.int64)
    positions = np.zeros(shape, dtype=np.int64)
    for s in range(1, model.seq_length):
        positions[:, s] = np.where(documents[:, s] == documents[:, s - 1], positions[:, s - 1] + 1, 0)
    tokens = rng.integers(0, model.vocab_size, shape)
    labels = rng.integers(0, model.vocab_size, shape)
    mask = (rng.random(shape) < 0.67).astype(np.float64)
    mask[0, 0] = 1.0
    return Batch(tokens, labels, positions, documents, mask)


def slope_by_differences(model, weights, batch, name, direction):
    """The loss's slope along one direction of one parameter, from four losses. The truncation error falls with
    step^4 (the softmax's higher derivatives make step^2 too coarse), the rounding error is about 1e-15 / step."""
    step = 5e-5

    def loss(times):
        return Network(model, {**weights, name: weights[name] + times * step * direction}).forward(batch)

    return (8.0 * (loss(+1) - loss(-1)) - (loss(+2) - loss(-2))) / (12.0 * step)


def allowed_difference(slope, direction):
    return 1e-10 * max(1.0, np.abs(direction).max()) + 1e-8 * abs(slope)


def has_gradient(model, name):
    """The bias of the keys adds a constant to every score of a row: its gradient is zero."""
    return not name.endswith("attention.k.bias") or model.position_embedding_type == "rope"


def compare_with_differences(model, weights, batch, rng, grads, probes=1):
    """Compares each gradient with difference quotients, along a random direction and in single elements.
    -> the largest (difference / allowed), the parameter that has it, and the parameters of which a gradient that is off
    by one part in 10,000 would not be detected."""
    worst, where, missed = 0.0, "", []
    for name, w in weights.items():
        directions = [rng.standard_normal(w.shape)]
        for _ in range(probes):
            one = np.zeros(w.shape)
            one.flat[rng.integers(w.size)] = 1.0
            directions.append(one)
        for direction in directions:
            quotient = slope_by_differences(model, weights, batch, name, direction)
            slope = float((grads[name] * direction).sum())
            ratio = abs(quotient - slope) / allowed_difference(slope, direction)
            if ratio > worst:
                worst, where = ratio, name
            wrong = 1.0001 * slope
            if direction is directions[0] and has_gradient(model, name):
                missed += [name] if abs(quotient - wrong) < allowed_difference(wrong, direction) else []
    return worst, where, missed


def lively_weights(model, rng):
    """Weights far from the symmetric start, where biases and norm weights would hide their mistakes."""
    return {
        name: rng.standard_normal(shape) * 0.3 + (1.0 if start == "one" else 0.0)
        for name, shape, start in parameter_table(model)
    }


def check_gradients(title, model, rng, documents=None):
    weights = lively_weights(model, rng)
    batch = random_batch(model, rng, documents=documents)
    _, grads = loss_and_grads(model, weights, batch)
    worst, where, missed = compare_with_differences(model, weights, batch, rng, grads)
    print(f"{title}: finite differences at {worst:.3f} of the allowed difference ({where})")
    problems = [] if worst < 1.0 else [f"{title}: the gradient of {where} differs from finite differences"]
    problems += [f"{title}: a gradient of {name} off by 0.01 % was not detected" for name in missed]
    return problems


def check_functions():
    """The slope of each activation function, at points around 0, where squared ReLU's has a corner."""
    problems, x, step = [], np.linspace(-6.0, 6.0, 100), 1e-4
    for name, (function, slope) in FUNCTIONS.items():
        near, far = function(x + step) - function(x - step), function(x + 2 * step) - function(x - 2 * step)
        quotient = (8.0 * near - far) / (12.0 * step)
        if np.abs(quotient - slope(x)).max() > 1e-10:
            problems.append(f"{name}: its slope differs from finite differences")
        if np.abs(quotient - 1.0001 * slope(x)).max() < 1e-10:
            problems.append(f"{name}: a slope off by 0.01 % was not detected")
    return problems


def check_documents(title, model, rng):
    """Two documents packed in one row give the loss sums and gradients of the two in separate rows."""
    cut, seq = 5, model.seq_length
    documents = (np.arange(seq) >= cut).astype(np.int64)[None]
    packed = random_batch(model, rng, rows=1, documents=documents)
    packed.loss_mask[:] = 1.0
    weights = lively_weights(model, rng)
    loss, grads = loss_and_grads(model, weights, packed)
    expected, expected_grads = 0.0, {name: 0.0 for name in weights}
    for part in (slice(0, cut), slice(cut, seq)):
        alone = Batch(
            *(getattr(packed, f)[:, part] for f in ("tokens", "labels", "positions", "documents", "loss_mask"))
        )
        share = alone.tokens.size / seq
        part_loss, part_grads = loss_and_grads(model, weights, alone)
        expected += share * part_loss
        for name in weights:
            expected_grads[name] = expected_grads[name] + share * part_grads[name]
    worst = max(np.abs(grads[n] - expected_grads[n]).max() for n in weights)
    leak = Batch(packed.tokens, packed.labels, packed.positions, np.zeros_like(packed.documents), packed.loss_mask)
    leaked_loss = Network(model, weights).forward(leak)
    print(f"{title}: packed against separate documents: loss {abs(loss - expected):.1e}, gradients {worst:.1e}")
    problems = []
    if not (abs(loss - expected) < 1e-13 * seq and worst < 1e-12):
        problems.append(f"{title}: packed documents see each other")
    if abs(leaked_loss - expected) < 1e-6:
        problems.append(f"{title}: ignoring the document ids was not detected")
    return problems


def check_window(rng):
    """With windows of 4 tokens in both of two layers, the last token sees six tokens before itself, and no others."""
    model = replace(WINDOW, window_attn_skip_freq=0)
    batch, weights = random_batch(model, rng, rows=1), lively_weights(model, rng)
    batch.loss_mask[:] = 0.0
    batch.loss_mask[0, -1] = 1.0
    loss, seen = Network(model, weights).forward(batch), []
    for s in range(model.seq_length):
        tokens = batch.tokens.copy()
        tokens[0, s] = (tokens[0, s] + 1) % model.vocab_size
        seen.append(Network(model, weights).forward(replace(batch, tokens=tokens)) != loss)
    expected = [s >= model.seq_length - 7 for s in range(model.seq_length)]
    print(f"window: the last token sees {sum(seen)} tokens")
    return [] if seen == expected else [f"window: the last token sees {seen}"]


def check_philox():
    """The known answers of Philox4x32-10 that Salmon et al. publish with Random123 (counter and key 0, all ones)."""
    problems = []
    zero = philox_words((0, 0), 0, [0])[0].tolist()
    ones = philox_words((2**32 - 1, 2**32 - 1), 2**64 - 1, [2**64 - 1])[0].tolist()
    if zero != [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]:
        problems.append("philox: wrong words at counter 0")
    if ones != [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]:
        problems.append("philox: wrong words at the last counter")
    normal = philox_normal(philox_key(1234, "embedding.weight"), 0, 20000).astype(np.float64)
    if abs(normal.mean()) > 0.03 or abs(normal.std() - 1.0) > 0.03:
        problems.append(f"philox: normals with mean {normal.mean()} and deviation {normal.std()}")
    return problems


def check_adamw():
    """One step on one element, computed by hand: with bias correction the first step is nearly lr * sign(g)."""
    adam = Adam(lr=0.5, weight_decay=0.1, adam_eps=0.0, clip_grad=1.0)
    weights = {"matrix": np.array([[2.0]]), "bias": np.array([2.0])}
    norm = AdamW(adam, weights).step(weights, {"matrix": np.array([[3.0]]), "bias": np.array([-4.0])})
    good = norm == 5.0 and abs(weights["matrix"][0, 0] - (2.0 - 0.5 * (1.0 + 0.2))) < 1e-15
    return [] if good and abs(weights["bias"][0] - 2.5) < 1e-15 else ["adamw: the first step is wrong"]


def self_check():
    rng = np.random.default_rng(7)
    two_documents = np.repeat((np.arange(12) >= 5).astype(np.int64)[None], 2, axis=0)
    problems = check_philox() + check_adamw() + check_functions()
    problems += check_gradients("gpt", GPT2, rng)
    problems += check_gradients("gpt with documents", GPT2, rng, two_documents)
    problems += check_gradients("llama", LLAMA, rng)
    problems += check_gradients("llama with documents", LLAMA, rng, two_documents)
    problems += check_gradients("qwen", QWEN, rng)
    problems += check_gradients("yarn", YARN, rng)
    problems += check_gradients("parallel", PARALLEL, rng)
    problems += check_gradients("neox", NEOX, rng)
    problems += check_gradients("window", WINDOW, rng)
    problems += check_window(rng)
    problems += check_gradients("alibi", ALIBI, rng)
    problems += check_gradients("alibi with documents", ALIBI, rng, two_documents)
    problems += check_gradients("softcap", SOFTCAP, rng)
    problems += check_documents("gpt", GPT2, rng)
    problems += check_documents("llama", LLAMA, rng)
    for problem in problems:
        print(problem, file=sys.stderr)
    print("reference_gpt: " + ("all checks passed" if not problems else f"{len(problems)} checks failed"))
    return 1 if problems else 0
