# SPDX-License-Identifier: Apache-2.0
"""Activation functions and their slopes, from the papers: GELU, Hendrycks and Gimpel 2016; squared ReLU, So et al.
2021; gated functions, Shazeer 2020."""

import math

import numpy as np

erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x):
    """x times the normal distribution function at x: the exact form, not the tanh one."""
    return 0.5 * x * (1.0 + erf(x / math.sqrt(2.0)))


def gelu_slope(x):
    below = 0.5 * (1.0 + erf(x / math.sqrt(2.0)))
    density = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    return below + x * density


def gelu_tanh(x):
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def gelu_tanh_slope(x):
    t = np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))
    inner = math.sqrt(2.0 / math.pi) * (1.0 + 3.0 * 0.044715 * x**2)
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner


def squared_relu(x):
    return np.maximum(x, 0.0) ** 2


def squared_relu_slope(x):
    return 2.0 * np.maximum(x, 0.0)


def silu(x):
    """x sigmoid(x)"""
    return x / (1.0 + np.exp(-x))


def silu_slope(x):
    s = 1.0 / (1.0 + np.exp(-x))
    return s + x * s * (1.0 - s)


FUNCTIONS = {
    "gelu": (gelu, gelu_slope),
    "gelu_tanh": (gelu_tanh, gelu_tanh_slope),
    "squared_relu": (squared_relu, squared_relu_slope),
    "silu": (silu, silu_slope),
}
GATES = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}  # the function of the gate
