#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 and Llama in NumPy, in double precision, with derivatives derived by hand.

An independent implementation of what Cuboid trains. It shares no code with the C program: the model is
written from the papers (Vaswani et al. 2017; Radford et al. 2019; Touvron et al. 2023; RoPE, Su et al.
2021; GQA, Ainslie et al. 2023; RMSNorm, Zhang and Sennrich 2019; parallel branches, Black et al. 2022),
and slowly on purpose: one rank, whole tensors, S x S attention. reference_adamw.py is its optimizer.

    tokens [B,S] -> embedding (+ position) -> L x block -> norm -> x head^T -> mean cross entropy

    block:  x += proj(attention(norm1(x)))        every weight is [out, in], y = x W^T + b
            x += fc2(gelu(fc1(norm2(x))))         or fc2(silu(gate(..)) * up(..)) for swiglu
            or in parallel, both from the same x, through two norms or through one

Every forward step has its `_backward` below it, which takes the gradient of the loss for the output and
gives the gradients for the inputs. `--self-check` (check_reference.py) compares them with finite
differences, and make_golden.py writes the values that Cuboid is compared with.

Caution: only the *initial* weights are single precision. They are drawn exactly as Cuboid draws them,
rounded to fp32 where Cuboid rounds, and everything after that is fp64.
"""

import argparse
import math
import sys
from dataclasses import dataclass, replace

import numpy as np

from activations import FUNCTIONS, GATES
from philox import philox_key, philox_normal


@dataclass(frozen=True)
class Model:
    """The recipe's `model:` keys, as far as they change the mathematics. Dropout is 0 here."""

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_query_groups: int  # key/value heads G; attention head h reads group h // (A/G)
    ffn_hidden_size: int
    seq_length: int
    vocab_size: int
    position_embedding_type: str = "learned_absolute"  # or "rope", "alibi"
    rotary_base: float = 10000.0
    normalization: str = "LayerNorm"  # or "RMSNorm"
    norm_epsilon: float = 1e-5
    activation: str = "gelu"  # or another of FUNCTIONS, or one of GATES
    add_bias_linear: bool = True
    tie_word_embeddings: bool = True
    init_method_std: float = 0.02
    # Keys that golden files list only where they are not the default.
    add_qkv_bias: bool = False
    qk_layernorm: bool = False  # of each head, before RoPE
    rotary_percent: float = 1.0
    rotary_interleaved: bool = False
    use_rope_scaling: bool = False
    rope_scaling_type: str = "llama3"  # or "linear", "ntk", "yarn"
    rope_scaling_factor: float = 8.0
    rope_low_freq_factor: float = 1.0
    rope_high_freq_factor: float = 4.0
    rope_beta_fast: float = 32.0
    rope_beta_slow: float = 1.0
    rope_original_max_position_embeddings: int = 8192
    embed_layernorm: bool = False  # a norm after the word embedding, before positions are added
    block_type: str = "sequential"  # or "parallel", "parallel_two_norms"
    window_size: int = 0  # tokens that a token sees, with itself; 0: all before it
    window_attn_skip_freq: int = 0  # every N-th layer has no window; 0: all have it
    attn_logit_softcapping: float = 0.0  # scores x become cap tanh(x / cap); 0: they do not
    final_logit_softcapping: float = 0.0  # the same of the logits

    @property
    def head_dim(self):
        return self.hidden_size // self.num_attention_heads


# The two small models of the self-check and of the golden files.
GPT2 = Model(
    num_layers=2,
    hidden_size=16,
    num_attention_heads=4,
    num_query_groups=4,
    ffn_hidden_size=64,
    seq_length=12,
    vocab_size=37,
    init_method_std=0.05,
)
LLAMA = replace(
    GPT2,
    num_query_groups=2,
    ffn_hidden_size=40,
    position_embedding_type="rope",
    normalization="RMSNorm",
    activation="swiglu",
    add_bias_linear=False,
    tie_word_embeddings=False,
)


# Qwen2's biases, Qwen3's norms of the heads, and Llama 3.1's frequencies; and YaRN's on half of each head, in
# neighbouring pairs as in GPT-J.
QWEN = replace(
    LLAMA,
    add_qkv_bias=True,
    qk_layernorm=True,
    use_rope_scaling=True,
    rope_original_max_position_embeddings=40,
    tie_word_embeddings=True,
)
YARN = replace(
    LLAMA,
    hidden_size=32,
    normalization="LayerNorm",
    qk_layernorm=True,
    rotary_percent=0.75,
    rotary_interleaved=True,
    use_rope_scaling=True,
    rope_scaling_type="yarn",
    rope_scaling_factor=3.0,
    rope_beta_fast=0.9,
    rope_beta_slow=0.01,
    rope_original_max_position_embeddings=16,
)
# BLOOM's norm of the embedding, and GPT-J's block with one norm; and GPT-NeoX's with two.
PARALLEL = replace(
    GPT2,
    ffn_hidden_size=40,
    embed_layernorm=True,
    block_type="parallel",
    activation="geglu",
)
NEOX = replace(
    LLAMA,
    normalization="LayerNorm",
    block_type="parallel_two_norms",
    activation="gelu_tanh",
    rotary_percent=0.5,
    add_bias_linear=True,
)
# Mistral's window, in every other layer as in Gemma 2.
WINDOW = replace(LLAMA, window_size=4, window_attn_skip_freq=2)
# BLOOM's positions, with a number of heads that is no power of two.
ALIBI = replace(
    GPT2,
    hidden_size=24,
    num_attention_heads=12,
    num_query_groups=12,
    ffn_hidden_size=32,
    position_embedding_type="alibi",
)

# Gemma 2's caps, so small that they matter here; its gate, and its window.
SOFTCAP = replace(
    LLAMA,
    window_size=4,
    window_attn_skip_freq=2,
    activation="geglu_tanh",
    init_method_std=0.1,
    attn_logit_softcapping=0.1,
    final_logit_softcapping=0.5,
)


@dataclass
class Batch:
    """One step's data: inputs and labels [B,S], and per token a position, a document, a loss weight of 0 or 1."""

    tokens: np.ndarray
    labels: np.ndarray
    positions: np.ndarray
    documents: np.ndarray
    loss_mask: np.ndarray


# ---------------------------------------------------------------------------------------- parameters


def parameter_table(model):
    """Every parameter as (name, shape, start), start being "one", "zero" or a standard deviation."""
    h, f, d = model.hidden_size, model.ffn_hidden_size, model.head_dim
    q_rows, kv_rows = model.num_attention_heads * d, model.num_query_groups * d
    std = model.init_method_std
    small = std / math.sqrt(2.0 * model.num_layers)  # the matrices whose output is added to the residual stream (GPT-2)
    rows = []

    def linear(name, out_size, in_size, deviation, bias=False):
        rows.append((name + ".weight", (out_size, in_size), deviation))
        if model.add_bias_linear or bias:
            rows.append((name + ".bias", (out_size,), "zero"))

    def norm(name, size=h):
        rows.append((name + ".weight", (size,), "one"))
        if model.normalization == "LayerNorm":
            rows.append((name + ".bias", (size,), "zero"))

    rows.append(("embedding.weight", (model.vocab_size, h), std))
    if model.embed_layernorm:
        norm("embedding_norm")
    if model.position_embedding_type == "learned_absolute":
        rows.append(("position.weight", (model.seq_length, h), std))
    for n in range(model.num_layers):
        layer = f"layers.{n}."
        norm(layer + "norm1")
        linear(layer + "attention.q", q_rows, h, std, model.add_qkv_bias)
        linear(layer + "attention.k", kv_rows, h, std, model.add_qkv_bias)
        linear(layer + "attention.v", kv_rows, h, std, model.add_qkv_bias)
        if model.qk_layernorm:
            norm(layer + "attention.q_norm", d)
            norm(layer + "attention.k_norm", d)
        linear(layer + "attention.proj", h, q_rows, small)
        if model.block_type != "parallel":
            norm(layer + "norm2")
        if model.activation in GATES:
            linear(layer + "mlp.gate", f, h, std)
            linear(layer + "mlp.up", f, h, std)
        else:
            linear(layer + "mlp.fc1", f, h, std)
        linear(layer + "mlp.fc2", h, f, small)
    norm("norm")
    if not model.tie_word_embeddings:
        rows.append(("head.weight", (model.vocab_size, h), std))
    return rows


def initial_weights(model, seed):
    """name -> fp64 array whose values are exactly the fp32 numbers that Cuboid starts from."""
    weights = {}
    for name, shape, start in parameter_table(model):
        if start == "one":
            weights[name] = np.ones(shape)
        elif start == "zero":
            weights[name] = np.zeros(shape)
        else:
            normal = philox_normal(philox_key(seed, name), 0, math.prod(shape))
            weights[name] = (normal * np.float32(start)).astype(np.float64).reshape(shape)
    return weights


# ------------------------------------------------------------------------------------------- the maths

def linear(x, weight, bias):
    """x [..., in], weight [out, in], bias [out] or None -> [..., out]"""
    y = x @ weight.T
    return y if bias is None else y + bias


def linear_backward(dy, x, weight):
    """-> dx, dweight, dbias"""
    dy_rows, x_rows = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
    return dy @ weight, dy_rows.T @ x_rows, dy_rows.sum(axis=0)


def layer_norm(x, weight, bias, epsilon):
    """Over the last dimension, with the biased variance. Keeps the normalized x and 1/sigma for the backward pass."""
    centred = x - x.mean(axis=-1, keepdims=True)
    rstd = 1.0 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)
    xhat = centred * rstd
    return xhat * weight + bias, (xhat, rstd)


def layer_norm_backward(dy, weight, kept):
    """xhat has mean 0 and mean square (nearly) 1, so dx loses its parts along 1 and along xhat."""
    xhat, rstd = kept
    dxhat = dy * weight
    along_one = dxhat.mean(axis=-1, keepdims=True)
    along_xhat = (dxhat * xhat).mean(axis=-1, keepdims=True)
    dx = rstd * (dxhat - along_one - xhat * along_xhat)
    tokens = tuple(range(dy.ndim - 1))
    return dx, (dy * xhat).sum(axis=tokens), dy.sum(axis=tokens)


def rms_norm(x, weight, epsilon):
    rstd = 1.0 / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon)
    xhat = x * rstd
    return xhat * weight, (xhat, rstd)


def rms_norm_backward(dy, weight, kept):
    xhat, rstd = kept
    dxhat = dy * weight
    dx = rstd * (dxhat - xhat * (dxhat * xhat).mean(axis=-1, keepdims=True))
    return dx, (dy * xhat).sum(axis=tuple(range(dy.ndim - 1)))


def rope_frequencies(model, rotated):
    """The angle per position of each pair of the `rotated` channels, and the factor of sines and cosines. Llama 3.1
    (Meta's reference implementation), position interpolation (Chen et al. 2023), NTK-aware (bloc97 2023), YaRN (Peng
    et al. 2023)."""
    pair, factor = np.arange(rotated // 2), model.rope_scaling_factor
    f = model.rotary_base ** (-2.0 * pair / rotated)
    original, kind = model.rope_original_max_position_embeddings, model.rope_scaling_type
    if not model.use_rope_scaling:
        return f, 1.0
    if kind == "linear":
        return f / factor, 1.0
    if kind == "ntk":
        return (model.rotary_base * factor ** (rotated / (rotated - 2))) ** (-2.0 * pair / rotated), 1.0
    if kind == "llama3":
        low, high, wavelength = model.rope_low_freq_factor, model.rope_high_freq_factor, 2.0 * math.pi / f
        smooth = (original / wavelength - low) / (high - low)
        between = (1.0 - smooth) * f / factor + smooth * f
        shorter = np.where(wavelength < original / high, f, between)
        return np.where(wavelength > original / low, f / factor, shorter), 1.0

    def pair_with(rotations):
        return rotated * math.log(original / (rotations * 2.0 * math.pi)) / (2.0 * math.log(model.rotary_base))

    first, last = max(math.floor(pair_with(model.rope_beta_fast)), 0), pair_with(model.rope_beta_slow)
    last = min(math.ceil(last), rotated - 1)
    ramp = np.clip((pair - first) / max(last - first, 0.001), 0.0, 1.0)
    return f / factor * ramp + f * (1.0 - ramp), 0.1 * math.log(factor) + 1.0


def rotate(x, positions, model, direction):
    """RoPE on x [B,S,heads,D]: the pair (i, i + r/2), or (2i, 2i + 1), of the first r channels turns by position *
    frequency. direction +1 turns forward; -1 turns back, which is the transpose and so the backward pass."""
    rotated = int(x.shape[-1] * model.rotary_percent)
    frequency, size = rope_frequencies(model, rotated)
    angle = direction * positions[:, :, None, None] * frequency
    cos, sin = size * np.cos(angle), size * np.sin(angle)
    y = x.copy()
    if model.rotary_interleaved:
        first, second = slice(0, rotated, 2), slice(1, rotated, 2)
    else:
        first, second = slice(0, rotated // 2), slice(rotated // 2, rotated)
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., second] * cos + x[..., first] * sin
    return y


def window_of_layer(model, layer):
    """Layers are counted from 0; 0: no window."""
    skipped = model.window_attn_skip_freq and (layer + 1) % model.window_attn_skip_freq == 0
    return 0 if skipped else model.window_size


def alibi_slopes(heads):
    """Press et al. 2022 for a power of two; else as in BLOOM: those of the next lower power, and odd powers of the
    ratio of twice as many heads."""
    below = 2 ** math.floor(math.log2(heads))
    ratio, odd_ratio = 2.0 ** (-8.0 / below), 2.0 ** (-4.0 / below)
    return np.array([ratio**i for i in range(1, below + 1)] + [odd_ratio ** (2 * i + 1) for i in range(heads - below)])


def softcap(x, cap):
    return cap * np.tanh(x / cap) if cap else x


def softcap_slope(y, cap):
    """The derivative of softcap(x, cap), from its value y."""
    return 1.0 - (y / cap) ** 2 if cap else np.ones_like(y)


def attention(q, k, v, documents, window, alibi, cap):
    """q [B,S,A,D], k and v [B,S,G,D] -> [B,S,A,D], the weights, and the slope of the scores' cap. A token sees itself
    and earlier ones of its document and window."""
    per_group = q.shape[2] // k.shape[2]
    k_all, v_all = np.repeat(k, per_group, axis=2), np.repeat(v, per_group, axis=2)
    seq = q.shape[1]
    earlier = np.tril(np.ones((seq, seq), dtype=bool))
    if window:
        earlier &= ~np.tril(np.ones((seq, seq), dtype=bool), -window)
    visible = earlier & (documents[:, :, None] == documents[:, None, :])
    scores = softcap(np.einsum("bihd,bjhd->bhij", q, k_all) / math.sqrt(q.shape[-1]), cap)
    slope = softcap_slope(scores, cap)
    if alibi:
        scores = scores + alibi_slopes(q.shape[2])[:, None, None] * (np.arange(seq) - np.arange(seq)[:, None])
    scores = np.where(visible[:, None], scores, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return np.einsum("bhij,bjhd->bihd", p, v_all), p, slope


def attention_backward(dy, q, k, v, p, slope):
    """-> dq, dk, dv. Masked pairs (p = 0) have no gradient; a key's gradient is the sum over its group's heads."""
    groups = k.shape[2]
    per_group = q.shape[2] // groups
    k_all, v_all = np.repeat(k, per_group, axis=2), np.repeat(v, per_group, axis=2)
    dv_all = np.einsum("bhij,bihd->bjhd", p, dy)
    dp = np.einsum("bihd,bjhd->bhij", dy, v_all)
    dscores = p * (dp - (p * dp).sum(axis=-1, keepdims=True)) * slope / math.sqrt(q.shape[-1])
    dq = np.einsum("bhij,bjhd->bihd", dscores, k_all)
    dk_all = np.einsum("bhij,bihd->bjhd", dscores, q)

    def collect(all_heads):
        b, s, _, d = all_heads.shape
        return all_heads.reshape(b, s, groups, per_group, d).sum(axis=3)

    return dq, collect(dk_all), collect(dv_all)


def cross_entropy(logits, labels, loss_mask):
    """Sum of the unmasked tokens' losses over their number, in nats -> loss, dlogits"""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    of_label = np.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0]
    counted = loss_mask.sum()
    dlogits = np.exp(log_p)
    b, s = np.indices(labels.shape)
    dlogits[b, s, labels] -= 1.0
    return -(of_label * loss_mask).sum() / counted, dlogits * (loss_mask / counted)[..., None]


# ------------------------------------------------------------------------------------------- the model


class Network:
    """One forward and one backward pass. `kept` holds, under a layer's name, what its backward pass reads."""

    def __init__(self, model, weights):
        self.model = model
        self.weights = weights
        self.kept = {}

    # The three kinds of layer that own weights: each reads them, and adds to their gradients, by name.

    def linear(self, name, x):
        self.kept[name] = x
        return linear(x, self.weights[name + ".weight"], self.weights.get(name + ".bias"))

    def linear_backward(self, name, dy):
        dx, dweight, dbias = linear_backward(dy, self.kept[name], self.weights[name + ".weight"])
        self.grads[name + ".weight"] += dweight
        if name + ".bias" in self.grads:
            self.grads[name + ".bias"] += dbias
        return dx

    def norm(self, name, x):
        weight, epsilon = self.weights[name + ".weight"], self.model.norm_epsilon
        if self.model.normalization == "LayerNorm":
            y, self.kept[name] = layer_norm(x, weight, self.weights[name + ".bias"], epsilon)
        else:
            y, self.kept[name] = rms_norm(x, weight, epsilon)
        return y

    def norm_backward(self, name, dy):
        weight, kept = self.weights[name + ".weight"], self.kept[name]
        if self.model.normalization == "LayerNorm":
            dx, dweight, dbias = layer_norm_backward(dy, weight, kept)
            self.grads[name + ".bias"] += dbias
        else:
            dx, dweight = rms_norm_backward(dy, weight, kept)
        self.grads[name + ".weight"] += dweight
        return dx

    def attention(self, name, x, batch):
        m, layer = self.model, int(name.split(".")[1])

        def heads(y, count):
            return y.reshape(y.shape[0], y.shape[1], count, m.head_dim)

        q = heads(self.linear(name + ".q", x), m.num_attention_heads)
        k = heads(self.linear(name + ".k", x), m.num_query_groups)
        v = heads(self.linear(name + ".v", x), m.num_query_groups)
        if m.qk_layernorm:
            q, k = self.norm(name + ".q_norm", q), self.norm(name + ".k_norm", k)
        if m.position_embedding_type == "rope":
            q = rotate(q, batch.positions, m, +1)
            k = rotate(k, batch.positions, m, +1)
        alibi = m.position_embedding_type == "alibi"
        window, cap = window_of_layer(m, layer), m.attn_logit_softcapping
        y, p, slope = attention(q, k, v, batch.documents, window, alibi, cap)
        self.kept[name] = (q, k, v, p, slope)
        return self.linear(name + ".proj", y.reshape(x.shape[0], x.shape[1], -1))

    def attention_backward(self, name, dy, batch):
        q, k, v, p, slope = self.kept[name]
        dy = self.linear_backward(name + ".proj", dy).reshape(q.shape)
        dq, dk, dv = attention_backward(dy, q, k, v, p, slope)
        if self.model.position_embedding_type == "rope":
            dq = rotate(dq, batch.positions, self.model, -1)
            dk = rotate(dk, batch.positions, self.model, -1)
        if self.model.qk_layernorm:
            dq, dk = self.norm_backward(name + ".q_norm", dq), self.norm_backward(name + ".k_norm", dk)

        def flat(dx):
            return dx.reshape(dx.shape[0], dx.shape[1], -1)

        return (
            self.linear_backward(name + ".q", flat(dq))
            + self.linear_backward(name + ".k", flat(dk))
            + self.linear_backward(name + ".v", flat(dv))
        )

    def mlp(self, name, x):
        function, _ = FUNCTIONS[GATES.get(self.model.activation, self.model.activation)]
        if self.model.activation in GATES:
            gate, up = self.linear(name + ".gate", x), self.linear(name + ".up", x)
            self.kept[name] = (gate, up)
            return self.linear(name + ".fc2", function(gate) * up)
        before = self.linear(name + ".fc1", x)
        self.kept[name] = before
        return self.linear(name + ".fc2", function(before))

    def mlp_backward(self, name, dy):
        function, slope = FUNCTIONS[GATES.get(self.model.activation, self.model.activation)]
        dy = self.linear_backward(name + ".fc2", dy)
        if self.model.activation in GATES:
            gate, up = self.kept[name]
            dx = self.linear_backward(name + ".gate", dy * up * slope(gate))
            return dx + self.linear_backward(name + ".up", dy * function(gate))
        return self.linear_backward(name + ".fc1", dy * slope(self.kept[name]))

    def block(self, layer, x, batch):
        kind, normed = self.model.block_type, self.norm(layer + "norm1", x)
        attended = self.attention(layer + "attention", normed, batch)
        if kind == "sequential":
            x = x + attended
            return x + self.mlp(layer + "mlp", self.norm(layer + "norm2", x))
        if kind == "parallel_two_norms":
            normed = self.norm(layer + "norm2", x)
        return x + attended + self.mlp(layer + "mlp", normed)

    def block_backward(self, layer, dy, batch):
        kind, dmlp = self.model.block_type, self.mlp_backward(layer + "mlp", dy)
        if kind == "sequential":
            dy = dy + self.norm_backward(layer + "norm2", dmlp)
            return dy + self.norm_backward(layer + "norm1", self.attention_backward(layer + "attention", dy, batch))
        dattended = self.attention_backward(layer + "attention", dy, batch)
        if kind == "parallel":
            return dy + self.norm_backward(layer + "norm1", dattended + dmlp)
        return dy + self.norm_backward(layer + "norm1", dattended) + self.norm_backward(layer + "norm2", dmlp)

    def forward(self, batch):
        """-> the mean loss of the batch"""
        w, m = self.weights, self.model
        x = w["embedding.weight"][batch.tokens]
        if m.embed_layernorm:
            x = self.norm("embedding_norm", x)
        if m.position_embedding_type == "learned_absolute":
            x = x + w["position.weight"][batch.positions]
        for n in range(m.num_layers):
            x = self.block(f"layers.{n}.", x, batch)
        x = self.norm("norm", x)
        self.kept["head"] = x
        head = "embedding.weight" if m.tie_word_embeddings else "head.weight"
        logits = softcap(x @ w[head].T, m.final_logit_softcapping)
        loss, dlogits = cross_entropy(logits, batch.labels, batch.loss_mask)
        self.dlogits = dlogits * softcap_slope(logits, m.final_logit_softcapping)
        return loss

    def backward(self, batch):
        """After forward: fills `grads`. A tied embedding has two contributions, as the head and as the embedding."""
        m, head = self.model, "embedding.weight" if self.model.tie_word_embeddings else "head.weight"
        self.grads = {name: np.zeros_like(w) for name, w in self.weights.items()}
        dx, dhead, _ = linear_backward(self.dlogits, self.kept["head"], self.weights[head])
        self.grads[head] += dhead
        dx = self.norm_backward("norm", dx)
        for n in reversed(range(m.num_layers)):
            dx = self.block_backward(f"layers.{n}.", dx, batch)
        if m.position_embedding_type == "learned_absolute":
            np.add.at(self.grads["position.weight"], batch.positions, dx)
        if m.embed_layernorm:
            dx = self.norm_backward("embedding_norm", dx)
        np.add.at(self.grads["embedding.weight"], batch.tokens, dx)


def loss_and_grads(model, weights, batch):
    network = Network(model, weights)
    loss = network.forward(batch)
    network.backward(batch)
    return loss, network.grads


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--self-check", action="store_true", help="compare the derivatives with finite differences")
    if not parser.parse_args().self_check:
        parser.error("nothing to do without --self-check; the golden files are written by make_golden.py")
    from check_reference import self_check  # here, because it imports this file

    return self_check()


if __name__ == "__main__":
    sys.exit(main())
