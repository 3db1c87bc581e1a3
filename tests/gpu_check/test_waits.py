# SPDX-License-Identifier: Apache-2.0
"""The blocking CUDA calls of each step, as counted by count_calls.c, on the emulator: none that was not
injected; and every call is known to the counter.

    test_waits.py CUBOID_COUNTED INJECTED_WAITS SOURCE_ROOT"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

COUNTED, INJECTED, ROOT = (os.path.abspath(word) for word in sys.argv[1:4])
sys.path.insert(0, f"{ROOT}/tools/gpu")
sys.dont_write_bytecode = True
import gpu_report  # noqa: E402
from gpu_figures import step_calls, waits_as_expected  # noqa: E402
from gpu_session import ONE_RANK, QUIET, TINY, Session  # noqa: E402

SMALL = ["train.train_iters=5", "optimizer.lr_warmup_iters=1", "optimizer.lr_decay_iters=5", "data.split=100,0,0",
         "model.num_layers=2", "train.global_batch_size=2", "precision.params_dtype=bf16", "cluster.device=cuda",
         *TINY, *ONE_RANK, *QUIET]
# Calls that enqueue work on a stream, or return what the host already knows.
RETURN_AT_ONCE = {
    "cudaGetErrorString", "cudaGetLastError", "cudaGetDeviceCount", "cudaSetDevice", "cudaGetDevice",
    "cudaGetDeviceProperties", "cudaDeviceGetPCIBusId", "cudaDeviceGetAttribute", "cudaGetDriverEntryPointByVersion",
    "cudaDriverGetVersion", "cudaRuntimeGetVersion", "cudaMemGetInfo", "cudaStreamWaitEvent",
    "cudaEventCreateWithFlags", "cudaEventDestroy", "cudaEventRecord", "cudaEventElapsedTime", "cudaLaunchHostFunc",
    "cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphUpload", "cudaGraphLaunch", "cudaGraphExecDestroy",
    "cudaGraphDestroy", "cudaFuncSetAttribute"}


class Steps(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = tempfile.tempdir = cls.temporary.name
        subprocess.run([COUNTED, "data", "prepare", f"{ROOT}/trainer/recipe/recipe_table.c", "-o",
                        f"{cls.folder}/text"],
                       check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def steps(self, program, *overrides, hold_s="0", inject="none"):
        run = tempfile.mkdtemp() + "/run"
        out = subprocess.run([program, "train", f"{ROOT}/recipes/quickstart.yaml", f"data.train={self.folder}/text",
                              f"logging.run_dir={run}", *SMALL, *overrides], capture_output=True, text=True, check=True,
                             env={**os.environ, "EMULATOR_STREAMS": "late", "COUNT_HOLD_S": hold_s,
                                              "INJECT": inject}).stdout
        steps = step_calls(out)
        self.assertEqual([step["step"] for step in steps], [1, 2, 3, 4], out)
        return steps

    def test_expected_waits(self):
        for program in (COUNTED, INJECTED):
            for graphs, count in (("false", 0), ("true", 4)):  # two microbatches, forward and backward
                steps = self.steps(program, f"cluster.cuda_graphs={graphs}", hold_s="5")
                for step in steps[2:]:
                    self.assertEqual(step["text"], "inside nothing; at the end cudaEventSynchronize 1 (update)")
                    self.assertTrue(waits_as_expected(step))
                self.assertEqual(steps[1]["inside"], {"cudaGraphInstantiate": (count, "0F0")} if count else {})
                self.assertEqual(steps[0]["free"] - steps[3]["free"], count << 20)  # each takes one MiB in the emulator

    def test_a_timeline_adds_no_wait(self):
        """Steps that are recorded wait as the others do; the file is written after them."""
        for graphs in ("false", "true"):
            profile = ["profile.timeline=true", "profile.profile_step_start=3", "profile.profile_step_end=3"]
            steps = self.steps(COUNTED, f"cluster.cuda_graphs={graphs}", *profile, hold_s="5")
            self.assertEqual([step["inside"] for step in steps[2:]], [{}, {}])
            self.assertEqual([waits_as_expected(step) for step in steps[2:]], [False, True])

    def test_injected_waits(self):
        for inject, seen in (("wait", ["cudaStreamSynchronize"]), ("poll", ["cudaEventQuery"]),
                            ("memory", ["cudaFree", "cudaMalloc"]), ("pinned", ["cudaFreeHost", "cudaMallocHost"]),
                            ("copy", ["cudaMemcpyAsync with memory that is not pinned"]), ("uncounted", [])):
            for step in self.steps(INJECTED, inject=inject)[1:]:
                self.assertEqual(sorted(step["inside"]), seen)
                self.assertEqual({place for _, place in step["inside"].values()}, {"update"} if seen else set())
                self.assertEqual(waits_as_expected(step), not seen)

    def test_a_wait_without_a_call(self):
        steps = self.steps(INJECTED, inject="uncounted", hold_s="0.1")
        for step in steps[2:]:
            self.assertEqual(step["inside"], {"a wait in a library": (1, "update")})
            self.assertFalse(waits_as_expected(step))

    def test_the_report_states_the_waits(self):
        """The part of tools/gpu_check, with a program that waits and with one that does not."""
        os.environ["EMULATOR_STREAMS"], gpu_report.HOLD_S = "late", 0.3
        for inject, state, shown in (("none", "reached", "all 4"), ("wait", "not reached", "cudaStreamSynchronize 1")):
            os.environ["INJECT"] = inject
            folder = tempfile.mkdtemp()
            os.mkdir(f"{folder}/bin")
            os.symlink(INJECTED, f"{folder}/bin/cuboid_counted")
            os.symlink(f"{ROOT}/recipes", f"{folder}/recipes")
            report = gpu_report.Report(f"{folder}/report.md", "GPU check", "the emulator")
            session = Session(folder, report, 100, tiny=True)
            for end in ("bin", "idx"):
                os.symlink(f"{self.folder}/text.{end}", f"{session.work}/text.{end}")
            gpu_report.part_waits(session)
            session.log.file.close()
            wanted = report.wanted()
            self.assertEqual(wanted.state("waits")[0], state, report.text())
            self.assertIn(shown, wanted.state("waits")[1])
            self.assertRegex(wanted.state("graph memory")[1], r"^4\.0 MiB in addition to [0-9.]+ KiB planned; ")

    def test_every_call_is_known(self):
        """The emulator has every function that the program calls."""
        with open(f"{ROOT}/tests/emulator/include/cuda_runtime_api.h", encoding="utf-8") as text:
            there = set(re.findall(r"^[a-z][\w ]*[ *](cuda\w+)\(", text.read(), re.MULTILINE))
        with open(f"{ROOT}/kernels/cuda/runtime/count_calls.c", encoding="utf-8") as text:
            counted = set(re.findall(r"^CALL\((cuda[A-Z]\w+),", text.read(), re.MULTILINE))
        self.assertEqual(there, counted | RETURN_AT_ONCE)
        self.assertFalse(counted & RETURN_AT_ONCE)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
