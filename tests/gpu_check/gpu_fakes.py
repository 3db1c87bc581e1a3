# SPDX-License-Identifier: Apache-2.0
"""The fixture of test_gpu_report.py and test_gpu_calls.py: gpu_report.py in its own process, with a folder in which
every program is a shell script. The scripts' folder is the first argument of the test."""
import os
import stat
import subprocess
import sys
import tempfile
import time
import unittest

TOOLS = os.path.abspath(sys.argv[1])
sys.path.insert(0, TOOLS)
sys.dont_write_bytecode = True
import gpu_tests  # noqa: E402

RATES = """\
own attention: 91.0 % of cuDNN's rate forward, 85.5 % backward; target 80 %
copy, 512 MB (peak bandwidth)        0.125 ms    4290.0 GB/s     100.0 % x 0           0.00 ms
norm_forward                         0.010 ms    3861.0 GB/s      90.0 % x 25          0.25 ms
gelu-tanh:
  activation_forward                 0.020 ms    3432.0 GB/s      80.0 % x 12          0.24 ms
column_sum                           0.020 ms    3860.0 GB/s      90.0 % x 24          0.48 ms
column_sum                           0.020 ms    3217.5 GB/s      75.0 % x 12          0.24 ms
  attention_forward                  0.100 ms  400000.0 GFLOP/s          x 12          1.20 ms
gemm   2304 x  768, all three         0.100 ms 500000.0 GFLOP/s  x 12          1.20 ms
"""
VERIFY = """\
  the worst element of                              error      bound     ratio
  loss                                          1.000e-06  4.000e-05     0.025  step 1
  gradient norm                                 1.000e-06  4.000e-05     0.025  step 1
"""
COLUMNS = ["weights", "gradients", "optimizer", "activations", "communication", "workspace", "data", "host", "total"]
DRY = "".join(f" {word:>13}" for word in COLUMNS) + "\n    0      0" + "      64.0 MiB" * 8 + "      {all}\n"
# Pretends to train. FAKE_LOSS: the loss of the first step; FAKE_KERNELS: of attention;
# FAKE_FAIL: fails when one of the arguments is this word.
PROGRAM = r"""#!/bin/sh
seen=" "
for word in "$@"; do
    case $word in *=*) ;; *) continue ;; esac
    key=${word%%=*}
    case $seen in *" $key "*) echo "error: command line: $key is given twice"; exit 2 ;; esac
    seen="$seen$key "
done
iters=2 dir= batch=1
for word in "$@"; do
    [ "$word" != "$FAKE_FAIL" ] || { echo "it failed on purpose"; exit 1; }
    [ "$word" != "$FAKE_HANG" ] || exec sleep 60
    case $word in
    logging.run_dir=*) dir=${word#*=} ;;
    train.train_iters=*) iters=${word#*=} ;;
    train.micro_batch_size=*) batch=${word#*=} ;;
    cluster.device=dry) cat "$0.dry"; exit 0 ;;
    --version) echo "mpi     yes"; exit 0 ;;
    esac
done
case $1 in
verify) cat "$0.verify" ;;
doctor) echo "one GPU" ;;
plan)
    [ "$batch" -le 50 ] && fits=true || fits=false
    echo "{\"fits\": $fits, \"step_time_s\": ${FAKE_STEP:-0.51}, \"memory_peak_bytes\": 1073741824}" ;;
train)
    [ "$batch" -le "${FAKE_REFUSES:-50}" ] || { echo "it does not fit"; exit 2; }
    mkdir -p "$dir"
    echo "attention kernels launched: ${FAKE_KERNELS:-wgmma} (forward, backward)"
    i=1
    while [ $i -le "$iters" ]; do
        echo "{\"step\": $i, \"loss\": ${FAKE_LOSS:-5.5}, \"grad_norm\": 1.$i, \"step_time_s\": 0.5," \
            "\"tokens_per_s\": 1000.0, \"model_tflops_per_rank\": 500.0, \"mfu\": 0.51, \"mfu_causal\": 0.48," \
            "\"memory_peak_bytes\": 1073741824}"
        i=$((i + 1))
    done >"$dir/metrics.jsonl" ;;
esac
"""
# Prints what the real program prints (test_waits.py). FAKE_WAIT: calls inside step 4.
COUNTED = r"""#!/bin/sh
cat "${0%_counted}.planned"
for word in "$@"; do
    [ "$word" != cluster.cuda_graphs=true ] || graphs=1
done
for i in 1 2 3 4; do
    inside=nothing free=9437184
    [ $i != 1 ] || inside="cudaStreamSynchronize 1 (0F0)"
    [ $i != 4 ] || inside=${FAKE_WAIT:-$inside}
    [ $i = 1 ] || [ -z "$graphs" ] || free=1048576
    echo "step $i blocking calls: inside $inside; at the end cudaEventSynchronize ${FAKE_ENDS:-1} (update);" \
        "$free of 10485760 bytes free"
done
"""
SMI = """#!/bin/sh
case $1 in
-L) echo "GPU 0: NVIDIA H200 (UUID: GPU-1)" ;;
*) echo "NVIDIA H200, 580.1, 143771 MiB" ;;
esac
"""
# Fakes two tests, and prints how they were started. FAKE_TEST selects the one that fails, and how.
TESTED = r"""#!/bin/sh
[ "$1" != nonsense ] || exit 2
[ "$1" != --list ] || { printf 'suite: 2 tests\n├── is_one\n└── is_cudnns_too\n'; exit 0; }
echo "tested ${0##*/} $2 kind ${CUBOID_TEST_KIND:-none} blocking ${CUDA_LAUNCH_BLOCKING:-0}"
case "$FAKE_TEST" in
"${0##*/} ${2#*/} $CUBOID_TEST_KIND") exit 1 ;;
"hang ${0##*/} ${2#*/} $CUBOID_TEST_KIND") exec python3 "${0%/bin/*}/hang.py" ;;
esac
"""
BENCH = """#!/bin/sh
[ "$1" != nonsense ] || exit 2
cat "${0%/bin/*}/rates"
"""
# A kernel that never ends: its processes ignore SIGTERM, and one of them has its own process group.
HANG = """import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setpgid(0, 0)
with open(os.path.dirname(__file__) + "/hung", "a") as out:
    out.write(f"{os.getpid()}\\n")
time.sleep(100)
"""
TORCH = 'import json\nprint(json.dumps({"tokens_per_s": 800.0, "step_time_s": 0.6}))\nprint("a warning at the end")\n'
# Has no memory for more than 24 layers, and must only see the machine's own libraries.
SMALL_TORCH = """import os, sys
assert "ours" not in os.environ.get("LD_LIBRARY_PATH", ""), "packed libraries"
if "--layers" in sys.argv and int(sys.argv[sys.argv.index("--layers") + 1]) > 24:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.")
""" + TORCH
# A profiler that knows one kernel, and prints as Nsight Compute does.
NCU = """#!/bin/sh
echo "==PROF== Connected to process 1"
case "$*" in *regex:attention_fwd_sm90*) ;; *) echo "==WARNING== No kernels were profiled."; exit ;; esac
echo '    Section: GPU Speed Of Light Throughput
    Memory Throughput                 %        35.10
    Duration                         us       120.32
    Compute (SM) Throughput           %        61.00
    Section: Occupancy
    Achieved Occupancy                %        12.40'
"""
DATE = time.strftime("%Y-%m-%d", time.gmtime())
# A fake launcher: runs one process, the command after -n N.
MPIRUN = '#!/bin/sh\nwhile [ "$1" != -n ]; do shift; done\nshift 2\nexec "$@"\n'


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class FakePrograms(unittest.TestCase):

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = self.temporary.name
        for name in ("bin", "path", "recipes", "reference"):
            os.mkdir(f"{self.folder}/{name}")
        self.write("commit", "abc1234\n")
        self.write("gpu_torch.py", TORCH)
        self.program("bin/cuboid", PROGRAM)
        self.write("bin/cuboid.verify", VERIFY)
        self.write("bin/cuboid.dry", DRY.format(all="60.0 GiB"))
        self.program("bin/cuboid_counted", COUNTED)
        self.write("bin/cuboid.planned", "memory of a rank: at most 2.0 GiB (rank 0): weights 1.00 GiB\n")
        self.write("rates", RATES)
        self.program("bin/bench_ops", BENCH)
        for name in ["golden", *gpu_tests.TESTS]:
            self.program("bin/test_" + name, TESTED.replace("python3", sys.executable))
        self.program("path/nvidia-smi", SMI)
        self.program("path/mpirun", MPIRUN)
        self.program("path/compute-sanitizer", "#!/bin/sh\nexit 9\n")

    def tearDown(self):
        self.temporary.cleanup()

    def write(self, name, text):
        with open(f"{self.folder}/{name}", "w") as out:
            out.write(text)

    def program(self, name, text):
        self.write(name, text)
        os.chmod(f"{self.folder}/{name}", stat.S_IRWXU)

    def read(self, path):
        with open(path) as text:
            return text.read()

    def run_parts(self, parts, path=None, **environment):
        path = path or f"{self.folder}/report.md"
        done = subprocess.run([sys.executable, f"{TOOLS}/gpu_report.py", self.folder, path],
                              env={**os.environ, "PATH": f"{self.folder}/path:{os.environ['PATH']}",
                                   "GPU_CHECK": parts, "TMPDIR": self.folder, **environment},
                              capture_output=True, text=True, timeout=60)
        return done.returncode, self.read(path) if os.path.isfile(path) else done.stdout
