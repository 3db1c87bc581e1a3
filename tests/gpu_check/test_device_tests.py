# SPDX-License-Identifier: Apache-2.0
"""Every test that can run on the cuda device is run by tools/gpu_check, or named here with the reason why not. These
tests are known from the build: they are linked with the fixture of the op tests, or with the emulated GPU.

    test_device_tests.py BUILD_ROOT SOURCE_ROOT"""
import glob
import os
import re
import sys
import unittest

BUILD, ROOT = (os.path.abspath(word) for word in sys.argv[1:3])
sys.path.insert(0, f"{ROOT}/tools/gpu")
sys.dont_write_bytecode = True
import gpu_tests  # noqa: E402

EMULATOR = "needs the emulator's counters or its injected failures"
TRAININGS = "golden, bits and nccl train with the same layers and transports"
NOT_RUN = {
    "unit/emulator": EMULATOR, "unit/mma": EMULATOR, "unit/wgmma": EMULATOR, "unit/wgmma_left": EMULATOR,
    "unit/attention_backend": EMULATOR, "unit/device_cuda": EMULATOR, "unit/gemm_choose": EMULATOR,
    "unit/graphs": EMULATOR, "unit/mirror": EMULATOR, "unit/perturb": EMULATOR,
    "unit/ops_reference": "tests the references themselves, in double precision", "unit/weights": "runs no ops",
    "ranks/backends": EMULATOR, "ranks/failure": EMULATOR, "ranks/gpu_step": EMULATOR, "ranks/graphs": EMULATOR,
    "ranks/nccl": EMULATOR, "ranks/verify_gpu": EMULATOR,
    "unit/attention_rows": "tests shapes that cuda does not support: fewer queries than keys, other head sizes of v",
    "ranks/comm": TRAININGS, "ranks/pipeline": TRAININGS, "ranks/sharded": TRAININGS, "ranks/formats": TRAININGS,
    "ranks/layers": TRAININGS, "ranks/layer_order": TRAININGS,
}
RUN = {f"unit/{name}" for name in gpu_tests.TESTS} | {"ranks/golden"}
DEVICE = r"\btests/(?:support/libops_support\w*|emulator/libemulated_gpu)\.a\b"


def device_tests(ninja):
    """The programs of tests/unit and tests/ranks that are linked so, named by the source of their main()."""
    found = set()
    for line in re.findall(r"^build tests/(?:unit|ranks)/\w+: c(?:pp)?_LINKER .*$", ninja, re.MULTILINE):
        if re.search(DEVICE, line):
            found |= set(re.findall(r"tests/(unit|ranks)/\w+\.p/\w+_test_(\w+)\.c(?:pp)?\.o\b", line))
    return {"/".join(name) for name in found}


class DeviceTests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(f"{BUILD}/build.ninja", encoding="utf-8") as text:
            cls.ninja = text.read()

    def test_each_is_run_or_has_a_reason_why_not(self):
        built = device_tests(self.ninja)
        self.assertGreater(len(built), len(gpu_tests.TESTS))
        self.assertEqual(sorted(built - RUN - set(NOT_RUN)), [],
                         "add them to tools/gpu/gather and tools/gpu/gpu_tests.py, or to NOT_RUN here")
        self.assertEqual(sorted(set(gpu_tests.TESTS) - {name[5:] for name in built}), [], "no such tests in the build")

    def test_reasons_are_for_tests_that_exist_and_are_not_run(self):
        self.assertEqual(sorted(RUN & set(NOT_RUN)), [])
        for name in NOT_RUN:
            self.assertTrue(glob.glob(f"{ROOT}/tests/{name.replace('/', '/*/test_')}.c*"), name)

    def test_the_emulated_run_builds_all(self):
        """tests/gpu_check/run_emulated runs the same list, each linked with the emulated GPU."""
        if not re.search(r"^build tests/emulator/libemulated_gpu\.a: ", self.ninja, re.MULTILINE):
            self.skipTest("no emulator in this build")
        mirrored = re.findall(r"^build tests/unit/mirrored_(\w+): ", self.ninja, re.MULTILINE)
        self.assertEqual(sorted(mirrored), sorted(gpu_tests.TESTS))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
