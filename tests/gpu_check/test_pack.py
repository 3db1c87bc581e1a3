# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_check: --pack with fake build programs, and what an archive does before it measures.

    test_pack.py SOURCE_ROOT"""
import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = sys.argv[1]
# Builds by creating the requested files; strip and ldd do nothing.
NINJA = r"""#!/bin/sh
touch "$HERE/built"
[ -z "$FAKE_NO_BUILD" ] || exit 1
shift 2
for name in "$@"; do mkdir -p "build-gpu/$(dirname "$name")"; echo program >"build-gpu/$name"; done
"""
XZ = r"""#!/bin/sh
printf 'half of it'
[ -z "$FAKE_HANG" ] || { touch "$HERE/packing"; exec sleep 60; }
[ -z "$FAKE_FAIL" ] || exit 1
cat
"""


SETUP = """#!/bin/sh
[ ! -e "$HERE/built" ] && echo "$@" >"$HERE/set up"
[ -z "$FAKE_NO_APT" ] || { echo "apt could not install meson" >&2; exit 1; }
"""


class Pack(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        for folder in ["fake", "left", "mpi", "out", "tree/tools/gpu"]:
            os.makedirs(f"{self.folder}/{folder}")
        for folder in ["recipes", "trainer", "tests/oracle"]:
            os.makedirs(os.path.dirname(f"{self.folder}/tree/{folder}"), exist_ok=True)
            os.symlink(os.path.join(ROOT, folder), f"{self.folder}/tree/{folder}")
        for name in ["gpu_check", "gpu/gather", *glob.glob("gpu/gpu_*.py", root_dir=os.path.join(ROOT, "tools"))]:
            shutil.copy(os.path.join(ROOT, "tools", name), f"{self.folder}/tree/tools/{name}")
        fakes = {"meson": "#!/bin/sh\nmkdir build-gpu\n", "ninja": NINJA, "xz": XZ, "strip": "#!/bin/sh\n",
                 "ldd": "#!/bin/sh\n", "ompi_info": "#!/bin/sh\necho path:its:$HERE/mpi\n",
                 "mpirun": "#!/bin/sh\n", "orted": "#!/bin/sh\n", "nvcc": "#!/bin/sh\n", "../tree/tools/setup": SETUP}
        for name, text in fakes.items():
            with open(f"{self.folder}/fake/{name}", "w", encoding="ascii") as file:
                file.write(text)
            os.chmod(file.name, 0o755)

    def start(self, out, **environment):
        return subprocess.Popen(
            [f"{self.folder}/tree/tools/gpu_check", "--pack", out], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
            env={**os.environ, "PATH": f"{self.folder}/fake:{os.environ['PATH']}", "TMPDIR": f"{self.folder}/left",
                 "HERE": self.folder, **environment})

    def pack(self, out, **environment):
        process = self.start(out, **environment)
        text = "".join(process.communicate(timeout=60))
        self.assertEqual(os.listdir(f"{self.folder}/left"), [], text)
        return process.returncode, text

    def test_a_complete_archive_gets_its_name(self):
        status, text = self.pack(f"{self.folder}/out/a")
        self.assertEqual((status, os.listdir(f"{self.folder}/out")), (0, ["a"]), text)
        self.assertGreater(os.path.getsize(f"{self.folder}/out/a"), 10000)

    def test_a_failure_keeps_the_previous_archive(self):
        with open(f"{self.folder}/out/a", "w", encoding="ascii") as file:
            file.write("before")
        for cut in ["FAKE_NO_BUILD", "FAKE_FAIL"]:
            status, text = self.pack(f"{self.folder}/out/a", **{cut: "1"})
            self.assertEqual((status, os.listdir(f"{self.folder}/out")), (1, ["a"]), text)
            with open(f"{self.folder}/out/a", encoding="ascii") as file:
                self.assertEqual(file.read(), "before")

    def test_a_signal_leaves_no_files(self):
        process = self.start(f"{self.folder}/out/a", FAKE_HANG="1")
        while not os.path.exists(f"{self.folder}/packing"):
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGTERM)
        text = process.communicate(timeout=60)
        self.assertEqual((process.returncode, os.listdir(f"{self.folder}/out"), os.listdir(f"{self.folder}/left")),
                         (1, [], []), text)

    def test_build_dependencies_are_installed_first(self):
        status, text = self.pack(f"{self.folder}/out/a")
        self.assertEqual(status, 0, text)
        with open(f"{self.folder}/set up", encoding="ascii") as file:
            self.assertEqual(file.read(), "--gpu\n")
        os.remove(f"{self.folder}/built")
        status, text = self.pack(f"{self.folder}/out/b", FAKE_NO_APT="1")
        self.assertEqual((status, os.listdir(f"{self.folder}/out")), (2, ["a"]), text)
        self.assertIn("apt could not install meson", text)
        self.assertFalse(os.path.exists(f"{self.folder}/built"))

    def test_an_unwritable_target_is_reported_before_the_build(self):
        os.mkfifo(f"{self.folder}/pipe")
        for out, why in [("none/a", "its directory does not exist or is not writable"), ("pipe", "not a file")]:
            status, text = self.pack(f"{self.folder}/{out}")
            self.assertEqual(status, 2, text)
            self.assertIn(why, text)
        self.assertFalse(os.path.exists(f"{self.folder}/built"))


# Prints the libraries, the report's path, and the start time.
PYTHON = """#!/bin/sh
echo "libraries $GPU_CHECK_LIBRARIES"
echo "report $3 began $GPU_CHECK_BEGAN"
"""
FIND = """#!/bin/sh
echo search >>"$HERE/searches"
printf '%s\\n' 'libcudnn.so.9 /opt/a' 'libcublasLt.so.13 /opt/a' 'libcudnn.so.9 /opt/b' 'libnccl.so.2 /opt/c'
"""


class Run(unittest.TestCase):
    """What an archive's script does before it measures, with a fake python3 that only prints."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        os.makedirs(f"{self.folder}/out")
        shutil.copy(os.path.join(ROOT, "tools", "gpu_check"), f"{self.folder}/run")
        for name, text in {"python3": PYTHON, "find": FIND, "nvidia-smi": "#!/bin/sh\nsleep 1\necho GPU 0\n"}.items():
            with open(f"{self.folder}/{name}", "w", encoding="ascii") as file:
                file.write(text)
            os.chmod(file.name, 0o755)

    def run_it(self, *words, **environment):
        kept = {name: value for name, value in os.environ.items() if name not in ("OUT", "GPU_CHECK_LIBRARIES")}
        done = subprocess.run([f"{self.folder}/run", *words], capture_output=True, text=True, timeout=60, check=True,
                              env={**kept, "PATH": f"{self.folder}:{os.environ['PATH']}", "HERE": self.folder,
                                   **environment})
        return done.stdout

    def test_one_search_finds_all_libraries(self):
        output = self.run_it()
        self.assertIn(f"libraries {self.folder}/lib:/opt/a:/opt/c\n", output)
        with open(f"{self.folder}/searches", encoding="ascii") as file:
            self.assertEqual(file.read(), "search\n")
        self.assertIn("libraries /known\n", self.run_it(GPU_CHECK_LIBRARIES="/known"))
        with open(f"{self.folder}/searches", encoding="ascii") as file:
            self.assertEqual(file.read(), "search\n")

    def test_libraries_are_read_ahead(self):
        """A FIFO in the place of a library: its writer waits until it is read."""
        os.makedirs(f"{self.folder}/cuda")
        os.mkfifo(f"{self.folder}/cuda/libcudnn_ops.so.9")
        waits = subprocess.Popen(["sh", "-c", f"echo >{self.folder}/cuda/libcudnn_ops.so.9"])
        self.run_it(GPU_CHECK_LIBRARIES=f"/none:{self.folder}/cuda")
        self.assertEqual(waits.wait(60), 0)

    def test_the_report_is_stored_where_it_survives_the_machine(self):
        self.assertRegex(self.run_it(), rf"report {self.folder}/report began")
        self.assertRegex(self.run_it(OUT=f"{self.folder}/out"), rf"report {self.folder}/out/report began")
        self.assertIn(f"report {self.folder}/mine.md began", self.run_it(f"{self.folder}/mine.md",
                                                                        OUT=f"{self.folder}/out"))

    def test_the_time_limit_starts_with_the_script(self):
        before = int(time.time())
        began = int(self.run_it().rsplit(" ", 1)[1])
        self.assertLessEqual(before, began)
        self.assertLessEqual(began, int(time.time()) - 1)  # nvidia-smi took a second


unittest.main(argv=sys.argv[:1])
