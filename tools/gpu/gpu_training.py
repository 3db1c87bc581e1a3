# SPDX-License-Identifier: Apache-2.0
"""The parts of tools/gpu/gpu_report.py that measure rates: train, fastest, torch, rates."""
import json
import os
import re
import sys

from gpu_figures import attention_share, copy_shares, dry_bytes, peak_of, read_metrics, training_figures, write_ids
from gpu_session import ONE_RANK, TINY, as_code

COPY_SHARE = 85.0  # target of a memory-bound op, in per cent
ATTENTION_SHARE = 80.0  # of cuDNN's rate


class Model:
    """A model to train. target: the utilization to reach, attention counted in full."""

    def __init__(self, name, recipe, seq, batch, microbatches, target, vocabulary, overrides=()):
        self.name, self.recipe, self.seq, self.batch, self.target = name, recipe, seq, batch, target
        self.microbatches, self.vocabulary, self.overrides = microbatches, vocabulary, list(overrides)
        self.layers = None  # None: the recipe's


MODELS = [
    Model("gpt2-124m", "base/gpt2-124m.yaml", 1024, 32, 4, 45.0, 50257),
    Model("gpt3-1.3b", "base/gpt3-1.3b.yaml", 2048, 4, 8, 50.0, 50257),
    Model("llama3-8b", "base/llama3-8b.yaml", 4096, 1, 8, 50.0, 128256),
]
WAYS = [("deterministic", []),
        ("fastest", ["deterministic=false", "model.attention_backend=auto", "cluster.matmul_epilogues=auto",
                     "cluster.matmul_algorithms={work}/algorithms-train"])]
GRAPHS = ("graphs", WAYS[-1][1] + ["cluster.cuda_graphs=true"])


def shape_overrides(s, model):
    """The overrides of the recipe for this measurement."""
    overrides = [f"model.seq_length={model.seq}", *model.overrides]
    if model.layers is not None:
        overrides.append(f"model.num_layers={model.layers}")
    if s.tiny:
        overrides += TINY + ["model.num_layers=2", "model.num_attention_heads=6", "model.vocab_size=300"]
        overrides += ["model.num_query_groups=2"] if model.name.startswith("llama") else []
    return overrides


def write_ids_once(s, model):
    if not os.path.exists(f"{s.work}/ids-{model.vocabulary}.bin"):
        write_ids(f"{s.work}/ids-{model.vocabulary}", 300 if s.tiny else model.vocabulary)


def train_overrides(s, model, *more):
    batch, microbatches = (2, 2) if s.tiny else (model.batch, model.microbatches)
    return [f"data.train={s.work}/ids-{model.vocabulary}", "tokenizer.tokenizer_type=none",
            "tokenizer.vocab_file=none", "tokenizer.merge_file=none", f"model.vocab_size={model.vocabulary}",
            f"train.micro_batch_size={batch}", f"train.global_batch_size={batch * microbatches}",
            "optimizer.lr_warmup_iters=1", "optimizer.lr_decay_iters=100", "data.split=100,0,0",
            "precision.params_dtype=bf16", *ONE_RANK, *shape_overrides(s, model), *more]


def layers_that_fit(s, model, room):
    """The most layers of 4, 8, 12 ... whose allocations, as a dry run counts them, fit; None: unknown."""
    best = None
    for layers in range(4, 33, 4):
        model.layers = layers
        command, _ = s.train("dry", model.recipe, *train_overrides(s, model, "cluster.device=dry"))
        needed = dry_bytes(s.run(command, 30).out)
        if needed is None or needed > room:
            break
        best = layers
    model.layers = None
    return best


def torch_figures(s, model, layers):
    """PyTorch's step for the same model and batch, or the reason why there is none."""
    batch, microbatches = (2, 2) if s.tiny else (model.batch, model.microbatches)
    command = [sys.executable, s.path("gpu_torch.py"), "--model", model.name, "--batch", str(batch),
               "--microbatches", str(microbatches), "--seq", str(model.seq)]
    command += ["--layers", str(layers)] if layers else []
    outcome = s.run(command + (["--tiny"] if s.tiny else []), 150)
    printed = [line for line in outcome.out.splitlines() if line.strip()]
    figures = [line for line in printed if line.startswith("{")]
    try:
        return json.loads(figures[-1]), ""
    except (IndexError, ValueError):
        return None, printed[-1] if printed and outcome.status is not None else outcome.why


def report_kernels(s, name, out):
    """The kernels that ran: on Hopper, our attention must be the one for its tensor cores."""
    for line in re.findall(r"^(?:attention kernels launched|matmul: cuBLASLt has no algorithm).*$", out, re.MULTILINE):
        s.report.row(f"{name}, kernels", line)
        hopper = re.search(r"\bH[12]00\b", s.gpu_name) and not s.tiny  # (models of an emulated run are too small)
        if hopper and line.startswith("attention") and "wgmma" not in line:
            s.report.failed(f"{name}, attention kernels", f"{line}: not those for Hopper (wgmma)")


def figures_of(s, model, way, overrides, peak):
    """training_figures() of one way to train the model, measured once; None: it failed."""
    key = {"model": model.name, "layers": model.layers, "way": way}
    for known in s.figures:
        if key.items() <= known.items():
            return known
    command, folder = s.train(f"{model.name}-{way}", model.recipe, *train_overrides(
        s, model, f"cluster.device={s.device}", "train.train_iters=8", f"logging.peak_flops={peak or 0:g}",
        *(override.format(work=s.work) for override in overrides)))
    outcome = s.check(f"training, {model.name}, bf16, {way}", command, 90, kind="training")
    if not outcome.good:
        return None
    figures = {**training_figures(read_metrics(folder)), **key}
    s.figures.append(figures)
    share = f", {100 * figures['mfu']:.1f} % of the peak" if peak else ""
    s.report.row(f"{model.name}, {way}",
                 f"{figures['tokens_per_s']:.0f} tokens/s, {figures['step_time_s']:.3g} s{share}")
    if not s.attention:
        report_kernels(s, f"{model.name}, {way}", outcome.out)
    if way == "fastest":
        backends = re.findall(r"^attention: (.*)$", outcome.out, re.MULTILINE)
        s.report.see("faster", bool(backends), "; ".join(backends) or f"{model.name}: no attention backend printed")
    return figures


def best_figures(s, model):
    """The highest rate measured so far, in this call or an earlier one; None: there is none."""
    found = [figures for figures in s.figures if (figures["model"], figures["layers"]) == (model.name, model.layers)]
    return max(found, key=lambda figures: figures["tokens_per_s"], default=None)


def compare_with_torch(s, model, ours, peak):
    """-> both. If PyTorch runs out of memory, both are measured with fewer layers."""
    theirs, why = torch_figures(s, model, model.layers)
    if theirs is None and "out of memory" in why.lower() and model.layers and model.layers > 8:
        model.layers -= 8
        s.report.row(f"PyTorch, {model.name}", f"out of memory; both again with {model.layers} layers")
        overrides = dict([*WAYS, GRAPHS])[ours["way"]]
        ours = figures_of(s, model, ours["way"], overrides, peak) or ours
        theirs, why = torch_figures(s, model, model.layers)
    if theirs is None:
        s.report.row(f"PyTorch, {model.name}", f"not run: {why}")
        return ours, None
    s.report.see(f"{model.name} torch", *s.report.target(
        f"{model.name}, Cuboid's tokens/s over PyTorch's", 100 * ours["tokens_per_s"] / theirs["tokens_per_s"], 110.0))
    return ours, theirs


def models_here(s):
    """The models, with as many layers as fit on this GPU."""
    for model in MODELS:
        write_ids_once(s, model)
        if model.name == "llama3-8b" and not s.tiny and model.layers is None:
            model.layers = layers_that_fit(s, model, 0.9 * s.gpu_bytes)
            if model.layers is None:
                if model.name not in s.unfit:
                    s.report.failed("llama3-8b, layers that fit", "the dry run does not say, or not one does")
                s.unfit.add(model.name)
                continue
        yield model


def part_train(s):
    """The default configuration. A later part may still reach a target that it does not reach."""
    peak = peak_of(s.gpu_name)
    way, overrides = WAYS[0]
    measured = [(model, figures_of(s, model, way, overrides, peak), None) for model in models_here(s)]
    for model, ours, _ in measured:
        if ours and peak and 100 * ours["mfu"] >= model.target:
            s.report.see(f"{model.name} mfu", True, f"{100 * ours['mfu']:.1f} %, {way}")
    training_section(s, "Training, deterministic", peak, measured)


def part_fastest(s):
    """All choices by timing; CUDA graphs for the model with the shortest kernels."""
    peak = peak_of(s.gpu_name)
    measured = []
    for model in models_here(s):
        for way, overrides in [*WAYS[1:], *([GRAPHS] if model.name == "gpt2-124m" else [])]:
            measured.append((model, figures_of(s, model, way, overrides, peak), None))
        ours = best_figures(s, model)
        if ours and peak:
            s.report.see(f"{model.name} mfu", *s.report.target(f"{model.name}, model FLOPs utilization",
                                                               100 * ours["mfu"], model.target))
    training_section(s, "Training, choices by timing", peak, measured)


def part_torch(s):
    """PyTorch's figures next to the best of ours."""
    peak = peak_of(s.gpu_name)
    ours = [(model, best_figures(s, model)) for model in models_here(s)]
    if not any(figures for _, figures in ours):
        s.report.row("PyTorch", "not run: there are no figures of train or fastest to compare with")
        return
    training_section(s, "Training, Cuboid and PyTorch", peak,
                     [(model, *compare_with_torch(s, model, figures, peak)) for model, figures in ours if figures])


def training_section(s, title, peak, measured):
    lines = ["| model | layers | B x S x m | way | Cuboid tok/s | MFU, attention in full | MFU, its causal half "
             "| memory | PyTorch tok/s | Cuboid / PyTorch |", "|---|---|---|---|---|---|---|---|---|---|"]
    lines += [train_line(model, ours, theirs) for model, ours, theirs in measured if ours]
    text = "\n".join(lines)
    text += "\n\nMedians of the steps after the third. In full: 12 layers x S x A x D per token for attention"
    text += " (Narayanan et al. 2021); its causal half is what Megatron-LM counts today."
    text += f" Of {peak / 1e12:.0f} TFLOP/s." if peak else " No peak is known for this GPU."
    s.report.section(title, text)


def train_line(model, ours, theirs):
    def share(x):
        return f"{100 * x:.1f} %" if x is not None else "-"

    cells = [model.name, model.layers or "all", f"{model.batch} x {model.seq} x {model.microbatches}",
             ours["way"], f"{ours['tokens_per_s']:.0f}", share(ours["mfu"]), share(ours["mfu_causal"]),
             f"{ours['memory_peak_bytes'] / 2**30:.1f} GiB"]
    cells += [f"{theirs['tokens_per_s']:.0f}", f"{ours['tokens_per_s'] / theirs['tokens_per_s']:.2f}"] if theirs \
        else ["-", "-"]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def part_rates(s):
    sizes = [("bf16", "gpt2", 16, 1024), ("bf16", "gpt3-1.3b", 4, 2048), ("bf16", "llama3-8b", 1, 4096),
             ("f32", "gpt2", 16, 1024)]
    for dtype, model, batch, seq in sizes:
        batch, seq = (1, 64) if s.tiny else (batch, seq)
        outcome = s.check(f"rates, {dtype}, {model}", [
            s.path("bin", "bench_ops"), f"device={s.device}", f"type={dtype}", f"model={model}", f"batch={batch}",
            f"sequence={seq}", *(["attention=cudnn"] if s.attention else [])], 60, kind="bench_ops")
        if not outcome.known:
            continue
        shares = copy_shares(outcome.out)
        low = {name: share for name, share in shares.items() if share < COPY_SHARE}
        if shares:
            listed = ", ".join(f"{name} {share:.0f}" for name, share in sorted(low.items(), key=lambda x: x[1]))
            s.report.see("copy", not low, f"{dtype}, {model}: {listed}")
            s.report.row(f"at {COPY_SHARE:.0f} % of the copy's rate or more, {dtype}, {model}",
                         f"{len(shares) - len(low)} of {len(shares)} memory-bound ops" +
                         (f"; below: {listed}" if low else ""))
        for line in re.findall(r"^own attention: (.*)$", outcome.out, re.MULTILINE)[:1 if dtype == "bf16" else 0]:
            s.report.row(f"own attention, {dtype}, {model}", line)
            share = attention_share(line)
            s.report.see("attention", share >= ATTENTION_SHARE, f"{model}: {share:.0f} %")
        s.report.section(f"Rates, {dtype}, {model}, batch {batch} x {seq}", as_code(outcome.out))
