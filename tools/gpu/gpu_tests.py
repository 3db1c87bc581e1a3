# SPDX-License-Identifier: Apache-2.0
"""The parts of tools/gpu/gpu_report.py that run test programs: doctor, attention, gemm, ops, the sanitizer's, again."""
import re

from gpu_session import CUDNN, as_code

ATTENTION_TESTS, GEMM_TESTS = ["attention_narrow", "ops_attention"], ["gemm", "gemm_narrow", "gemm_epilogue"]
OP_TESTS = ["ops_rows", "ops_pairs", "ops_sums", "ops_narrow", "ops_bits", "ops_quantize", "ops_stochastic",
            "ops_lists", "loss_scale", "adamw"]
TESTS = [*ATTENTION_TESTS, *GEMM_TESTS, *OP_TESTS]
KINDS = {"own": "the GPU's best kernels", "mma": "mma.sync"}  # of attention (test_attention_narrow.c)
MEMCHECK = [("ops_rows", "*/norm_*ward"), ("attention_narrow", "*/bits*"), ("ops_sums", "*/*"), ("ops_narrow", "*/*"),
            ("ops_attention", "*/*"), ("ops_bits", "*/*")]
RACECHECK = [("ops_rows", "*/norm_*ward"), ("attention_narrow", "*/bits*"), ("ops_sums", "*/*"),
             ("ops_attention", "*/forward_and*")]
ONE_TEST_S = 45  # of attention: limits a test that hangs


def part_doctor(s):
    outcome = s.check("doctor", s.cuboid("doctor"), 40)
    s.report.section("The machine", as_code(outcome.out))


def test_environment(s):
    cudnn = {"CUBOID_TEST_CUDNN": "1"} if s.has_library("libcudnn.so.9") else {}
    return {"CUBOID_TEST_DEVICE": s.device, **cudnn}


def test_names(s, program):
    """The tests listed by a program; a single run of all if it cannot list them."""
    listed = re.findall(r"^\W+ (\w+)$", s.run([s.path("bin", "test_" + program), "--list"], 20).out, re.MULTILINE)
    return listed or ["*"]


def part_attention(s):
    """Each test in a process of its own, with a limit of its own: a kernel that hangs costs one test. After a failure
    of our own tensor-core kernels later parts use cuDNN's, so that the rest can still be tested."""
    failed = {}
    for program in ATTENTION_TESTS:
        bad = []
        kinds = KINDS if program == "attention_narrow" else {"": ""}
        for test in test_names(s, program):
            for kind in kinds:
                which = {"CUBOID_TEST_KIND": kind} if kind else {}
                good = s.check(f"{program}, {test}" + (f", {KINDS[kind]}" if kind else ""),
                               [s.path("bin", "test_" + program), "--filter", f"*/{test}", "-j1"], ONE_TEST_S,
                               {**test_environment(s), **which}).good
                bad += [] if good else [(test, kind)]
        failed[program] = bad
        s.report.wanted.see("ops", not bad, f"{program} failed: {', '.join(sorted({test for test, _ in bad}))}")
    bad = failed["attention_narrow"]
    ours = [test for test, kind in bad if kind == "own" and "cudnn" not in test]
    theirs = [test for test, _ in bad if "cudnn" in test]
    if not ours:
        return
    if theirs or not s.has_library("libcudnn.so.9"):
        why = f"{theirs[0]} failed, too" if theirs else "no libcudnn.so.9 here"
        s.report.row("attention of later parts", f"our own, which failed {ours[0]}: {why}")
        return
    s.attention = [CUDNN]
    s.report.row("attention of later parts", f"**cuDNN's** ({CUDNN}): our own failed {', '.join(ours)}")


def run_tests(s, names, limit):
    for name in names:
        # cuBLASLt's algorithm determines the bits of a GEMM, and depends on alignment.
        which = f"{name}/!(*bits)" if name in ("gemm", "gemm_narrow") else "*/*"
        good = s.check(f"{name} on the GPU", [s.path("bin", "test_" + name), "--filter", which], limit,
                       test_environment(s)).good
        s.report.wanted.see("ops", good, f"{name} failed")


def part_gemm(s):
    run_tests(s, GEMM_TESTS, 40)


def part_ops(s):
    run_tests(s, OP_TESTS, 60)


def sanitize(s, tool, plan):
    sanitizer = s.tool("compute-sanitizer")
    if sanitizer is None:
        s.report.row(tool, "not run: compute-sanitizer is not installed")
        return
    # LD_LIBRARY_PATH is set for our program, which `env` starts, and not for the sanitizer.
    ours = ["env", *(f"{key}={value}" for key, value in s.libraries().items())]
    for name, which in plan:
        if s.left() < 5:
            s.report.row(f"{name}, {tool}", "not run: no time left")
            continue
        good = s.check(f"{name}, {tool}", [
            sanitizer, "--tool", tool, "--target-processes", "all", "--error-exitcode", "9", *ours,
            s.path("bin", "test_" + name), "--filter", which, "-j1"], 90, {"CUBOID_TEST_DEVICE": s.device}).good
        s.report.wanted.see(tool, good, f"{name} failed")


def part_memcheck(s):
    sanitize(s, "memcheck", MEMCHECK)


def part_racecheck(s):
    sanitize(s, "racecheck", RACECHECK)


def part_again(s):
    """Reruns failed checks with blocking launches: a failure that does not reproduce depends on timing."""
    for name, command, limit, env in list(s.broken):
        if s.left() < 5:
            s.report.row(f"again: {name}", "not run: no time left")
            continue
        outcome = s.run(command, min(limit, 40), {**(env or {}), "CUDA_LAUNCH_BLOCKING": "1"})
        s.report.row(f"again, launches one by one: {name}",
                     "ok this time" if outcome.good else f"fails again ({outcome.why})")
        if not outcome.good:
            s.report.section(f"Again: {name}", as_code("\n".join(outcome.out.splitlines()[-40:])))
