# SPDX-License-Identifier: Apache-2.0
"""Calls of gpu_report.py with fake programs: what ends a call, its time limit, hanging programs, and how the next call
continues.

    test_gpu_calls.py TOOLS       TOOLS: the folder of the scripts"""
import os
import shutil
import subprocess
import sys
import time
import unittest

from gpu_fakes import (DATE, FakePrograms, HANG, is_alive, PROGRAM, TOOLS)  # noqa: E402
import gpu_report  # noqa: E402
import gpu_results  # noqa: E402
import gpu_session  # noqa: E402


class Calls(FakePrograms):
    def test_a_program_that_does_not_start_ends_the_call(self):
        """Loudly, and before anything is measured: a part that fails would be taken for kernels that fail."""
        lost = "#!/bin/sh\necho symbol lookup error: undefined symbol: x >&2\nexit 127\n"
        for name, said in (("test_adamw", "test_adamw --list: status 127"), ("cuboid", "cuboid --version: status 127"),
                           ("bench_ops", "bench_ops: status 127"), ("test_golden", "test_golden: status 127")):
            good = self.read(f"{self.folder}/bin/{name}")
            self.program(f"bin/{name}", lost)
            status, text = self.run_parts("train")
            self.assertEqual(status, 3, text)
            self.assertIn(f"State: stopped: {said}: symbol lookup error: undefined symbol: x.\n", text)
            self.assertNotIn("training, gpt2-124m", text)
            self.program(f"bin/{name}", good)
        status, text = self.run_parts("doctor train", FAKE_FAIL="doctor")
        self.assertEqual(status, 3)
        self.assertIn("State: stopped: cuboid doctor: status 1: it failed on purpose.\n", text)
        self.assertNotIn("training, gpt2-124m", text)
        self.program("bin/test_adamw", "#!/bin/sh\n")
        self.assertIn("stopped: test_adamw --list: status 0: no output.", self.run_parts("train")[1])

    def test_the_next_call_continues(self):
        """It omits what was finished, and its report has the results of both; so has a merged one."""
        folder = f"{self.folder}/reports"
        status, _ = self.run_parts("doctor train", folder, FAKE_FAIL="deterministic=false")
        self.assertEqual(status, 0)
        self.assertEqual(sorted(os.listdir(folder)), [f"{DATE}.json", f"{DATE}.log", f"{DATE}.md"])
        self.program("bin/cuboid", "#!/bin/sh\n[ $1 != doctor ] || exit 5\n" + PROGRAM)
        status, second = self.run_parts("", folder, GPU_CHECK_SECONDS="500")
        self.assertEqual(status, 1)  # the fake compute-sanitizer finds errors
        text = self.read(f"{folder}/{DATE}-2.md")
        self.assertIn("| continues | a report with doctor, train |", text)
        for words in ("| doctor | ok", "| gpt2-124m, deterministic | 1000 tokens/s", "| gpt2-124m, graphs | 1000 tok"):
            self.assertEqual(text.count(words), 1, text)
        self.assertEqual(text.count("| seconds before the first part, of all |"), 2)
        known = gpu_results.read(f"{folder}/{DATE}-2.md")
        self.assertEqual(sorted(known["parts"]), sorted(gpu_report.PARTS))
        # Only the second call's own parts, of a report that does not continue.
        status, _ = self.run_parts("waits torch", f"{self.folder}/alone.md")
        merged = subprocess.run([sys.executable, f"{TOOLS}/gpu_report.py", "--merge", f"{folder}/{DATE}.md",
                                 f"{self.folder}/alone.json"], capture_output=True, text=True, check=True).stdout
        for words in ("| doctor | ok", "| waits, gpt2-124m, graphs | 2 of 2", "State: 0 failed,"):
            self.assertIn(words, merged)

    def test_a_part_without_time_is_repeated_by_the_next_call(self):
        folder = f"{self.folder}/reports"
        status, _ = self.run_parts("doctor golden smoke", folder, FAKE_HANG="cluster.device=cuda",
                                   GPU_CHECK_SECONDS="12")
        self.assertEqual(status, 0)  # what had no time has not failed
        text = self.read(f"{folder}/{DATE}.md")
        self.assertRegex(text, r"\| 20 steps of the quickstart's model, cuda \| not finished in \d+ s: no time left")
        self.assertIn("| part smoke | not run: no time left (the next call runs it, or GPU_CHECK=smoke) |", text)
        known = gpu_results.read(f"{folder}/{DATE}.md")
        self.assertEqual({name: part["state"] for name, part in known["parts"].items()},
                         {"doctor": "finished", "golden": "not finished"})
        first = {"GPU_CHECK_FIRST": f"{folder}/{DATE}.json"}
        status, text = self.run_parts("golden", f"{self.folder}/next.md", **first)
        self.assertEqual(status, 0, text)
        self.assertNotIn("not finished in", text)
        self.assertIn("| doctor | ok", text)
        merged = gpu_results.merge([known, gpu_results.read(f"{self.folder}/next.md")], gpu_report.PARTS)
        self.assertEqual(merged.text().count("| doctor | ok"), 1)
        self.assertNotIn("not finished in", merged.text())
        self.write("commit", "other")
        done = subprocess.run([sys.executable, f"{TOOLS}/gpu_report.py", self.folder, f"{self.folder}/r.md"],
                              env={**os.environ, **first, "PATH": f"{self.folder}/path:{os.environ['PATH']}"},
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("commit abc1234, this is other; remove it", done.stderr)

    def test_the_cause_of_a_fallback_and_failed_tests_are_known_to_the_next_call(self):
        os.mkdir(f"{self.folder}/lib")
        self.write("lib/libcudnn.so.9", "")
        known = {"GPU_CHECK_LIBRARIES": f"{self.folder}/lib"}
        self.run_parts("tests", f"{self.folder}/first.md", FAKE_TEST="test_attention_narrow is_one own", **known)
        self.program("bin/cuboid", PROGRAM.replace("#!/bin/sh", '#!/bin/sh\necho "$@" >>"${0%/*}/output"'))
        _, text = self.run_parts("train again", f"{self.folder}/next.md", GPU_CHECK_FIRST=f"{self.folder}/first.json",
                                 **known)
        self.assertIn("model.attention_backend=cudnn", self.read(f"{self.folder}/bin/output"))
        self.assertIn("one by one: attention_narrow, is_one, the GPU's best kernels | ok this time |", text)

    def test_after_two_hangs_the_kind_is_omitted(self):
        report = gpu_results.Report(f"{self.folder}/hangs.md", "GPU check", "a GPU")
        s = gpu_session.Session(self.folder, report, 60)
        s.begin_part(60)
        outcomes = [s.check(f"command {i}", ["sleep", "30"], 1, kind="training") for i in range(3)]
        self.assertEqual([(outcome.status, outcome.known) for outcome in outcomes],
                         [(None, True), (None, True), (None, False)])
        self.assertTrue(s.check("another", ["true"], 20, kind="NCCL").good)
        text = report.text()
        self.assertEqual(text.count("**FAILED** (timeout, "), 2)
        self.assertIn("| command 2 | not run: 2 times training hung |", text)
        s.log.file.close()
        shutil.rmtree(s.work)

    def test_the_time_limit_counts_from_the_start_of_the_script(self):
        begin = time.time()
        status, text = self.run_parts("doctor tests", GPU_CHECK_BEGAN=f"{begin - 268:.0f}")
        self.assertIn("| part tests | not run: no time left (the next call runs it, or GPU_CHECK=tests) |", text)
        status, text = self.run_parts("smoke", GPU_CHECK_BEGAN=f"{begin - 200:.0f}")
        self.assertEqual(status, 0, text)
        self.assertRegex(text, r"\| seconds before the first part, of all \| 20[0-9] of 270 \|")

    def test_a_signal_leaves_a_complete_report(self):
        self.write("hang.py", HANG)
        path = f"{self.folder}/report.md"
        process = subprocess.Popen([sys.executable, f"{TOOLS}/gpu_report.py", self.folder, path],
                                   env={**os.environ, "PATH": f"{self.folder}/path:{os.environ['PATH']}",
                                        "GPU_CHECK": "nccl tests", "TMPDIR": self.folder,
                                        "FAKE_TEST": "hang test_attention_narrow is_one own"},
                                   stdout=subprocess.DEVNULL)
        while not os.path.exists(f"{self.folder}/hung"):
            self.assertIsNone(process.poll())
            time.sleep(0.02)
        process.terminate()
        self.assertEqual(process.wait(30), 1)
        with open(path) as report:
            text = report.read()
        self.assertIn("| 2 x 2 x 2, bf16, 1f1b | ok", text)
        self.assertIn("| not finished; in part tests | **FAILED** (stopped by a signal) |", text)
        with open(f"{self.folder}/hung") as pids:
            for pid in pids.read().split():
                self.assertFalse(is_alive(pid), pid)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
