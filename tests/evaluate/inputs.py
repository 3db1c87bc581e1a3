# SPDX-License-Identifier: Apache-2.0
"""What test_evaluate.py and make_expected.py evaluate: tiny models, and datasets of ids."""
import os
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "huggingface"), os.path.join(HERE, "..", "support")]
import models  # noqa: E402

END = 256  # of a document, for the byte tokenizer
# Models of 64 ids, evaluated on a stream; models of bytes, on documents.
STREAM = {name: models.CASES[name] for name in ("gpt2", "llama3", "qwen3")}
BYTES = {"gpt2-bytes": {**models.CASES["gpt2"], "vocab_size": END + 1},
         "llama-bytes": {**models.CASES["llama"], "vocab_size": END + 1}}
IDS = [(i * i + i // 7) % models.VOCAB for i in range(5 * models.CONTEXT + 42)]
# Shorter than the context, empty, of exactly one window, of one token more, and of several windows.
TEXTS = ["The quick brown fox, caf\u00e9s.", "", "a" + "bc" * 63 + "d", "x" + "yz" * 64, "0123456789 " * 30]
DOCUMENTS = [list(text.encode()) + [END] for text in TEXTS]


def windows(sequence, length):
    """(inputs, labels, targets) of the rolling windows of a sequence, whose first id is not predicted."""
    predicted = 0
    while predicted < len(sequence) - 1:
        last = min(predicted + length, len(sequence) - 1)
        ids = sequence[max(0, last - length):last + 1]
        yield ids[:-1], ids[1:], last - predicted
        predicted = last
