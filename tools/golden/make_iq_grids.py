#!/usr/bin/env python3
"""Writes src/quant/quant_grids.c: the tables of GGUF's IQ formats, as Python's gguf package has them.

Needs numpy and gguf. Run: python3 tools/golden/make_iq_grids.py [output file]
"""

import sys
from pathlib import Path

import numpy as np
from gguf import quants

TABLES = [("iq2xxs", quants.IQ2_XXS), ("iq2xs", quants.IQ2_XS), ("iq2s", quants.IQ2_S), ("iq3xxs", quants.IQ3_XXS), ("iq3s", quants.IQ3_S), ("iq1s", quants.IQ1_S)]

# How a row's values, which are few, become codes of two or three bits.
CODES = {"iq2xxs": "EIGHTHS", "iq2xs": "EIGHTHS", "iq2s": "EIGHTHS", "iq3xxs": "EIGHTS", "iq3s": "ODDS", "iq1s": "SIGNS"}
MACROS = """#define WHOLE(v) v,
/* Codes of 2 bits of eight values 8, 25, 43; or -1, 0, 1; of 3 bits of four values about 8 apart, or odd. */
#define BYTE(v, k)    ((uint64_t)(v) >> 8 * (k) & 255)
#define TWO(F, v)                                                                                                      \\
    F(BYTE(v, 0)) | F(BYTE(v, 1)) << 2 | F(BYTE(v, 2)) << 4 | F(BYTE(v, 3)) << 6 | F(BYTE(v, 4)) << 8 |                \\
        F(BYTE(v, 5)) << 10 | F(BYTE(v, 6)) << 12 | F(BYTE(v, 7)) << 14,
#define THREE(F, v)   F(BYTE(v, 0)) | F(BYTE(v, 1)) << 3 | F(BYTE(v, 2)) << 6 | F(BYTE(v, 3)) << 9,
#define OF_16(b)      ((b) >> 4)
#define OF_8(b)       ((b) >> 3)
#define OF_2(b)       ((b) >> 1)
#define OF_SIGN(b)    (((b) + 1) & 3)
#define EIGHTHS(v)    TWO(OF_16, v)
#define SIGNS(v)      TWO(OF_SIGN, v)
#define EIGHTS(v)     THREE(OF_8, v)
#define ODDS(v)       THREE(OF_2, v)

"""


def rows(numbers, per_line, form):
    return "".join("    " + ", ".join(form.format(n) for n in numbers[i:i + per_line]) + ",\n" for i in range(0, len(numbers), per_line))


def grid(name, kind):
    """The list as a macro, for two tables are made of it."""
    kind.init_grid()
    numbers = np.ascontiguousarray(kind.grid.reshape(kind.grid_shape).astype(np.int8))
    bits = 8 * numbers.shape[1]
    numbers = numbers.view(f"<u{bits // 8}").ravel().tolist()
    form, per_line = ("G(0x{:016x})", 5) if bits == 64 else ("G(0x{:08x})", 8)
    lines = "".join("    " + " ".join(form.format(n) for n in numbers[i:i + per_line]) + " \\\n" for i in range(0, len(numbers), per_line))
    return (f"#define {name.upper()}(G) \\\n{lines[:-3]}\n"
            f"const uint{bits}_t quant_{name}_grid[{len(numbers)}] = {{{name.upper()}(WHOLE)}};\n"
            f"const _Alignas(64) uint16_t quant_{name}_codes[{len(numbers)}] = {{{name.upper()}({CODES[name]})}};\n")


def main():
    root = Path(__file__).resolve().parent.parent.parent
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else root / "src" / "quant" / "quant_grids.c"
    signs = list(quants.IQ2_XXS.ksigns)
    assert signs == [i | (bin(i).count("1") & 1) << 7 for i in range(128)]
    text = ("/* Tables of GGUF's IQ formats; written by tools/golden/make_iq_grids.py from Python's gguf package, from which the\n"
            " * values are (NOTICE). A row's least significant byte is its first weight. */\n"
            '#include "quant/quant_grids.h"\n\n// clang-format off\n\n'
            f"const uint8_t quant_iq_signs[128] = {{\n{rows(signs, 18, '{:3}')}}};\n\n"
            + MACROS + "\n".join(grid(name, kind) for name, kind in TABLES))
    out.write_text(text)
    print(f"{out}: {len(text.splitlines())} lines")


if __name__ == "__main__":
    main()
