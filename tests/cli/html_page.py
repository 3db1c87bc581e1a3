# SPDX-License-Identifier: Apache-2.0
"""A page that cuboid writes, parsed: its elements, texts and attributes."""
import html.parser


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
