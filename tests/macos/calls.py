#!/usr/bin/env python3
"""Where the arguments of Objective-C messages land on Apple's systems, read from the assembly of calls.c.

calls.py CLANG SOURCE_DIR. On arm64 a struct of more than 16 bytes goes by address, a smaller one in registers, and nothing on the stack
unless a function is variadic; on x86-64 structs of more than 16 bytes lie on the stack. Prints what was found; exits 1 on another shape.
"""

import re
import subprocess
import sys
from pathlib import Path

CLANG, SOURCE = sys.argv[1], Path(sys.argv[2])


def functions(target):
    """{name: lines} of calls.c compiled for target"""
    command = [CLANG, f"--target={target}", "-ffreestanding", "-std=gnu17", "-O1", "-fomit-frame-pointer", f"-I{SOURCE}/src",
               "-S", str(SOURCE / "tests/macos/calls.c"), "-o", "-"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found, name = {}, None
    for line in text.splitlines():
        line = re.split(r";|##", line)[0].strip()
        label = re.match(r"_(call_\w+):", line)
        if label:
            name = label.group(1)
            found[name] = []
        elif line.startswith(".cfi_endproc"):
            name = None
        elif name and line and not line.startswith("."):
            found[name].append(re.sub(r"\s+", " ", line))
    return found


def expect(ok, what, lines):
    if not ok:
        sys.exit(f"{what}: not so in\n  " + "\n  ".join(lines))


def before_call(lines, call):
    at = next(i for i, line in enumerate(lines) if re.match(call, line))
    return lines[:at]


def frame_address(lines, register):
    """Offset from sp that a register holds at the call, or None."""
    offset = None
    for line in lines:
        if re.match(rf"mov {register}, sp$", line):
            offset = 0
        elif m := re.match(rf"add {register}, sp, #(\d+)$", line):
            offset = int(m.group(1))
        elif re.match(rf"\w+ {register}\b", line):
            offset = None
    return offset


def written(lines, *registers):
    return all(any(re.match(rf"(mov|ldr|ldp|cset|add)\w* (\w+, )?[xw]{r}\b", line) for line in lines) for r in registers)


def stack_bytes(lines):
    """Bytes of the stack that stores before the call fill, saved registers left out: {offset of a byte}"""
    found = set()
    for line in lines:
        m = re.match(r"(str|stp|stur) (.*), \[sp(?:, #(\d+))?\]$", line)
        if m and "x29" not in line:
            sizes = {"q": 16, "x": 8, "w": 4}
            size = sum(sizes[r.strip()[0]] for r in m.group(2).split(","))
            found |= set(range(int(m.group(3) or 0), int(m.group(3) or 0) + size))
    return found


def check_arm64():
    code = {name: before_call(lines, r"blr? ") for name, lines in functions("arm64-apple-macos14").items()}
    sizes = code["call_sizes"]
    first, second = frame_address(sizes, "x2"), frame_address(sizes, "x3")
    expect(first is not None and second is not None and abs(first - second) >= 24, "MTLSize by address in x2 and x3", sizes)
    expect(stack_bytes(sizes) == set(range(first, first + 24)) | set(range(second, second + 24)), "24 bytes behind each", sizes)
    expect(written(code["call_range"], 3, 4, 5), "NSRange in x3, x4, the byte in w5", code["call_range"])
    expect(written(code["call_bool"], 2), "BOOL in w2", code["call_bool"])
    for name, lines in code.items():
        if name not in ("call_sizes", "call_wrongly"):
            expect(not stack_bytes(lines), f"{name}: no argument on the stack", lines)
    expect(len(stack_bytes(code["call_wrongly"])) == 24, "a variadic call puts its arguments on the stack", code["call_wrongly"])
    print(f"arm64: MTLSize by address (sp+{first}, sp+{second}), NSRange and scalars in registers")


def check_x86_64():
    code = functions("x86_64-apple-macos14")
    stores = {int(m.group(1) or 0): 16 if "ups" in m.group(0) or "aps" in m.group(0) else 8
              for line in before_call(code["call_sizes"], "call")
              for m in [re.match(r"mov\w+ %\w+, (\d*)\(%rsp\)", line)] if m}
    filled = {b for at, n in stores.items() for b in range(at, at + n)}
    expect(filled == set(range(48)), "two MTLSize in the 48 bytes at the stack's top", code["call_sizes"])
    expect(any(re.match(r"test\w* %al, %al", line) for line in code["call_result"]), "the low byte of a BOOL", code["call_result"])
    print("x86_64: MTLSize on the stack, BOOL by its low byte")


check_arm64()
check_x86_64()
