# SPDX-License-Identifier: Apache-2.0
"""The whole program on machines whose GPUs are not what a recipe wants: one line says what was found, what is needed
and the key; the exit status; and nothing was trained on something else instead. The GPUs are the emulator's.

    test_bad_gpu.py CUBOID_EMULATED SOURCE_ROOT"""
import os
import subprocess
import sys
import tempfile
import unittest

CUBOID, ROOT = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
SMALL = ["train.train_iters=2", "optimizer.lr_warmup_iters=1", "optimizer.lr_decay_iters=2", "train.eval_interval=0",
         "data.split=100,0,0", "model.hidden_size=16", "model.kv_channels=8", "model.num_attention_heads=2",
         "model.num_query_groups=2", "model.num_layers=2", "model.ffn_hidden_size=16", "model.seq_length=8",
         "train.global_batch_size=2", "dp=1", "tp=1", "pp=1", "parallel.sequence_parallel=false",
         "cluster.device=cuda"]


class Machines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = cls.temporary.name
        text = os.path.join(ROOT, "trainer", "recipe_table.c")
        subprocess.run([CUBOID, "data", "prepare", text, "-o", f"{cls.folder}/text"], check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def cuboid(self, *overrides, command="train", **machine):
        """machine: what the emulator's is like."""
        self.run_dir = tempfile.mkdtemp(dir=self.folder) + "/run"
        keys = {word.split("=")[0]: word for word in [*SMALL, f"data.train={self.folder}/text",
                                                      f"logging.run_dir={self.run_dir}", *overrides]}
        return subprocess.run([CUBOID, command, f"{ROOT}/recipes/quickstart.yaml", *keys.values()], text=True,
                              capture_output=True, timeout=60, check=False, cwd=self.folder,
                              env={**os.environ, **{f"EMULATOR_{key}": value for key, value in machine.items()}})

    def refused(self, done, *words, status=1, lines=1):
        said = done.stderr.strip().splitlines()
        self.assertEqual((done.returncode, len(said)), (status, lines), done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        metrics = f"{self.run_dir}/metrics.jsonl"
        self.assertFalse(os.path.exists(metrics) and os.path.getsize(metrics), "it trained all the same")

    def test_no_gpu_or_one_that_will_not_do(self):
        self.refused(self.cuboid(FAIL="cudaGetDeviceCount"), "cluster.device cuda: no GPU here", "8.0 or newer")
        self.refused(self.cuboid(DRIVER="0"), "cluster.device cuda: no GPU here", "and its driver")
        self.refused(self.cuboid(DRIVER="12040"), "cluster.device cuda: the driver is too old: it knows CUDA 12.4, and "
                     "this build wants 13.0")
        self.refused(self.cuboid(CAPABILITY="7.5"), "cluster.device cuda: GPU 0, emulated GPU, has compute capability "
                     "7.5, and this build wants 8.0 or newer")
        self.refused(self.cuboid(FAIL="cudaMalloc"), "cudaMalloc of ", "out of memory", "less is taken with ",
                     "memory.offload_optimizer true")

    def test_several(self):
        two = ["dp=2", "cluster.transport=nccl"]
        self.refused(self.cuboid(*two), "cluster.device cuda: 2 ranks on this machine, and 1 GPUs", "more nodes")
        self.refused(self.cuboid(*two, GPUS="2", FAIL="cudaGetDeviceProperties"), "cluster.device cuda: mixed GPU "
                     "types: rank 0 has emulated GPU", "CUDA_VISIBLE_DEVICES")
        self.refused(self.cuboid(*two, "cluster.ranks_per_gpu=2"), "cluster.ranks_per_gpu 2", "mpirun -n 2", status=2)

    def test_libraries(self):
        self.refused(self.cuboid("precision.params_dtype=bf16", "model.attention_backend=cudnn", FAIL="cudnn"),
                     "model.attention_backend cudnn: libcudnn.so.9", "cuDNN 9.15.1 or newer",
                     "model.attention_backend own works")

    def test_what_the_recipe_alone_tells(self):
        """All of it at once, before a GPU is looked for."""
        self.refused(self.cuboid("cluster.matmul_algorithms=/dev/null/no", "optimizer.lr=-1", "model.attention_backend="
                                 "cudnn", FAIL="cudaGetDeviceCount"),
                     "cluster.matmul_algorithms: nothing can be kept at /dev/null/no (/dev/null: Not a directory)",
                     "optimizer.lr -1", "model.attention_backend cudnn: it takes two-byte numbers", status=2, lines=3)

    def test_warnings(self):
        for overrides, words in ((["parallel.nccl_ub=true"], "deterministic is true"),
                                 (["parallel.nccl_ub=true", "deterministic=false", "parallel.zero_stage=1", "dp=2"],
                                  "parallel.zero_stage is 1")):
            done = self.cuboid(*overrides, command="recipe")
            self.assertIn("parallel.nccl_ub has no effect: " + words, done.stderr)
        done = self.cuboid("parallel.nccl_ub=true", "deterministic=false", "dp=2", command="recipe")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_choices_are_said_and_kept(self):
        done = self.cuboid("precision.params_dtype=bf16", "deterministic=false",
                           f"cluster.matmul_algorithms={self.folder}/algorithms")
        self.assertEqual(done.returncode, 0, done.stderr)
        said = [line for line in done.stdout.splitlines() if line.startswith(("attention: ", "matrix products: "))]
        self.assertEqual([line.split(",")[0] for line in said[:2]], ["attention: forward", "attention: backward"])
        self.assertRegex(said[2], r"^matrix products: 0 algorithms taken from .*, [1-9][0-9]* timed and kept there$")
        with open(f"{self.run_dir}/choices.txt", encoding="utf-8") as text:
            kept = text.read().splitlines()
        self.assertEqual([line for line in kept if not line.startswith("  ")], said)
        self.assertTrue(any(line.startswith("  timed: emulated GPU") for line in kept))

    def test_doctor(self):
        done = subprocess.run([CUBOID, "doctor"], text=True, capture_output=True, timeout=60, check=True,
                              env={**os.environ, "EMULATOR_GPUS": "2", "EMULATOR_FAIL": "cudaMalloc"})
        for words in ("gpu 0       emulated GPU, compute capability 9.0, ", "gpu 1       emulated GPU",
                      "cuda        the driver knows CUDA 13.0, this build has 13.0, cuBLASLt ", ", NCCL 2.28.9",
                      "measured    nothing: "):
            self.assertIn(words, done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
