# SPDX-License-Identifier: Apache-2.0
"""A page that cuboid writes, parsed: its elements, texts and attributes, and those that its script makes."""
import html.parser
import json
import os
import re
import shutil
import subprocess


class Page(html.parser.HTMLParser):
    """The elements of a page, which must all be closed, and its text."""

    def __init__(self, text):
        super().__init__()
        self.names, self.open, self.texts, self.attributes, self.failures = set(), [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.names.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.failures.append(f"</{tag}> closes nothing")

    def handle_data(self, data):
        self.texts.append(data)


def data_of(text):
    """The data that a page shows."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S).group(1))


def rendered(path):
    """What the script of a page makes; None without node."""
    node = shutil.which("node")
    if node is None:
        return None
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "page_dom.js")
    done = subprocess.run([node, script, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Page(done.stdout)
