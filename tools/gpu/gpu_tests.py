# SPDX-License-Identifier: Apache-2.0
"""The parts of tools/gpu/gpu_report.py that run test programs: doctor, smoke, tests, the sanitizer's, again."""
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
# Forward and backward passes of the wgmma kernels; matrix multiplication in all three layouts.
SMOKE = [("attention_narrow", "launches_wgmma_kernels_on_sm_90", "own"),
         ("attention_narrow", "matches_attention", "own"), ("gemm_narrow", "many_panels", ""),
         ("gemm", "many_panels", "")]


class DoesNotStart(Exception):
    """A program does not start on this machine: nothing that follows would say anything."""


def list_tests(s):
    """The tests of each program, in s.tests. Raises DoesNotStart."""
    def of(name):
        outcome = s.run([s.path("bin", "test_" + name), "--list"], 20)
        s.tests[name] = re.findall(r"^\W+ (\w+)$", outcome.out, re.MULTILINE)
        if outcome.known and not (outcome.good and s.tests[name]):
            raise DoesNotStart(f"test_{name} --list: {outcome.why}: {last_line(outcome)}")

    s.at_once([lambda name=name: of(name) for name in TESTS])


def last_line(outcome):
    return ([line for line in outcome.out.splitlines() if line.strip()] or ["no output"])[-1]


def check_programs(s):
    """Before anything is measured: that each program starts, if there is time for one. Raises DoesNotStart."""
    for name in ("cuboid", "cuboid_counted"):
        outcome = s.run([s.path("bin", name), "--version"], 20)
        if outcome.known and not outcome.good:
            raise DoesNotStart(f"{name} --version: {outcome.why}: {last_line(outcome)}")
    for name in ("bench_ops", "test_golden"):  # They report an argument that they do not have, with status 2.
        outcome = s.run([s.path("bin", name), "nonsense"], 20)
        if outcome.known and outcome.status != 2:
            raise DoesNotStart(f"{name}: {outcome.why}: {last_line(outcome)}")
    list_tests(s)
    if all(s.tests.values()):
        s.report.row("programs that start", f"all {4 + len(TESTS)}")


def part_doctor(s):
    """Raises DoesNotStart if it fails; if it is too slow the rest may still work."""
    outcome = s.check("doctor", s.cuboid("doctor"), 60)
    s.report.section("The machine", as_code(outcome.out))
    if outcome.status not in (0, None):
        raise DoesNotStart(f"cuboid doctor: {outcome.why}: {last_line(outcome)}")


def test_environment(s):
    cudnn = {"CUBOID_TEST_CUDNN": "1"} if s.has_library("libcudnn.so.9") else {}
    return {"CUBOID_TEST_DEVICE": s.device, **cudnn}


def check_test(s, program, test, kind):
    """One test in a process of its own, with a limit of its own: a kernel that hangs costs one test -> (test, kind) and
    its outcome."""
    which = {"CUBOID_TEST_KIND": kind} if kind else {}
    outcome = s.check(f"{program}, {test}" + (f", {KINDS[kind]}" if kind else ""),
                      [s.path("bin", "test_" + program), "--filter", f"*/{test}", "-j1"], ONE_TEST_S,
                      {**test_environment(s), **which}, f"{program} {kind}".strip())
    return test, kind, outcome


def attention_tasks(s, program):
    """cuDNN's tests do not depend on the kind of our own kernels, and run once."""
    kinds = list(KINDS) if program == "attention_narrow" else [""]
    return [lambda test=test, kind=kind: check_test(s, program, test, kind)
            for test in s.tests[program] for kind in (kinds[:1] if "cudnn" in test else kinds)]


def part_smoke(s):
    """The kernels that all training uses, in seconds; with cuDNN's attention, in case that ours fails."""
    cudnn = [("attention_narrow", test, "own") for test in s.tests["attention_narrow"] if "cudnn" in test]
    done = s.at_once([lambda which=which: check_test(s, *which) for which in [*SMOKE, *cudnn]])
    choose_attention(s, [*done[:2], *done[len(SMOKE):]])


def choose_attention(s, done):
    """After a failure of our own tensor-core kernels later parts use cuDNN's, so that the rest can still be tested."""
    bad = [(test, kind) for test, kind, outcome in done if outcome.known and not outcome.good]
    ours = [test for test, kind in bad if kind == "own" and "cudnn" not in test]
    theirs = [test for test, _ in bad if "cudnn" in test]
    if not ours or s.attention:
        return
    if theirs or not s.has_library("libcudnn.so.9"):
        why = f"{theirs[0]} failed, too" if theirs else "no libcudnn.so.9 here"
        s.report.row("attention of later parts", f"our own, which failed {ours[0]}: {why}")
        return
    s.attention = [CUDNN]
    s.report.row("attention of later parts", f"**cuDNN's** ({CUDNN}): our own failed {', '.join(ours)}")


def check_program(s, name):
    """All tests of a program, two at once."""
    # cuBLASLt's algorithm determines the bits of a GEMM, and depends on alignment.
    which = f"{name}/!(*bits)" if name in ("gemm", "gemm_narrow") else "*/*"
    outcome = s.check(f"{name} on the GPU", [s.path("bin", "test_" + name), "--filter", which, "-j2"], 60,
                      test_environment(s))
    if outcome.known:
        s.report.see("ops", outcome.good, f"{name} failed")


def part_tests(s):
    """Attention test by test, the others by program."""
    attention = {program: attention_tasks(s, program) for program in ATTENTION_TESTS}
    tasks = [*sum(attention.values(), []), *(lambda name=name: check_program(s, name) for name in TESTS
                                             if name not in ATTENTION_TESTS)]
    done = s.at_once(tasks)
    for program, tasks in attention.items():
        these, done = done[:len(tasks)], done[len(tasks):]
        bad = sorted({test for test, _, outcome in these if outcome.known and not outcome.good})
        if bad or all(outcome.known for _, _, outcome in these):
            s.report.see("ops", not bad, f"{program} failed: {', '.join(bad)}")
        if program == "attention_narrow":
            choose_attention(s, these)


def sanitize(s, tool, plan):
    sanitizer = s.tool("compute-sanitizer")
    if sanitizer is None:
        s.report.row(tool, "not run: compute-sanitizer is not installed")
        return
    # LD_LIBRARY_PATH is set for our program, which `env` starts, and not for the sanitizer.
    ours = ["env", *(f"{key}={value}" for key, value in s.libraries().items())]
    for name, which in plan:
        if not s.has_time(f"{name}, {tool}"):
            continue
        outcome = s.check(f"{name}, {tool}", [
            sanitizer, "--tool", tool, "--target-processes", "all", "--error-exitcode", "9", *ours,
            s.path("bin", "test_" + name), "--filter", which, "-j1"], 90, {"CUBOID_TEST_DEVICE": s.device}, tool)
        if outcome.known:
            s.report.see(tool, outcome.good, f"{name} failed")


def part_memcheck(s):
    sanitize(s, "memcheck", MEMCHECK)


def part_racecheck(s):
    sanitize(s, "racecheck", RACECHECK)


def part_again(s):
    """Reruns failed checks with blocking launches: a failure that does not reproduce depends on timing."""
    for name, command, limit, env in list(s.broken):
        if not s.has_time(f"again: {name}"):
            continue
        outcome = s.run(command, min(limit, 40), {**(env or {}), "CUDA_LAUNCH_BLOCKING": "1"})
        s.report.row(f"again, launches one by one: {name}",
                     "ok this time" if outcome.good else f"fails again ({outcome.why})")
        if not outcome.good:
            s.report.section(f"Again: {name}", as_code("\n".join(outcome.out.splitlines()[-40:])))
