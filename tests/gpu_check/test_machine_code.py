# SPDX-License-Identifier: Apache-2.0
"""What ptxas has made of the kernels on products of warpgroups: it may wait for a product earlier than the source says,
wait after each one, or keep in memory what should be in registers, and all of that still gives the right numbers. So
the machine code is read: 16 bytes to an instruction, the lowest 12 bits say which.

    test_machine_code.py attention_wgmma.cu.o attention_wgmma_back.cu.o"""
import struct
import sys
import unittest

MUFU, WARPGROUP, HGMMA, LOCAL = 0x308, 0x9C5, (0x9F0, 0xDF0), (0x983, 0x387)
EXPONENTIALS = 32  # of a lane beside a product, at least: 64 scores by 64 of a warpgroup


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


def story(code):
    """What matters, in order: ("wait", groups still in flight), "product", "exponential", "memory"."""
    out = []
    for low, high in code:
        op = low & 0xFFF
        if op == WARPGROUP and low >> 47 & 1:  # else it is the fence
            out.append(("wait", high >> 8 & 7))
        elif op in HGMMA:
            out.append("product")
        elif op == MUFU and high >> 8 & 31 == 8:
            out.append("exponential")
        elif op in LOCAL:
            out.append("memory")
    return out


class MachineCode(unittest.TestCase):
    def setUp(self):
        self.stories = {}
        for path in OBJECTS:
            with open(path, "rb") as file:
                for cubin in cubins(file.read()):
                    self.stories.update((name, story(code)) for name, code in kernels(cubin))
        # two types, two heads, with and without documents and dropout; two passes of backward
        self.assertEqual(len(self.stories), 8 + 16)

    def test_nobody_waits_for_each_product(self):
        for name, of in self.stories.items():
            waits = [what[1] for what in of if what[0] == "wait"]
            late = "differentiate" in name and "Li0ELb0E" in name  # to keys, neither documents nor dropout
            with self.subTest(name):
                self.assertEqual(waits, [0, 1, 0, 0] if "attend" in name else [1, int(late), 0])
                self.assertGreaterEqual(of.count("product"), 16)

    def test_exponentials_are_made_beside_a_product(self):
        for name, of in self.stories.items():
            with self.subTest(name):
                begin = of.index(("wait", 1)) + 1
                end = next(i for i in range(begin, len(of)) if of[i][0] == "wait")
                self.assertGreaterEqual(of[begin:end].count("exponential"), EXPONENTIALS)

    def test_what_is_worked_on_is_in_registers(self):
        for name, of in self.stories.items():
            # Heads of 64 with documents and dropout: one sum is put aside and fetched again.
            with self.subTest(name):
                self.assertLessEqual(of.count("memory"), 4 if "attend" in name and "Li64ELb1E" in name else 0)


OBJECTS = sys.argv[1:]
if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
