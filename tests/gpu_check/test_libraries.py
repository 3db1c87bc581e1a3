# SPDX-License-Identifier: Apache-2.0
"""CUDA's libraries, as the program searches for them: a program with the real loaders on emulated GPUs, and the
emulator's libraries as files. A library that is missing, cannot be loaded, lacks a function or is too old ends the run
with one line that names what was found, what is required and the key.

    test_libraries.py CUBOID_LOADING SOURCE_ROOT LIBCUBLASLT LIBCUDNN LIBNCCL LIBINCOMPLETE"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

CUBOID, ROOT, CUBLASLT, CUDNN, NCCL, INCOMPLETE = map(os.path.abspath, sys.argv[1:7])
SMALL = ["train.train_iters=2", "optimizer.lr_warmup_iters=1", "optimizer.lr_decay_iters=2", "train.eval_interval=0",
         "data.split=100,0,0", "model.hidden_size=16", "model.kv_channels=8", "model.num_attention_heads=2",
         "model.num_query_groups=2", "model.num_layers=2", "model.ffn_hidden_size=16", "model.seq_length=8",
         "train.global_batch_size=2", "tp=1", "pp=1", "parallel.sequence_parallel=false", "cluster.device=cuda",
         "cluster.transport=nccl", "dp=2", "precision.params_dtype=bf16", "checkpoint.save=none",
         "model.make_vocab_size_divisible_by=8"]
FILES = {"libcublasLt.so.13": CUBLASLT, "libcudnn.so.9": CUDNN, "libnccl.so.2": NCCL}
WANTED = {"libcublasLt.so.13": ["cluster.device cuda: ", "it requires cuBLASLt 12.4 or newer", "cluster.device=cpu"],
          "libcudnn.so.9": ["model.attention_backend cudnn: ", "it requires cuDNN 9.15.1 or newer",
                            "use model.attention_backend own"],
          "libnccl.so.2": ["cluster.transport nccl: ", "NCCL 2.20 or newer is required",
                           "a single rank does not need it"]}


def interpreter():
    """The dynamic linker: run directly, it can be told not to use the system's libraries."""
    with open(CUBOID, "rb") as program:
        return re.search(rb"/lib[^\0]*/ld-[^\0]*", program.read(8192)).group().decode()


class Libraries(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = self.temporary.name
        self.libraries = f"{self.folder}/lib"
        os.mkdir(self.libraries)
        for name, path in FILES.items():
            os.symlink(path, f"{self.libraries}/{name}")
        self.run_program("data", "prepare", f"{ROOT}/trainer/recipe/recipe_table.c", "-o", f"{self.folder}/text")

    def run_program(self, *words, **machine):
        return subprocess.run([interpreter(), "--inhibit-cache", CUBOID, *words], text=True, capture_output=True,
                              check=False, cwd=self.folder,
                              env={**os.environ, "LD_LIBRARY_PATH": self.libraries, "EMULATOR_GPUS": "2", **machine})

    def train(self, *overrides, **machine):
        return self.run_program("train", f"{ROOT}/recipes/quickstart.yaml", *SMALL, f"data.train={self.folder}/text",
                                f"logging.run_dir={tempfile.mkdtemp(dir=self.folder)}/run", *overrides, **machine)

    def replace(self, name, path=None):
        os.unlink(f"{self.libraries}/{name}")
        if path:
            os.symlink(path, f"{self.libraries}/{name}")

    def rejected(self, name, found, **machine):
        """Also that attention_backend auto works without cuDNN, and reports the reason."""
        done = self.train("model.attention_backend=cudnn", **machine)
        lines = done.stderr.strip().splitlines()
        self.assertEqual((done.returncode, len(lines)), (1, 1), done.stderr)
        for words in [found, "LD_LIBRARY_PATH", *WANTED[name]]:
            self.assertIn(words, lines[0])
        done = self.train("deterministic=false", **machine)
        if name != "libcudnn.so.9":
            self.assertEqual(done.returncode, 1)
            return
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn(f"attention: our own kernels; {found}", done.stdout)
        self.assertIn("it requires cuDNN 9.15.1 or newer", done.stdout)

    def test_all_are_present(self):
        done = self.train("model.attention_backend=cudnn")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_of_cuda_12(self):
        """The oldest versions, under cuBLASLt's other name. The emulated NCCL rejects unordered messages."""
        self.replace("libcublasLt.so.13")
        os.symlink(CUBLASLT, f"{self.libraries}/libcublasLt.so.12")
        done = self.train(EMULATOR_CUBLASLT="120402", EMULATOR_NCCL="22005")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("cuBLASLt 12.4.2", self.run_program("doctor", EMULATOR_CUBLASLT="120402").stdout)

    def test_missing(self):
        for name, path in FILES.items():
            self.replace(name)
            with self.subTest(name=name):
                if any(name in files for place in ("/lib", "/usr/lib") for _, _, files in os.walk(place)):
                    self.skipTest("the system has this library")
                names = f"{name} or libcublasLt.so.12" if "cublas" in name else name
                self.rejected(name, f"no {names} on LD_LIBRARY_PATH, in the system's folders or in /usr/")
            os.symlink(path, f"{self.libraries}/{name}")

    def test_truncated(self):
        for name, path in FILES.items():
            with self.subTest(name=name):
                self.replace(name, os.devnull)
                self.rejected(name, f"{self.libraries}/{name}: file too short")
                self.replace(name, path)

    def test_missing_function(self):
        for (name, path), first in zip(FILES.items(), ("cublasLtCreate", "cudnnGetVersion", "ncclGetVersion")):
            with self.subTest(name=name):
                self.replace(name, INCOMPLETE)
                self.rejected(name, f"{self.libraries}/{name} has no {first}")
                self.replace(name, path)

    def test_too_old(self):
        self.rejected("libcublasLt.so.13", f"{self.libraries}/libcublasLt.so.13 is cuBLASLt 12.3.4",
                     EMULATOR_CUBLASLT="120304")
        self.rejected("libcudnn.so.9", f"{self.libraries}/libcudnn.so.9 is cuDNN 9.15.0", EMULATOR_CUDNN="91500")
        self.rejected("libnccl.so.2", f"{self.libraries}/libnccl.so.2 is NCCL 2.19.4", EMULATOR_NCCL="21904")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
