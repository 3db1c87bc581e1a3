# SPDX-License-Identifier: Apache-2.0
"""meson install into a folder of its own: the program, the man page and the bash completion.

    test_install.py BUILD_DIR SOURCE_ROOT"""
import os
import subprocess
import sys
import tempfile
import unittest

BUILD, ROOT = map(os.path.abspath, sys.argv[1:3])


def output(*words, **options):
    return subprocess.run(words, text=True, capture_output=True, check=True, **options).stdout


class Install(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        output("meson", "install", "-C", BUILD, "--no-rebuild", env={**os.environ, "DESTDIR": temporary.name})
        self.folder = temporary.name

    def installed(self, end):
        found = [path for folder, _, names in os.walk(self.folder) for name in names
                 if (path := os.path.join(folder, name)).endswith(end)]
        self.assertEqual(len(found), 1, end)
        return found[0]

    def completed(self, *words):
        script = ('source "$1"; shift; COMP_WORDS=(cuboid "$@"); COMP_CWORD=$#; _cuboid; '
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        installed = self.installed("/bash-completion/completions/cuboid")
        return output("bash", "-c", script, "bash", installed, *words).split()

    def test_program_and_page(self):
        help_text = output(self.installed("/bin/cuboid"), "help")
        with open(self.installed("/man1/cuboid.1"), encoding="utf8") as page:
            text = page.read()
        commands = [line.split()[1] for line in help_text.splitlines() if line.startswith("  cuboid ")]
        self.assertGreater(len(commands), 10)
        for name in commands:
            self.assertIn(f".SS {name}\n", text)

    def test_completion(self):
        self.assertEqual(self.completed("pl"), ["plan"])
        self.assertEqual(self.completed("data", "pre"), ["prepare"])
        self.assertEqual(self.completed("train", "RECIPE", "--rest"), ["--restarts"])
        with open(f"{ROOT}/docs/recipe.md", encoding="utf8") as reference:
            text = reference.read().split("\n## optimizer\n")[1].split("\n## ")[0]
        keys = sorted(f"optimizer.{row.split('`')[1]}=" for row in text.splitlines() if row.startswith("| `l"))
        self.assertIn("optimizer.lr_decay_iters=", keys)
        self.assertEqual(sorted(self.completed("train", "RECIPE", "optimizer.l")), keys)
        self.assertEqual(self.completed("data", "optimizer.l"), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
