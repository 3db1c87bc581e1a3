#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes golden_learning_rates.txt: Megatron-LM's rates for 48 combinations of decay style, warm-up and length.

    make_learning_rates.py            writes the file
    make_learning_rates.py --check    recomputes it and compares; exit status 1 when the file is not current

A line is `STYLE WSD_STYLE WARMUP DECAY WSD_DECAY STEP RATE`, with lr 1 and min_lr 0.1, STEP counted from 1 and
the rate as a hexadecimal double.  The definition, with w the warm-up, d the decay length and n the step:

    n <= w, w > 0            lr n / w
    constant                 lr
    n > d                    min_lr
    inverse-square-root      max(min_lr, lr sqrt(max(w, 1) / n))
    linear, cosine           min_lr + shape((n - w) / (d - w)) (lr - min_lr)
    WSD                      min_lr + shape((n - (d - a)) / a) (lr - min_lr) in the last a steps, lr before them

Megatron-LM asserts w < d, and so does this script.  Everything is computed with 40 decimal digits."""
import decimal
import sys
from decimal import Decimal
from pathlib import Path

FILE = Path(__file__).parent / "golden_learning_rates.txt"
LR, MIN_LR = Decimal(1), Decimal(0.1)  # 0.1 as a double, which is what a recipe holds
WARMUPS, LENGTHS, ANNEALING = (0, 1, 40), (50, 1000), 7
decimal.getcontext().prec = 40
PI = Decimal("3.141592653589793238462643383279502884197169")


def cosine(x):
    """Of an angle between 0 and pi, by its series."""
    term, total, n = Decimal(1), Decimal(1), 0
    while abs(term) > Decimal("1e-38"):
        n += 2
        term *= -x * x / (n * (n - 1))
        total += term
    return total


SHAPES = {
    "linear": lambda t: 1 - t,
    "cosine": lambda t: (1 + cosine(PI * t)) / 2,
    "exponential": lambda t: Decimal(2) ** (1 - t) - 1,
    "minus_sqrt": lambda t: 1 - t.sqrt(),
}
STYLES = [(style, "-") for style in ("constant", "linear", "cosine", "inverse-square-root")]
STYLES += [("WSD", shape) for shape in SHAPES]


def rate(style, annealing_shape, warmup, length, step):
    if 0 < warmup and step <= warmup:
        return LR * step / warmup
    if style == "constant":
        return LR
    if step > length:
        return MIN_LR
    if style == "inverse-square-root":
        return max(MIN_LR, LR * (Decimal(max(warmup, 1)) / step).sqrt())
    begin, span, shape = warmup, length - warmup, style
    if style == "WSD":
        begin, span, shape = length - ANNEALING, ANNEALING, annealing_shape
    progress = Decimal(max(step - begin, 0)) / span
    return MIN_LR + SHAPES[shape](progress) * (LR - MIN_LR)


def lines():
    for style, shape in STYLES:
        for warmup in WARMUPS:
            for length in LENGTHS:
                assert warmup < length
                steps = {1, 2, warmup - 1, warmup, warmup + 1, (warmup + length) // 2, length - ANNEALING,
                         length - ANNEALING + 1, length - 1, length, length + 1, 10 * length}  # fmt: skip
                for step in sorted(s for s in steps if s > 0):
                    value = float(rate(style, shape, warmup, length, step)).hex()
                    yield f"{style} {shape} {warmup} {length} {ANNEALING} {step} {value}"


def main():
    text = "\n".join(lines()) + "\n"
    if sys.argv[1:] != ["--check"]:
        FILE.write_text(text)
        return 0
    if FILE.exists() and FILE.read_text() == text:
        return 0
    print(f"{FILE.name} is not current: run tests/oracle/make_learning_rates.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
