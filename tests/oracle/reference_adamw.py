# SPDX-License-Identifier: Apache-2.0
"""The optimizer of the reference (reference_gpt.py): AdamW, Loshchilov and Hutter 2019."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Adam:
    lr: float = 1e-2
    weight_decay: float = 0.1
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_eps: float = 1e-8
    clip_grad: float = 1.0


def global_norm(grads):
    return math.sqrt(sum(float((g * g).sum()) for g in grads.values()))


def decays(name, weight):
    """Matrices decay, including the embedding and position tables; biases and norms do not."""
    return weight.ndim == 2


class AdamW:
    """Decoupled weight decay, bias-corrected moments, and before them Megatron's clipping by the global norm."""

    def __init__(self, adam, weights):
        self.adam = adam
        self.step_count = 0
        self.m = {name: np.zeros_like(w) for name, w in weights.items()}
        self.v = {name: np.zeros_like(w) for name, w in weights.items()}

    def step(self, weights, grads):
        """Updates the weights in place -> the norm of the gradients before clipping."""
        a = self.adam
        self.step_count += 1
        norm = global_norm(grads)
        clip = min(1.0, a.clip_grad / (norm + 1e-6))
        for name, w in weights.items():
            g = grads[name] * clip
            self.m[name] = a.adam_beta1 * self.m[name] + (1.0 - a.adam_beta1) * g
            self.v[name] = a.adam_beta2 * self.v[name] + (1.0 - a.adam_beta2) * g * g
            mhat = self.m[name] / (1.0 - a.adam_beta1**self.step_count)
            vhat = self.v[name] / (1.0 - a.adam_beta2**self.step_count)
            decay = a.weight_decay if decays(name, w) else 0.0
            w -= a.lr * (mhat / (np.sqrt(vhat) + a.adam_eps) + decay * w)
        return norm
