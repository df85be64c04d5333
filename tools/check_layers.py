#!/usr/bin/env python3
"""Checks that no part includes what is above it, and a few rules that a compiler does not know.

Which part may include which comes from cmake/parts.cmake (sl_part(NAME DEPS ...), direct and indirect) and, for src/cli, from SL_CLI_INCLUDES in
cmake/targets.cmake. Prints each breach as FILE:LINE: what, and exits 1 if there is one.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.S)
FORBIDDEN = re.compile(r"\b(exit|_exit|abort|assert|printf|puts|putchar|perror)\s*\(|\bf(?:printf|puts|putc)\s*\(\s*std(?:out|err)\b")
# The engine's public header is implemented by engine and used by cli; gpu.h's owner is the compute runtime.
PUBLIC_USERS = {"sluice/error.h": None, "sluice/sluice.h": {"engine", "cli"}, "sluice/gpu.h": {"gpu", "ops", "engine", "cli"}}


def read_parts():
    """{part: set of parts it may include, itself among them}"""
    text = (ROOT / "cmake/parts.cmake").read_text()
    direct = {}
    for name, words in re.findall(r"^sl_part\(\s*(\w+)([^)]*)\)", text, re.M):
        deps = re.search(r"\bDEPS\s+([\w\s]*?)\s*(?:\b(?:LIBS|FOLDERS|TEXTS)\b|$)", words)
        direct[name] = deps.group(1).split() if deps else []
    closed = {}
    for name, deps in direct.items():
        unknown = [d for d in deps if d not in closed]
        if unknown:
            raise SystemExit(f"cmake/parts.cmake: {name} depends on {unknown[0]}, which is not listed before it")
        closed[name] = {name}.union(*[closed[d] for d in deps])
    return closed


def read_cli_includes():
    text = (ROOT / "cmake/targets.cmake").read_text()
    return re.search(r"set\(SL_CLI_INCLUDES ([^)]*)\)", text).group(1).split()


def own_file(part, path):
    return "/" not in path and (ROOT / "src" / part / path).is_file()


def may_include(part, path, parts, cli_includes):
    """None, or why not."""
    if path.startswith("sluice/"):
        users = PUBLIC_USERS.get(path, set())
        return None if users is None or part in users else f"{path} is not for {part}"
    if own_file(part, path):
        return None
    owner = path.split("/")[0]
    owner = {"kernels": "gpu"}.get(owner, owner)  # texts of gpu, whose headers C and Metal share
    if owner != part and owner not in parts:
        return f"{path}: no part of that name"
    if part == "cli":
        return None if owner == "cli" or owner in cli_includes or path in cli_includes else f"cli may not include {path}"
    return None if owner in parts[part] else f"{part} may not include {owner}"


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def check_file(file, part, parts, cli_includes):
    text = file.read_text()
    name = file.relative_to(ROOT)
    for number, line in enumerate(text.splitlines(), 1):
        found = INCLUDE.match(line)
        why = found and may_include(part, found.group(1), parts, cli_includes)
        if why:
            yield f"{name}:{number}: {why}"
    if part == "cli":
        return
    for number, line in enumerate(COMMENT_OR_STRING.sub(blank, text).splitlines(), 1):
        found = FORBIDDEN.search(line)
        if found:
            yield f"{name}:{number}: {found.group(0)}...: only src/cli prints or ends the program"


def check_public_headers():
    for file in sorted((ROOT / "include/sluice").glob("*.h")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            found = INCLUDE.match(line)
            if found and not found.group(1).startswith("sluice/"):
                yield f"{file.relative_to(ROOT)}:{number}: a public header includes the private {found.group(1)}"


def main():
    parts = read_parts()
    cli_includes = read_cli_includes()
    breaches = list(check_public_headers())
    count = 0
    for file in sorted(f for f in (ROOT / "src").rglob("*.[ch]") if "prelude" not in f.parts and "kernels" not in f.parts):
        part = file.relative_to(ROOT / "src").parts[0]
        count += 1
        if part != "cli" and part not in parts:
            breaches.append(f"{file.relative_to(ROOT)}: {part} is not in cmake/parts.cmake")
            continue
        breaches += check_file(file, part, parts, cli_includes)
    print("\n".join(breaches) if breaches else f"layers: {count} files, {len(parts) + 1} parts, in order")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
