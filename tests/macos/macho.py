#!/usr/bin/env python3
"""Are these valid programs for macOS on arm64? macho.py FILE...

Walks the load commands, and looks up who defines each symbol that a program leaves open: the system's library, or (by name) one of the
third-party libraries that this cross build leaves to dynamic lookup. Exits 1 with the first that is neither.
"""

import re
import struct
import sys

MAGIC, ARM64, EXECUTE = 0xFEEDFACF, 0x0100000C, 2
SEGMENT, SYMTAB, LOAD_DYLIB, MAIN, BUILD_VERSION, SIGNATURE = 0x19, 0x2, 0xC, 0x80000028, 0x32, 0x1D
MACOS, FIRST_LIBRARY = 1, 1
THIRD_PARTY = re.compile(r"_(XXH|pcre2_|utf8proc_|json_|el_|history|_?cmocka_|_assert_|_will_|_fail|_skip|_check_|_expect_|_mock|print_(message|error)$|"
                         r"mock_|global_|cm_print|vprint_)")


def text(data, at):
    return data[at:data.index(b"\0", at)].decode()


def load_commands(data):
    magic, cpu, _, kind, count, size, _, _ = struct.unpack_from("<8I", data)
    if (magic, cpu, kind) != (MAGIC, ARM64, EXECUTE):
        raise ValueError(f"magic {magic:#x}, processor {cpu:#x}, kind {kind}")
    at, end = 32, 32 + size
    for _ in range(count):
        command, length = struct.unpack_from("<2I", data, at)
        if length < 8 or at + length > end:
            raise ValueError(f"a load command of {length} bytes at {at}")
        yield command, data[at:at + length]
        at += length
    if at != end:
        raise ValueError("load commands are shorter than the header says")


def check_segments(commands, size):
    names = []
    for command, body in commands:
        if command == SEGMENT:
            name = body[8:24].rstrip(b"\0").decode()
            offset, length = struct.unpack_from("<2Q", body, 40)
            if offset + length > size:
                raise ValueError(f"segment {name} ends behind the file")
            names.append(name)
    for wanted in ("__PAGEZERO", "__TEXT", "__LINKEDIT"):
        if wanted not in names:
            raise ValueError(f"no segment {wanted}")


def open_symbols(data, table):
    """Names that are undefined and not in the one library: left to dynamic lookup"""
    _, _, at, count, strings, _ = struct.unpack_from("<6I", table)
    for i in range(count):
        name, kind, _, description, _ = struct.unpack_from("<IBBHQ", data, at + 16 * i)
        if kind & 0xE0 == 0 and kind & 0x0E == 0 and description >> 8 != FIRST_LIBRARY:
            yield text(data, strings + name)


def check(file):
    data = open(file, "rb").read()
    commands = list(load_commands(data))
    kinds = dict(commands)
    for wanted, what in ((MAIN, "entry point"), (SYMTAB, "symbol table"), (BUILD_VERSION, "build version"), (SIGNATURE, "signature")):
        if wanted not in kinds:
            raise ValueError(f"no {what}")
    platform, least = struct.unpack_from("<2I", kinds[BUILD_VERSION], 8)
    if platform != MACOS:
        raise ValueError(f"platform {platform}")
    check_segments(commands, len(data))
    libraries = [text(body, struct.unpack_from("<I", body, 8)[0]) for command, body in commands if command == LOAD_DYLIB]
    if libraries != ["/usr/lib/libSystem.B.dylib"]:
        raise ValueError(f"libraries {libraries}")
    left = sorted(set(open_symbols(data, kinds[SYMTAB])))
    strange = [s for s in left if not THIRD_PARTY.match(s)]
    if strange:
        raise ValueError(f"symbols that nobody defines: {' '.join(strange[:20])}")
    return f"macOS {least >> 16}.{least >> 8 & 255} arm64, {len(commands)} load commands, {len(left)} symbols of third parties"


if len(sys.argv) < 2:
    sys.exit("macho.py FILE...")
for file in sys.argv[1:]:
    try:
        print(f"{file.split('/')[-1]}: {check(file)}")
    except (ValueError, IndexError, struct.error) as e:
        sys.exit(f"{file}: {e}")
