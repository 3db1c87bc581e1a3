# SPDX-License-Identifier: Apache-2.0
"""The programs of tools/gpu_check, gathered from the build under test as tools/gpu_check --pack gathers them, start in
a root directory that has only them and glibc, as on a bare machine with a GPU.

    test_bare_root.py BUILD_ROOT SOURCE_ROOT"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD, ROOT = (os.path.abspath(word) for word in sys.argv[1:3])
sys.path.insert(0, f"{ROOT}/tools/gpu")
sys.dont_write_bytecode = True
from gpu_session import mpi_environment  # noqa: E402

# Runs a command in a root directory with the kernel's file systems; its mounts end with it.
ENTER = ["unshare", "--mount", "sh", "-c",
         'for name in proc sys dev; do mount --rbind "/$name" "$0/$name" || exit; done; exec chroot "$0" "$@"']
GLIBC = ["libc", "libm", "libdl", "librt", "libpthread", "libresolv", "ld-linux-*"]


def copy_glibc(root):
    """Each file is stored where it is here: the loader's path is in every program."""
    listed = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    folder = os.path.dirname(re.search(r"=> (/\S*/libc\.so\S*)", listed).group(1))
    loader = re.search(r"^\s+(/\S*/ld-linux\S*)", listed, re.MULTILINE).group(1)
    for path in [loader, *(path for name in GLIBC for path in glob.glob(f"{folder}/{name}.so*"))]:
        os.makedirs(root + os.path.dirname(path), exist_ok=True)
        shutil.copy(path, root + path)


@unittest.skipIf(subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0,
                 "entering another root directory requires root")
class BareRoot(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.root)
        gather = f"{ROOT}/tools/gpu/gather"
        targets = subprocess.run([gather, "--targets"], capture_output=True, text=True, check=True).stdout.split()
        built = [target for target in targets if os.path.exists(f"{BUILD}/{target}")]
        subprocess.run([gather, BUILD, f"{cls.root}/gpu_check", *built], check=True)
        copy_glibc(cls.root)
        for folder in ("tmp", "dev", "proc", "sys"):
            os.makedirs(f"{cls.root}/{folder}")
        cls.programs = [os.path.basename(target) for target in built]

    def start(self, program, *words):
        return subprocess.run([*ENTER, self.root, f"/gpu_check/{program}", *words], timeout=60, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={"PATH": os.environ["PATH"], "HOME": "/tmp", "LD_LIBRARY_PATH": "/gpu_check/lib",
                                   **mpi_environment("/gpu_check/mpi")})

    def test_each_test_program_lists_its_tests(self):
        names = [name for name in self.programs if name.startswith("test_") and name != "test_golden"]
        self.assertGreater(len(names), 0)
        for name in names:
            done = self.start(f"bin/{name}", "--list")
            self.assertEqual(done.returncode, 0, f"{name}: {done.stdout}")
            self.assertRegex(done.stdout, r"(?m)^\W+ \w+$", name)

    def test_the_other_programs_start(self):
        for words in (("cuboid", "--version"), ("cuboid", "doctor", "--help"), ("cuboid_counted", "--version")):
            if words[0] in self.programs:
                done = self.start(f"bin/{words[0]}", *words[1:])
                self.assertEqual(done.returncode, 0, f"{words}: {done.stdout}")
        for name in {"test_golden", "bench_ops"} & set(self.programs):
            self.assertIn(name, self.start(f"bin/{name}", "nonsense").stdout)  # its own error about the argument

    def test_the_launcher_starts(self):
        if not os.path.exists(f"{self.root}/gpu_check/mpi"):
            self.skipTest("no Open MPI on this machine")
        done = self.start("mpi/bin/mpirun", "-n", "2", "/gpu_check/bin/cuboid", "--version")
        self.assertEqual((done.returncode, done.stdout.count("\nmpi ")), (0, 2), done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
