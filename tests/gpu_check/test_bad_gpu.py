# SPDX-License-Identifier: Apache-2.0
"""The program on machines whose GPUs do not fit the recipe: one line names what was found, what is required and the
key; the exit status is right; and nothing was trained on another device instead. The GPUs are the emulator's.

    test_bad_gpu.py CUBOID_EMULATED SOURCE_ROOT [MPIRUN]"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

CUBOID, ROOT = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
MPIRUN = sys.argv[3:4]
SMALL = ["train.train_iters=2", "optimizer.lr_warmup_iters=1", "optimizer.lr_decay_iters=2", "train.eval_interval=0",
         "data.split=100,0,0", "model.hidden_size=16", "model.kv_channels=8", "model.num_attention_heads=2",
         "model.num_query_groups=2", "model.num_layers=2", "model.ffn_hidden_size=16", "model.seq_length=8",
         "train.global_batch_size=2", "dp=1", "tp=1", "pp=1", "parallel.sequence_parallel=false",
         "cluster.device=cuda", "model.make_vocab_size_divisible_by=8"]


class Machines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = cls.temporary.name
        text = os.path.join(ROOT, "trainer", "recipe", "recipe_table.c")
        subprocess.run([CUBOID, "data", "prepare", text, "-o", f"{cls.folder}/text"], check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def cuboid(self, *overrides, command="train", run_dir=None, ranks=0, **machine):
        """machine: settings of the emulator, in which {run} is the run's folder. ranks: under mpirun."""
        self.run_dir = run_dir or tempfile.mkdtemp(dir=self.folder) + "/run"
        launcher = [*MPIRUN, "-n", str(ranks)] if ranks else []
        keys = {word.split("=")[0]: word for word in [*SMALL, f"data.train={self.folder}/text",
                                                      f"logging.run_dir={self.run_dir}", *overrides]}
        return subprocess.run([*launcher, CUBOID, command, f"{ROOT}/recipes/quickstart.yaml", *keys.values()],
                              text=True, capture_output=True, check=False, cwd=self.folder,
                              env={**os.environ, **{f"EMULATOR_{key}": value.format(run=self.run_dir)
                                                   for key, value in machine.items()}})

    def rejected(self, done, *words, status=1, count=1):
        lines = done.stderr.strip().splitlines()
        self.assertEqual((done.returncode, len(lines)), (status, count), done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        metrics = f"{self.run_dir}/metrics.jsonl"
        self.assertFalse(os.path.exists(metrics) and os.path.getsize(metrics), "it trained nevertheless")

    def test_no_gpu_or_an_unsupported_one(self):
        self.rejected(self.cuboid(FAIL="cudaGetDeviceCount"), "cluster.device cuda: no GPU found", "8.0 or newer")
        self.rejected(self.cuboid(DRIVER="0"), "cluster.device cuda: no NVIDIA driver found; it requires one, and an "
                     "NVIDIA GPU of compute capability 8.0 or newer; use cluster.device=cpu")
        self.rejected(self.cuboid(DRIVER="12040"), "cluster.device cuda: the driver is too old: it supports CUDA 12.4, "
                     "and this build requires 13.0")
        self.rejected(self.cuboid(CAPABILITY="7.5"), "cluster.device cuda: GPU 0, emulated GPU, has compute capability "
                     "7.5, and this build requires 8.0 or newer")
        self.rejected(self.cuboid(FAIL="cudaMalloc"), "cudaMalloc of ", "out of memory", "reduce it with ",
                     "memory.offload_optimizer true")

    def test_host_memory_is_exhausted(self):
        """Using less GPU memory would not help, so no such fix is suggested."""
        key = "memory.offload_optimizer"
        for overrides, words in ([], "fewer ranks"), ([f"{key}=true"], f"{key} false"):
            done = self.cuboid(*overrides, FAIL="cudaMallocHost")
            self.rejected(done, "cuboid: cuda: cudaMallocHost of ", " of the host's memory are free", words)
            for word in "tensor_parallel_size", "params_dtype", "of GPU", "step ":
                self.assertNotIn(word, done.stderr)

    def saved(self):
        names = os.listdir(f"{self.run_dir}/checkpoints")
        return sorted(name for name in names if name.startswith("step-"))

    def losses(self):
        with open(f"{self.run_dir}/metrics.jsonl", encoding="utf-8") as lines:
            return {line["step"]: line["loss"] for line in map(json.loads, lines) if "loss" in line}

    def test_gpu_memory_is_exhausted_during_a_run(self):
        """Another program allocates it after step 2 is saved: the run ends with one line, on all of its ranks, and
        resumes from there, with the same results, when there is memory again."""
        keys = ["train.train_iters=4", "checkpoint.save_interval=1"]
        two = ["dp=2", "cluster.transport=nccl"]
        own = ["precision.params_dtype=bf16"]
        graphs = ["cluster.cuda_graphs=true"]
        for call, at, overrides, gpu, words in (
                ("cublasLtMatmul", 3, [], 0, ["CUBLAS_STATUS_ALLOC_FAILED", "stream compute, gemm(a f32[8, 16], "]),
                ("cudaLaunchKernelEx", 3, [], 0, ["out of memory", "stream compute, fill("]),
                ("cudnn memory", 3, [*own, "model.attention_backend=cudnn"], 0,
                 ["cudnnBackendExecute", "DEVICE_ALLOCATION_FAILED", "attention_forward(bf16["]),
                ("cudaGraphInstantiate", 2, graphs, 0,
                 ["cudaGraphInstantiate: out of memory", "use cluster.cuda_graphs false"]),
                ("cublasLtMatmul", 3, two, 1, ["rank 1: step 3", "CUBLAS_STATUS_ALLOC_FAILED", "gemm("]),
                ("ncclAllGather", 3, two, 1, ["ncclAllGather", "Cuda failure 2 'out of memory'"]),
                ("ncclSend", 3, ["pp=2", "cluster.transport=nccl"], 0, ["ncclSend", "'out of memory'"])):
            with self.subTest(call=call, overrides=overrides):
                self.assertEqual(self.cuboid(*keys, *overrides, GPUS="2").returncode, 0)
                undisturbed = self.losses()
                done = self.cuboid(*keys, *overrides, GPUS="2", FAIL=call, FAIL_GPU=str(gpu),
                                   FAIL_WHEN=f"{{run}}/checkpoints/step-{at - 1:08}/manifest.json")
                lines = done.stderr.strip().splitlines()
                self.assertEqual((done.returncode, len(lines)), (1, 1), done.stderr)
                # (The other rank may have to end the save by an all-gather when rank 0 has published it.)
                begin = f"step ({at}|{at - 1}, save)" if call == "ncclAllGather" else f"step {at}"
                self.assertRegex(lines[0], f"{begin}[,:] ")
                for word in [" of the GPU's 1.00 GiB are free", f"; rank {gpu} has ",
                             f" of GPU {gpu} (", "reduce it with ", "memory.offload_optimizer true", *words]:
                    self.assertIn(word, lines[0])
                self.assertEqual(self.saved(), [f"step-{step:08}" for step in range(1, at)])
                done = self.cuboid(*keys, *overrides, GPUS="2", run_dir=self.run_dir)
                self.assertIn(f"/step-{at - 1:08}, step {at - 1}\n", done.stdout)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertEqual(self.losses(), undisturbed)

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_gpu_memory_is_exhausted_in_one_of_several_processes(self):
        done = self.cuboid("train.train_iters=4", "checkpoint.save_interval=1", "dp=2", "cluster.transport=nccl",
                           ranks=2, GPUS="2", FAIL_GPU="1",
                           FAIL="cublasLtMatmul", FAIL_WHEN="{run}/checkpoints/step-00000002/manifest.json")
        self.assertNotEqual(done.returncode, 0)
        lines = [line for line in done.stderr.splitlines() if "CUBLAS_STATUS_ALLOC_FAILED" in line]
        self.assertEqual(len(lines), 1, done.stderr)
        for word in "r1 (pp 0 dp 1 tp 0) step 3 ", "are free", "; rank 1 has ", "reduce it with ":
            self.assertIn(word, lines[0])
        self.assertEqual(self.saved(), ["step-00000001", "step-00000002"])

    def test_several(self):
        two = ["dp=2", "cluster.transport=nccl"]
        self.rejected(self.cuboid(*two), "cluster.device cuda: 2 ranks on this machine, and 1 GPU: room for 1 (cluster."
                     "ranks_per_gpu 1)", "more nodes")
        self.rejected(self.cuboid(*two, GPUS="2", FAIL="cudaGetDeviceProperties"), "cluster.device cuda: mixed GPU "
                     "types: rank 0 has emulated GPU", "CUDA_VISIBLE_DEVICES")
        self.rejected(self.cuboid(*two, "cluster.ranks_per_gpu=2"), "cluster.ranks_per_gpu 2", "mpirun -n 2", status=2)

    def test_gpu_memory_is_exhausted_in_generate(self):
        self.assertEqual(self.cuboid().returncode, 0)
        for call, words in ("cudaMalloc", "of weights: cuda: cudaMalloc of "), ("cublasLtMatmul", "gemm(a "):
            done = subprocess.run([CUBOID, "generate", self.run_dir, "--prompt", "x"], text=True, capture_output=True,
                                  check=False, env={**os.environ, "EMULATOR_FAIL": call})
            lines = done.stderr.strip().splitlines()
            self.assertEqual((done.returncode, len(lines)), (1, 1), done.stderr)
            for word in words, "are free", "use cluster.device=cpu to avoid GPU memory":
                self.assertIn(word, lines[0])

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_two_processes_on_one_gpu(self):
        """Each uses the only GPU that it sees; mpirun prints messages of its own."""
        done = self.cuboid("dp=2", "cluster.transport=nccl", ranks=2)
        lines = [line for line in done.stderr.splitlines() if line.startswith("cuboid: ")]
        self.assertEqual((done.returncode, len(lines)), (1, 1), done.stderr)
        for words in ("cluster.device cuda: rank 0 and rank 1 are on one GPU, 0000:00:00.0 of ", "CUDA_VISIBLE_DEVICES",
                      "cluster.ranks_per_gpu 2"):
            self.assertIn(words, lines[0])

    def test_libraries(self):
        self.rejected(self.cuboid("precision.params_dtype=bf16", "model.attention_backend=cudnn", FAIL="cudnn"),
                     "model.attention_backend cudnn: libcudnn.so.9", "cuDNN 9.15.1 or newer",
                     "use model.attention_backend own")

    def test_a_missing_folder_is_an_error(self):
        """It is not created: the path is probably mistyped."""
        self.rejected(self.cuboid(f"cluster.matmul_algorithms={self.folder}/missing/file"),
                     f"cluster.matmul_algorithms: cannot write {self.folder}/missing/file "
                     f"({self.folder}/missing: No such file or directory); use another path or none", status=2)
        self.assertFalse(os.path.exists(f"{self.folder}/missing"))
        self.assertFalse(os.path.exists(self.run_dir))

    def test_errors_of_the_recipe_alone(self):
        """All of them are reported at once, before a GPU is opened."""
        self.rejected(self.cuboid("cluster.matmul_algorithms=/dev/null/no", "optimizer.lr=-1",
                                  "model.attention_backend=cudnn", FAIL="cudaGetDeviceCount"),
                     "cluster.matmul_algorithms: cannot write /dev/null/no (/dev/null: Not a directory)",
                     "optimizer.lr -1", "model.attention_backend cudnn: it needs a two-byte type", status=2, count=3)

    def test_warnings(self):
        for overrides, words in ((["parallel.nccl_ub=true"], "deterministic is true"),
                                 (["parallel.nccl_ub=true", "deterministic=false", "parallel.zero_stage=1", "dp=2"],
                                  "parallel.zero_stage is 1")):
            done = self.cuboid(*overrides, command="recipe")
            self.assertIn("parallel.nccl_ub has no effect: " + words, done.stderr)
        done = self.cuboid("parallel.nccl_ub=true", "deterministic=false", "dp=2", command="recipe")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_choices_are_printed_and_saved(self):
        done = self.cuboid("precision.params_dtype=bf16", "deterministic=false",
                           f"cluster.matmul_algorithms={self.folder}/algorithms")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line for line in done.stdout.splitlines() if line.startswith(("attention", "matmul: "))]
        self.assertEqual([line.split(",")[0] for line in lines[:2]], ["attention: forward", "attention: backward"])
        self.assertRegex(lines[2], r"^attention kernels launched: [a-z.]+ \(forward, backward\)$")
        self.assertRegex(lines[3], r"^matmul: 0 algorithms from .*, [1-9][0-9]* timed and added to it$")
        with open(f"{self.run_dir}/choices.txt", encoding="utf-8") as text:
            kept = text.read().splitlines()
        self.assertEqual([line for line in kept if not line.startswith("  ")], lines)
        self.assertTrue(any(line.startswith("  timed: emulated GPU") for line in kept))

    def test_doctor(self):
        done = subprocess.run([CUBOID, "doctor"], text=True, capture_output=True, check=True,
                              env={**os.environ, "EMULATOR_GPUS": "2", "EMULATOR_FAIL": "cudaMalloc"})
        for words in ("gpu 0       emulated GPU, compute capability 9.0, ", "gpu 1       emulated GPU",
                      "cuda        the driver supports CUDA 13.0, this build has 13.0, cuBLASLt ", ", NCCL 2.28.9",
                      "measured    nothing: "):
            self.assertIn(words, done.stdout)
        done = subprocess.run([CUBOID, "doctor"], text=True, capture_output=True, check=True,
                              env={**os.environ, "EMULATOR_DRIVER": "0"})
        self.assertIn("cuda        no NVIDIA driver found, this build has CUDA 13.0, cuBLASLt ", done.stdout)
        # One CPU is too few for a rank on a GPU, unless the job asks for more.
        words = [CUBOID, "doctor", "--check", "--seconds=0", f"{ROOT}/recipes/quickstart.yaml", "dp=1", "tp=1", "pp=1",
                 "parallel.sequence_parallel=false", "cluster.device=cuda", f"data.train={self.folder}/text"]
        warning = "warning: 1 CPU for 1 rank, and each needs 2 or more; set cluster.threads_per_rank to the CPUs of " \
                  "a node / 1\n"
        for key, warns in (("cluster.threads_per_rank=0", True), ("cluster.threads_per_rank=2", False)):
            done = subprocess.run([*words, key], text=True, capture_output=True, check=False,
                                  env={**os.environ, "EMULATOR_GPUS": "1"},
                                  preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
            self.assertEqual((done.returncode, warning in done.stdout), (0, warns), done)
        # A missing GPU is one failure, not one for each check that needs it.
        words = [CUBOID, "doctor", "--check", f"{ROOT}/recipes/quickstart.yaml", "dp=1", "tp=1", "pp=1",
                 "parallel.sequence_parallel=false", "cluster.device=cuda", f"data.train={self.folder}/text"]
        machine = {**os.environ, "EMULATOR_GPUS": "0", "CUBOID_NODE": "n7", "SLURM_JOB_ID": "1"}
        # A step of Slurm that has been asked for GPUs, or not.
        for more, advice in (({"SLURM_GPUS_ON_NODE": "1"}, "driver; use cluster.device=cpu"),
                             ({}, "driver; ask Slurm for GPUs (srun --gpus-per-node), or use cluster.device=cpu")):
            done = subprocess.run(words, text=True, capture_output=True, check=False, env={**machine, **more})
            lines = done.stdout.splitlines()
            self.assertEqual((done.returncode, len(lines)), (1, 4), done)
            self.assertTrue(lines[0].endswith(advice), done)
        self.assertTrue(lines[0].startswith("check n7: device FAILED: cluster.device cuda: no GPU found"), done)
        self.assertEqual(lines[2:], ["check n7: memory, matmul, message not checked: they need the device",
                                     "check n7: done, 1 of 5 failed"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
