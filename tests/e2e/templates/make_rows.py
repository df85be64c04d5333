#!/usr/bin/env python3
"""Writes tests/unit/text/template_rows.h from features.txt: each line with what jinja2 makes of it (NULL: an error)."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from templates import reference  # noqa: E402

VALUES = {"g1": "G", "x": "ctx", "messages": [{"role": "user", "content": "hello"}]}


def c_string(text):
    out, digits_follow = "", False
    for byte in text.encode():
        c = chr(byte)
        if c in '"\\':
            out += "\\" + c
        elif c == "\n":
            out += "\\n"
        elif 0x20 <= byte < 0x7F:
            out += ('" "' if digits_follow and c in "0123456789abcdefABCDEF" else "") + c
        else:
            out += f"\\x{byte:02x}"
        digits_follow = out.endswith(f"\\x{byte:02x}")
    return f'"{out}"'.replace("?", "\\?")


def main():
    env = reference.environment()
    lines = (pathlib.Path(__file__).parent / "features.txt").read_text(encoding="utf-8").split("\n")
    rows = []
    for line in filter(None, lines):
        ok, text = reference.reference(env, line, VALUES)
        if ok and " at 0x" in text:
            continue
        rows.append(f"    {{{c_string(line)},\n     {c_string(text) if ok else 'NULL'}}},\n")
    path = reference.ROOT / "tests/unit/text/template_rows.h"
    path.write_text(
        "/* clang-format off */\n/* Written by tests/e2e/templates/make_rows.py: templates and what Python's jinja2 makes of them; NULL: an error.\n * The data is ROW_VALUES. */\n"
        f"#define ROW_VALUES {c_string(json.dumps(VALUES))}\n\n"
        "static const struct {\n    const char *source, *want;\n} rows[] = {\n" + "".join(rows) + "};\n/* clang-format on */\n"
    )


main()
