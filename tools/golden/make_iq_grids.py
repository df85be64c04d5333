#!/usr/bin/env python3
"""Writes src/quant/quant_grids.c: the tables of GGUF's IQ formats, as Python's gguf package has them.

Needs numpy and gguf. Run: python3 tools/golden/make_iq_grids.py [output file]
"""

import sys
from pathlib import Path

import numpy as np
from gguf import quants

TABLES = [("iq2xxs", quants.IQ2_XXS), ("iq2xs", quants.IQ2_XS), ("iq2s", quants.IQ2_S), ("iq3xxs", quants.IQ3_XXS), ("iq3s", quants.IQ3_S), ("iq1s", quants.IQ1_S)]


def rows(numbers, per_line, form):
    return "".join("    " + ", ".join(form.format(n) for n in numbers[i:i + per_line]) + ",\n" for i in range(0, len(numbers), per_line))


def table(name, kind):
    kind.init_grid()
    grid = np.ascontiguousarray(kind.grid.reshape(kind.grid_shape).astype(np.int8))
    bits = 8 * grid.shape[1]
    numbers = grid.view(f"<u{bits // 8}").ravel().tolist()
    form, per_line = ("0x{:016x}", 5) if bits == 64 else ("0x{:08x}", 9)
    return f"const uint{bits}_t quant_{name}_grid[{len(numbers)}] = {{\n{rows(numbers, per_line, form)}}};\n"


def main():
    root = Path(__file__).resolve().parent.parent.parent
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else root / "src" / "quant" / "quant_grids.c"
    signs = list(quants.IQ2_XXS.ksigns)
    assert signs == [i | (bin(i).count("1") & 1) << 7 for i in range(128)]
    text = ("/* Tables of GGUF's IQ formats; written by tools/golden/make_iq_grids.py from Python's gguf package, from which the\n"
            " * values are (NOTICE). A row's least significant byte is its first weight. */\n"
            '#include "quant/quant_grids.h"\n\n// clang-format off\n\n'
            f"const uint8_t quant_iq_signs[128] = {{\n{rows(signs, 18, '{:3}')}}};\n\n"
            + "\n".join(table(name, kind) for name, kind in TABLES))
    out.write_text(text)
    print(f"{out}: {len(text.splitlines())} lines")


if __name__ == "__main__":
    main()
