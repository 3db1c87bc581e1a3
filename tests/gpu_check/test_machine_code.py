# SPDX-License-Identifier: Apache-2.0
"""The machine code of the warpgroup matmul (wgmma) kernels: ptxas may wait for a matmul earlier than the source says,
wait after each one, or spill accumulators to memory, and the results are still correct. So the machine code is read:
16 bytes per instruction, whose lowest 12 bits are the opcode.

    test_machine_code.py attention_fwd_sm90.cu.o attention_bwd_sm90.cu.o"""
import struct
import sys
import unittest

MUFU, WARPGROUP, HGMMA, LOCAL = 0x308, 0x9C5, (0x9F0, 0xDF0), (0x983, 0x387)
EXPONENTIALS = 32  # of a lane during a matmul, at least: 64 scores by 64 of a warpgroup


def cubins(data):
    """The machine code's ELF files (machine 190) in an object file."""
    at = data.find(b"\x7fELF", 1)
    while at >= 0:
        if struct.unpack_from("<H", data, at + 18)[0] == 190:
            yield data[at:]
        at = data.find(b"\x7fELF", at + 1)


def kernels(cubin):
    """Names and instructions, as pairs of 64 bits."""
    table, entry, count, names = struct.unpack_from("<Q10xHHH", cubin, 40)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + entry * i) for i in range(count)]
    for name, _, _, _, offset, size in sections:
        begin = sections[names][4] + name
        text = cubin[begin:cubin.index(b"\0", begin)].decode()
        if text.startswith(".text.") and "wgmma" in text:
            yield text[6:], list(struct.iter_unpack("<QQ", cubin[offset:offset + size]))


def events_of(code):
    """The relevant instructions, in order: ("wait", groups still in flight), "matmul", "exponential", "memory"."""
    out = []
    for low, high in code:
        op = low & 0xFFF
        if op == WARPGROUP and low >> 47 & 1:  # else it is the fence
            out.append(("wait", high >> 8 & 7))
        elif op in HGMMA:
            out.append("matmul")
        elif op == MUFU and high >> 8 & 31 == 8:
            out.append("exponential")
        elif op in LOCAL:
            out.append("memory")
    return out


class MachineCode(unittest.TestCase):
    def setUp(self):
        self.kernel_events = {}
        for path in OBJECTS:
            with open(path, "rb") as file:
                for cubin in cubins(file.read()):
                    self.kernel_events.update((name, events_of(code)) for name, code in kernels(cubin))
        # two types, two heads, with and without documents and dropout; two passes of backward
        self.assertEqual(len(self.kernel_events), 8 + 16)

    def test_no_wait_after_each_matmul(self):
        for name, events in self.kernel_events.items():
            waits = [what[1] for what in events if what[0] == "wait"]
            late = "differentiate" in name and "Li0ELb0E" in name  # to keys, neither documents nor dropout
            with self.subTest(name):
                self.assertEqual(waits, [0, 1, 0, 0] if "attention_fwd" in name else [1, int(late), 0])
                self.assertGreaterEqual(events.count("matmul"), 16)

    def test_exponentials_overlap_a_matmul(self):
        for name, events in self.kernel_events.items():
            with self.subTest(name):
                begin = events.index(("wait", 1)) + 1
                end = next(i for i in range(begin, len(events)) if events[i][0] == "wait")
                self.assertGreaterEqual(events[begin:end].count("exponential"), EXPONENTIALS)

    def test_accumulators_stay_in_registers(self):
        for name, events in self.kernel_events.items():
            with self.subTest(name):
                self.assertEqual(events.count("memory"), 0)


OBJECTS = sys.argv[1:]
if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
