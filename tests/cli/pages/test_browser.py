# SPDX-License-Identifier: Apache-2.0
"""Pages in headless Chromium (Debian: chromium), light and dark: no error in a script, and the rows are there.

    test_browser.py CUBOID [FOLDER]     FOLDER: keeps the pages and pictures of them there, to look at"""
import os
import subprocess
import sys
import tempfile

CUBOID = os.path.abspath(sys.argv[1])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
SWEEP = f"""base: {ROOT}/recipes/models/llama/llama2-7b.yaml
axes: {{tp: [1, 2, 4, 8], pp: [1, 2, 4], train.micro_batch_size: [1, 2, 4], zero: [1, 3]}}
"""
PAGES = {  # name: command, words that must be shown
    "sweep": (("sweep", "sweep.yaml", "--all"), ("Time against memory", "on the Pareto front", "68 rows")),
    "report": (("report", "runs", "-o"), ("Training loss", "Memory by part", "Recipe keys that differ")),
    "table": (("table", "megascale"), ("Shaded: within 10 %", "90th percentile", "MFU predicted")),
}
DARK = "--blink-settings=preferredColorScheme=0"


def browse(page, *options):
    done = subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                           "--window-size=1240,1900", "--virtual-time-budget=3000", "--enable-logging=stderr", *options,
                           f"file://{os.path.abspath(page)}"], capture_output=True, text=True, timeout=300, check=True)
    errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not errors, f"{page}: {errors}"
    return done.stdout


def main():
    with open("sweep.yaml", "w", encoding="utf-8") as file:
        file.write(SWEEP)
    for lr in ("1e-3", "3e-3"):
        subprocess.run([CUBOID, "train", f"{ROOT}/recipes/quickstart.yaml", "data.mock_data=true", "data.train=[]",
                        "train.train_iters=40", "train.eval_interval=10", "model.seq_length=32",
                        "optimizer.lr_warmup_iters=5", f"optimizer.lr={lr}", f"logging.run_dir=runs/{lr}"],
                       stdout=subprocess.DEVNULL, check=True)
    for name, (command, words) in PAGES.items():
        page = f"{name}.html"
        option = () if "-o" in command else ("--html",)
        subprocess.run([CUBOID, *command, *option, page], stdout=subprocess.DEVNULL, check=True)
        shown = browse(page, "--dump-dom")
        missing = [word for word in words if word not in shown]
        assert not missing, f"{page} does not show {missing}"
        for theme, options in (("light", ()), ("dark", (DARK,))):
            browse(page, *options, f"--screenshot={name}-{theme}.png")
            assert os.path.getsize(f"{name}-{theme}.png") > 20000
        print(f"ok {page}: no script errors, light and dark")


if len(sys.argv) > 2:
    os.makedirs(sys.argv[2], exist_ok=True)
    os.chdir(sys.argv[2])
    main()
else:
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        main()
        os.chdir("/")
