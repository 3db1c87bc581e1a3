# SPDX-License-Identifier: Apache-2.0
"""gpu_report.py without a GPU: its figures from recorded outputs, and complete reports from fake programs.

    test_gpu_report.py TOOLS [CUBOID]       TOOLS: the folder of the scripts. CUBOID: prints the real texts"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

from gpu_fakes import (BENCH, DRY, FakePrograms, HANG, is_alive, MPIRUN, NCU, PROGRAM, RATES, SMALL_TORCH, TOOLS,
                       VERIFY)  # noqa: E402
import gpu_figures  # noqa: E402
import gpu_plan  # noqa: E402
import gpu_report  # noqa: E402
import gpu_results  # noqa: E402
import gpu_runs  # noqa: E402
import gpu_session  # noqa: E402
import gpu_tests  # noqa: E402
import gpu_training  # noqa: E402
import gpu_wanted  # noqa: E402

CUBOID = os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else None


class Figures(unittest.TestCase):
    def test_rates(self):
        self.assertEqual(gpu_figures.copy_shares(RATES),
                         {"norm_forward": 90.0, "activation_forward": 80.0, "column_sum": 75.0})
        self.assertEqual(gpu_figures.copy_shares("nothing\n"), {})

    def test_attention(self):
        self.assertEqual(gpu_figures.attention_share("91.2 % of cuDNN's rate forward, 78.5 % backward; target 80 %"),
                         78.5)

    def test_bound(self):
        self.assertEqual(gpu_figures.loss_bound(VERIFY), 4e-5)
        self.assertIsNone(gpu_figures.loss_bound(VERIFY.replace("step 1", "step 2")))

    def test_dry_run(self):
        self.assertEqual(gpu_figures.dry_bytes(DRY.format(all="278.6 MiB")), 278.6 * 2**20)
        self.assertEqual(gpu_figures.dry_bytes(DRY.format(all="512 B")), 512)
        self.assertEqual(gpu_figures.dry_bytes("memory of a rank: at most 3.0 KiB (rank 2): data 1 B\n"), 3072)
        self.assertIsNone(gpu_figures.dry_bytes("no table"))

    def test_training(self):
        records = [{"step_time_s": t, "tokens_per_s": 10 / t, "mfu": None} for t in (9.0, 8.0, 7.0, 1.0, 2.0, 3.0)]
        figures = gpu_figures.training_figures(records)
        self.assertEqual((figures["step_time_s"], figures["tokens_per_s"], figures["mfu"]), (2.0, 5.0, None))
        self.assertEqual(gpu_figures.training_figures(records[:2])["step_time_s"], 8.0)

    def test_bits(self):
        a = [{"step": i, "loss": 5.0 / i, "grad_norm": 1.0, "step_time_s": i} for i in (1, 2, 3)]
        b = [dict(r, step_time_s=0) for r in a]
        self.assertTrue(gpu_figures.same_steps(a, b))
        self.assertTrue(gpu_figures.same_steps(a, b[1:], 2))
        self.assertFalse(gpu_figures.same_steps(a, b[1:]))
        b[2]["loss"] += 1e-15
        self.assertFalse(gpu_figures.same_steps(a, b))
        self.assertFalse(gpu_figures.same_steps([], []))

    def test_peaks(self):
        self.assertEqual(gpu_figures.peak_of("NVIDIA H200"), 989e12)
        self.assertEqual(gpu_figures.peak_of("NVIDIA A100-SXM4-80GB"), 312e12)
        self.assertIsNone(gpu_figures.peak_of("emulated GPU"))

    @unittest.skipIf(CUBOID is None, "no cuboid")
    def test_real_texts(self):
        """The program still prints the texts that the report searches for."""
        with tempfile.TemporaryDirectory() as folder:
            gpu_figures.write_ids(f"{folder}/ids", 257, 20, 100)
            common = ["recipes/quickstart.yaml", f"data.train={folder}/ids", "tokenizer.tokenizer_type=none",
                      "model.vocab_size=257", "model.seq_length=16", "model.num_layers=2", "model.hidden_size=24",
                      "model.kv_channels=4", "model.ffn_hidden_size=32", f"logging.run_dir={folder}/run"]
            source = os.path.dirname(os.path.dirname(TOOLS))

            def out(*words):
                return subprocess.run([CUBOID, *words], cwd=source, capture_output=True, text=True, check=True).stdout

            self.assertGreater(gpu_figures.dry_bytes(out("train", *common, "cluster.device=dry")), 1e5)
            self.assertLess(gpu_figures.loss_bound(out("verify", *common, "--steps", "1")), 1e-3)
            text = out("train", *common, *gpu_session.QUIET, "train.train_iters=3", "optimizer.lr_warmup_iters=1",
                       "logging.peak_flops=1e9")
            self.assertRegex(text, r"model TFLOP/s: [0-9.]+ % of the peak, [0-9.]+ % with attention's causal half only")
            last = gpu_figures.read_metrics(f"{folder}/run")[-1]
            self.assertTrue(0 < last["mfu_causal"] < last["mfu"])
            # 6 per weight of 2 layers and the head; 12 x layers x S x A x D for attention.
            weights = 2 * (24 * (2 * 24 + 2 * 8) + 3 * 24 * 32) + 257 * 24
            self.assertAlmostEqual(last["mfu_causal"] / last["mfu"],
                                   (6 * weights + 6 * 2 * 16 * 24) / (6 * weights + 12 * 2 * 16 * 24), 12)


class Reports(FakePrograms):
    def test_all_is_well(self):
        status, text = self.run_parts("doctor smoke train tests rates nccl bits waits fastest torch golden schedules")
        self.assertEqual(status, 0, text)
        self.assertTrue(os.path.getsize(f"{self.folder}/report.log") > 1000)
        for words in ("bf16: 50 % model FLOPs utilization | reached | 51.0 %, deterministic |",
                      "| GPT-2 124M: 1.1 x PyTorch's tokens per second | reached | 125.0 %, reaches 110 |",
                      f"all types, odd shapes, poisoned outputs | reached | all {len(gpu_tests.TESTS)} |",
                      "sizes of three models in bf16 and one in fp32 | not reached | bf16, gpt2: column_sum 75, ",
                      "forward and backward, at the sizes of three models | reached | all 3 |",
                      "within the bf16 bound of one rank | reached | all 11 |",
                      "for loss, norm and step statistics | reached | all 4 |",
                      "| waits, gpt2-124m, graphs | 2 of 2 steps wait as expected; step 4 inside nothing; at the end "
                      "cudaEventSynchronize 1 (update) |",
                      "GPT-2 124M: a figure | reached | 8.0 MiB in addition to 2.0 GiB planned; 9.0 MiB of GPU ",
                      "compute-sanitizer memcheck finds nothing in the op suite | not measured |",
                      "commit abc1234", "NVIDIA H200, 580.1, 143771 MiB",
                      "| gpt2-124m, model FLOPs utilization | 51.0 %, reaches 45 |",
                      "| 32 | 1 x 4096 x 8 | deterministic | 1000 | 51.0 % | 48.0 % | 1.0 GiB | 800 | 1.25 |",
                      "| 32 | 1 x 4096 x 8 | fastest | 1000 | 51.0 % | 48.0 % | 1.0 GiB | - | - |",
                      "1 of 3 memory-bound ops; below: column_sum 75, activation_forward 80",
                      "| rerun | bit-identical, 6 steps |",
                      "| one rank against pp 2, zb-h1 | bit-identical",
                      "| loss, 2 x 2 x 2, bf16, zb-v | loss 5.5, 0 from one rank, bound 4e-05, bit-identical "
                      "to the first schedule",
                      "| gemm on the GPU | ok", "State: 0 failed, 0 below their targets."):
            self.assertIn(words, text)
        rows = [text.index(f"\n| {row}") for row in
                ("programs that start", "doctor |", "attention_narrow, matches", "training, gpt2-124m", "ops_rows on",
                 "rates, bf16", "2 x 2 x 2, bf16, 1f1b", "6 steps, bf16, once", "calls of a step",
                 "training, gpt3-1.3b, bf16, fastest", "gpt2-124m, Cub", "golden figures", "2 x 2 x 2, bf16, gpipe")]
        self.assertEqual(rows, sorted(rows), text)

    def test_an_attention_that_fails_is_replaced(self):
        """Later parts train with cuDNN's attention, if it is available and its own tests pass."""
        os.mkdir(f"{self.folder}/lib")
        self.write("lib/libcudnn.so.9", "")
        self.program("bin/cuboid", PROGRAM.replace("#!/bin/sh", '#!/bin/sh\necho "$@" >>"${0%/*}/output"'))
        self.program("bin/bench_ops",
                     BENCH.replace("\ncat", f"\necho bench $* >>{self.folder}/bin/output\ncat"))
        known = {"GPU_CHECK_LIBRARIES": f"{self.folder}/lib"}
        status, text = self.run_parts("tests train bits golden rates", **known,
                                      FAKE_TEST="test_attention_narrow is_one own")
        self.assertEqual(status, 1)
        self.assertIn("| attention_narrow, is_one, the GPU's best kernels | **FAILED** (status 1", text)
        self.assertIn("| attention_narrow, is_one, mma.sync | ok", text)
        self.assertIn("| attention of later parts | **cuDNN's** (model.attention_backend=cudnn): our own failed is_one",
                      text)
        with open(f"{self.folder}/bin/output") as output:
            lines = output.read().splitlines()
        bf16 = [line for line in lines if "precision.params_dtype=bf16" in line and "device=dry" not in line]
        self.assertGreater(len(bf16), 5)
        for line in lines:
            self.assertEqual("model.attention_backend=cudnn" in line, line in bf16, line)
            self.assertEqual(" attention=cudnn" in line, line.startswith("bench"), line)
        for fake, why in (("test_attention_narrow is_one mma", None), ("test_ops_attention is_one ", None),
                          ("test_attention_narrow is_* own", None)):
            os.remove(f"{self.folder}/bin/output")
            status, text = self.run_parts("tests train", **known, FAKE_TEST=fake)
            self.assertNotIn("attention of later parts", text)
        status, text = self.run_parts("tests train", FAKE_TEST="test_attention_narrow is_one own")
        self.assertIn("| attention of later parts | our own, which failed is_one: no libcudnn.so.9 here |", text)

    def test_a_hanging_test_is_killed_and_the_next_part_runs(self):
        self.write("hang.py", HANG)
        status, text = self.run_parts("tests again", FAKE_TEST="hang test_attention_narrow is_one own",
                                      GPU_CHECK_SCALE="0.1")
        self.assertEqual(status, 1)
        self.assertIn("| attention_narrow, is_one, the GPU's best kernels | **FAILED** (timeout, ", text)
        self.assertIn("| attention_narrow, is_one, mma.sync | ok", text)
        self.assertIn("| gemm on the GPU | ok", text)
        self.assertIn("again, launches one by one: attention_narrow, is_one, the GPU's best kernels | fails again (",
                      text)
        with open(f"{self.folder}/hung") as pids:
            for pid in pids.read().split():
                self.assertFalse(is_alive(pid), pid)

    def test_attention_kernels_of_hopper(self):
        status, text = self.run_parts("train")
        line = "attention kernels launched: wgmma (forward, backward)"
        self.assertIn(f"| gpt2-124m, deterministic, kernels | {line} |", text)
        self.assertEqual(status, 0, text)
        status, text = self.run_parts("train", FAKE_KERNELS="mma")
        self.assertIn("| gpt2-124m, deterministic, attention kernels | **FAILED** (attention kernels launched: mma "
                      "(forward, backward): not those for Hopper (wgmma)) |", text)
        self.assertEqual(status, 1, text)

    def test_logs_are_bounded(self):
        """The log has the two ends of each command's output, within a limit for all; the last commands are included."""
        log = gpu_session.Log(f"{self.folder}/big.log", 1 << 20)
        for i in range(200):
            log.add(f"command {i}", f"first of {i}\n" + "x" * 300000 + f"\nlast of {i}\n")
        log.file.close()
        with open(log.name) as text:
            output = text.read()
        self.assertLess(len(output), 1 << 20)
        self.assertTrue(output.startswith("=== command 0\nfirst of 0\n"))
        self.assertTrue(re.search(r"\n\.\.\. [0-9]+ bytes of 300022 left out \.\.\.\n", output))
        for i in (0, 199):
            self.assertTrue(f"last of {i}\n" in output)
        self.assertEqual(gpu_session.LOG_BYTES, 12 << 20)
        self.program("bin/cuboid", "#!/bin/sh\necho first line\nyes | head -c 2000000\necho last line\n")
        self.run_parts("doctor")
        with open(f"{self.folder}/report.log") as out:
            output = out.read()
        self.assertLess(len(output), 500000)
        for words in ("first line\n", "last line\n", "left out ...\n"):
            self.assertTrue(words in output, words)

    def test_packed_libraries_are_for_our_programs_only(self):
        self.write("gpu_torch.py", SMALL_TORCH)
        self.program("bin/cuboid", PROGRAM.replace("#!/bin/sh", "#!/bin/sh\ncase $LD_LIBRARY_PATH in */ours:*) ;; "
                                                   "*) exit 3 ;; esac"))
        status, text = self.run_parts("train fastest torch", GPU_CHECK_LIBRARIES=f"{self.folder}/ours:/opt/blas")
        self.assertEqual(status, 0, text)
        for words in ("| PyTorch, llama3-8b | out of memory; both again with 24 layers |",
                      "| llama3-8b | 24 | 1 x 4096 x 8 | deterministic | 1000 | 51.0 %",
                      "| layers of Llama 3 8B: 1.1 x PyTorch's tokens per second | reached |"):
            self.assertIn(words, text)

    def test_a_packed_launcher_is_preferred(self):
        """It is used instead of the machine's, finds its own files, and uses no network."""
        os.makedirs(f"{self.folder}/mpi/bin")
        self.program("mpi/bin/mpirun", MPIRUN.replace("\n", "\n[ $OPAL_PREFIX = ${0%/bin/mpirun} ] || exit 4\n"
                                                            "[ $OMPI_MCA_plm = isolated ] || exit 5\n", 1))
        self.program("path/mpirun", "#!/bin/sh\nexit 6\n")
        status, text = self.run_parts("nccl")
        self.assertEqual(status, 0, text)

    def test_a_target_of_several_measurements(self):
        wanted = gpu_wanted.Wanted()
        self.assertEqual(wanted.state("racecheck"), ("not measured", ""))
        for _ in range(3):
            wanted.see("racecheck", True, "not shown")
        self.assertEqual(wanted.state("racecheck"), ("not measured", "3 of 4 measured, all good"))
        wanted.see("racecheck", True, "not shown")
        self.assertEqual(wanted.state("racecheck"), ("reached", "all 4"))
        wanted.see("racecheck", False, "ops_sums failed")
        self.assertEqual(wanted.state("racecheck"), ("not reached", "ops_sums failed"))

    def test_a_sanitizer_that_finds_nothing(self):
        self.program("path/compute-sanitizer", "#!/bin/sh\n")
        status, text = self.run_parts("memcheck racecheck")
        self.assertEqual(status, 0, text)
        self.assertIn("memcheck finds nothing in the op suite | reached | all 6 |", text)
        self.assertIn("racecheck finds nothing in the op suite | reached | all 4 |", text)

    def test_targets_count_the_tests_of_their_parts(self):
        with open(f"{TOOLS}/gather") as script:
            packed = re.search(r"^tests=\(([^)]*)\)", script.read(), re.MULTILINE).group(1).split()
        self.assertEqual(packed, gpu_tests.TESTS)
        self.assertEqual(gpu_wanted.FIGURES["ops"][1], len(gpu_tests.TESTS))
        self.assertEqual(gpu_wanted.FIGURES["cube bf16"][1], len(gpu_runs.SCHEDULES))
        for model in gpu_training.MODELS:
            self.assertIn(f" {model.target:g} %", gpu_wanted.FIGURES[f"{model.name} mfu"][0])

    def test_plans_are_compared_with_runs(self):
        status, text = self.run_parts("plan")
        self.assertEqual(status, 0, text)
        self.assertIn("| largest microbatch of gpt2-124m that fits by its plan, 50 | ok", text)
        self.assertIn("| microbatch 51 | refused before its first step |", text)
        self.assertIn("gpt2-124m, 64 x 512, recomputation none: does not fit, not run", text)
        self.assertIn("gpt3-1.3b, 4 x 2048, recomputation selective: predicted 0.51 s, measured 0.5 s, +2.0 %; "
                      "memory +0.00 %", text)
        self.assertIn("| reached | median error 2.0 % of 10 runs, at most 2.0 % |", text)
        self.assertIn("| reached | 50 trains, 51 is refused |", text)
        for refuses, said in (("49", "50 fails, 51 is refused"), ("51", "50 trains, 51 is not refused")):
            status, text = self.run_parts("plan", FAKE_REFUSES=refuses, FAKE_STEP="0.56")
            self.assertEqual(status, 1)
            self.assertIn("| not reached | median error 12.0 % of 10 runs, at most 12.0 % |", text)
            self.assertIn(f"| not reached | {said} |", text)

    def test_largest_that_fits(self):
        for largest in (0, 1, 2, 3, 7, 8, 9, 1000):
            self.assertEqual(gpu_plan.largest_that_fits(lambda size, most=largest: size <= most), largest)

    def test_parts_run_in_the_documented_order(self):
        with open(f"{os.path.dirname(os.path.dirname(TOOLS))}/docs/cuda.md") as text:
            documented = re.findall(r"^\| (\w+) \| .* \| (\d+) \|$", text.read(), re.MULTILINE)
        self.assertEqual([row for row in documented if row[0] in gpu_report.PARTS],
                         [(name, str(limit)) for name, (_, limit) in gpu_report.PARTS.items()])
        listed = re.findall(r"^(\w+)  +\S", gpu_report.__doc__, re.MULTILINE)
        self.assertEqual(listed, list(gpu_report.PARTS))

    def test_failures_are_reported_and_other_parts_run(self):
        status, text = self.run_parts("memcheck nccl tests", FAKE_FAIL="pipeline.schedule=zb-v")
        self.assertEqual(status, 1)
        self.assertIn("| ops_rows, memcheck | **FAILED** (status 9", text)
        self.assertIn("| 2 x 2 x 2, bf16, zb-v | **FAILED** (status 1, 0 s) |", text)
        self.assertIn("    it failed on purpose", text)
        self.assertIn("| gemm on the GPU | ok", text)

    def test_waits(self):
        row = "waits, quickstart's model, launched"
        for fake, shown in (({"FAKE_WAIT": "cudaMalloc 3 (0B1), cudaStreamQuery 1 (reduce)"},
                             "1 of 2 steps wait as expected; step 4 inside cudaMalloc 3 (0B1), cudaStreamQuery 1 (re"),
                            ({"FAKE_ENDS": "2"},
                             "0 of 2 steps wait as expected; step 4 inside nothing; at the end cu")):
            status, text = self.run_parts("waits", **fake)
            self.assertEqual(status, 1)
            self.assertIn("step statistics | not reached | quickstart's model, launched: " + shown, text)
            self.assertIn(f"| {row} | **FAILED** ({shown}", text)
        self.program("bin/cuboid_counted", "#!/bin/sh\necho trained, and printed no calls\n")
        status, text = self.run_parts("waits")
        self.assertIn(f"| {row} | **FAILED** (0 of 0 steps", text)
        self.assertIn("GPT-2 124M: a figure | not measured |", text)
        self.program("bin/cuboid_counted", "#!/bin/sh\n[ $1 = --version ] || exit 3\n")
        status, text = self.run_parts("waits")
        self.assertIn("step statistics | not measured |", text)
        self.assertEqual(status, 1)

    def test_a_loss_outside_of_its_bound(self):
        self.program("path/mpirun", MPIRUN.replace("exec", "FAKE_LOSS=5.6 exec"))
        status, text = self.run_parts("schedules bits")
        self.assertEqual(status, 1)
        self.assertIn("| loss, 2 x 2 x 2, fp32, 1f1b | **FAILED** (outside: loss 5.6, 0.1 from one rank", text)
        self.assertIn("| one rank against pp 2, gpipe | **FAILED** (bits differ) |", text)

    def test_below_a_target_is_not_a_failure(self):
        self.write("gpu_torch.py", 'import sys\nsys.exit("this Python has no PyTorch")\n')
        self.program("bin/cuboid", PROGRAM.replace("0.51", "0.31"))
        self.write("bin/cuboid.dry", "no table")
        status, text = self.run_parts("train fastest torch")
        self.assertIn("| gpt3-1.3b, model FLOPs utilization | 31.0 %, **below** 50 |", text)
        self.assertIn("| PyTorch, gpt2-124m | not run: this Python has no PyTorch |", text)
        self.assertIn("| llama3-8b, layers that fit | **FAILED**", text)
        self.assertIn("State: 1 failed, 2 below their targets.", text)
        self.assertEqual(status, 1)

    def test_kernels_are_profiled(self):
        self.program("path/ncu", NCU)
        status, text = self.run_parts("ncu")
        self.assertEqual(status, 0)
        self.assertIn("| ncu, attention, forward | 120.32 us, memory 35.10 %, compute 61.00 %, occupancy 12.40 % |",
                      text)
        self.assertIn("| ncu, AdamW | not measured: ==WARNING== No kernels were profiled. |", text)
        self.assertIn("    Section: GPU Speed Of Light Throughput\n", text)
        self.assertNotIn("==PROF==", text)

    def test_an_unknown_part_is_rejected(self):
        done = subprocess.run([sys.executable, f"{TOOLS}/gpu_report.py", self.folder, f"{self.folder}/r.md"],
                              env={**os.environ, "GPU_CHECK": "trian"}, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("gpu_check: GPU_CHECK has no part trian; valid: doctor smoke train tests rates",
                      done.stderr)

    def test_the_report_is_complete_at_every_moment(self):
        report = gpu_results.Report(f"{self.folder}/partial.md", "GPU check", "a GPU")
        report.row("first", "ok")
        with open(f"{self.folder}/partial.md") as text:
            output = text.read()
        self.assertIn("State: not finished.", output)
        self.assertIn("| first | ok |", output)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
