"""Places of a kernel's source that can be broken, and the source with all of them broken at choice.

mutate_kernels.py runs what is found here. A mutant removes one barrier, shifts one bound, or changes one index.
"""

import random
import re
from dataclasses import dataclass

KINDS = ("barrier", "bound", "index")
TYPES = {"uint", "int", "ulong", "long", "ushort", "short", "uchar", "char", "float", "half"}


@dataclass(frozen=True)
class Mutant:
    file: str
    kind: str
    begin: int  # characters of the file that are replaced
    end: int
    texts: tuple  # what stands there instead; the next where one does not compile
    line: int
    source: str  # the line, without spaces around it
    occurrence: int  # of this kind in lines that read the same

    @property
    def name(self):
        return f"{self.file}:{self.line} {self.kind} {self.occurrence}: {self.source}"

    @property
    def key(self):
        return (self.file, self.kind, self.source, str(self.occurrence))


# ---- places ----------------------------------------------------------------------------------------------------------


def blank_comments(text):
    """Same length, comments and preprocessor's includes as spaces: what is left is code."""
    def spaces(match):
        return re.sub(r"[^\n]", " ", match.group(0))
    return re.sub(r'//[^\n]*|/\*.*?\*/|#include[^\n]*|\[\[.*?\]\]', spaces, text, flags=re.S)


def barriers(code):
    for m in re.finditer(r"\b(?:threadgroup|simdgroup)_barrier\s*\([^()]*\)\s*;", code):
        yield m.start(), m.end(), (";",)


def same_either_way(code, at, op):
    """The lesser or the greater of two: where they are equal, it is the same. Ends at the nearest operators and brackets around."""
    left = re.search(r"[\w.\[\]]+(?:\([\w.\[\]]*\))?$", code[:at].rstrip())
    right = re.match(r"\s*([\w.\[\]]+)\s*\?\s*([^?:;,]+?)\s*:\s*([\w.\[\]]+(?:\([\w.\[\]]*\))?)", code[at + len(op):])
    return bool(left and right) and {left.group(0).lstrip("("), right.group(1)} == {right.group(2), right.group(3)}


def bounds(code):
    """Comparisons stand between spaces, template brackets do not."""
    for m in re.finditer(r"(?<= )(<=|>=|<|>)(?= )", code):
        before = code[:m.start()].rstrip()
        if before.endswith("template") or before.endswith("operator"):
            continue
        op = m.group(1)
        if same_either_way(code, m.start(), op) or re.search(r"static_assert\([^;]*$", before):
            continue
        yield m.start(), m.end(), (op[:-1] if op.endswith("=") else op + "=",)


def same_number(a, b, names):
    """Two expressions of names that are equal whatever the names are: a swapped sum or product. False where that cannot be told."""
    fill = random.Random(1)
    for _ in range(8):
        values = {n: fill.randrange(1, 1 << 20) for n in names}
        try:
            x, y = (eval(re.sub(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", lambda m: str(values[m.group(0)]), e), {"__builtins__": {}}) for e in (a, b))
        except Exception:
            return False
        if x != y:
            return False
    return True


def swapped(inside):
    """The first and the last name change places; None where that is the same number."""
    names = re.findall(r"(?<![\w.])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\b(?!\s*[(\[]|<|::)", inside)  # no functions, arrays, templates
    distinct = list(dict.fromkeys(n for n in names if n not in TYPES))
    operators = set(re.findall(r"[-+*/%&|^?]|<<|>>", inside))
    if len(distinct) < 2 or len(operators) == 1 and operators & {"+", "*", "&", "|", "^"}:
        return None
    a, b = distinct[0], distinct[-1]
    other = re.sub(rf"(?<![\w.])(?:{re.escape(a)}|{re.escape(b)})(?![\w.])", lambda m: b if m.group(0) == a else a, inside)
    return None if same_number(inside, other, distinct) else other


def indices(code):
    """Subscripts in expressions: not declarations of arrays."""
    starts = []
    for i, c in enumerate(code):
        if c == "[":
            starts.append(i)
        elif c == "]" and starts:
            begin = starts.pop()
            inside = code[begin + 1:i]
            if inside.strip() and not is_declaration(code, begin, i):
                yield begin + 1, i, tuple(t for t in (swapped(inside), f"({inside}) + 1") if t)


def is_declaration(code, begin, end):
    statement = code[max(code.rfind(ch, 0, begin) for ch in ";{}(\n") + 1:begin]
    after = code[end + 1:end + 40].lstrip()
    if re.search(r"\(\s*[&*]\s*\w+\s*\)(?:\[[^\[\]]*\])*\s*$", code[:begin]):  # a reference to an array
        return True
    typed = re.match(r"\s*(?:(?:threadgroup|thread|constexpr|constant|const|device|static)\s+)*[A-Za-z_]\w*(?:<[^<>]*>)?[\s*&]+(?:[A-Za-z_]\w*(?:\[[^\]]*\])*\s*,\s*)*[A-Za-z_]\w*(?:\[[^\]]*\])*\s*$",
                     statement)
    return bool(typed) and not re.match(r"\s*return\b", statement) and after[:1] in (";", "=", "{", "[", ",")


FINDERS = {"barrier": barriers, "bound": bounds, "index": indices}


def find_mutants(path, kinds):
    text = path.read_text()
    code, lines = blank_comments(text), text.splitlines()
    for kind in kinds:
        seen = {}
        for begin, end, texts in sorted(FINDERS[kind](code)):
            line = text.count("\n", 0, begin) + 1
            source = lines[line - 1].strip()
            seen[source] = seen.get(source, 0) + 1
            yield Mutant(path.name, kind, begin, end, texts, line, source, seen[source])


# ---- all at once -----------------------------------------------------------------------------------------------------

# In front of step.h's own functions. A comparison `a < b` becomes `a < sl_lt<7>() < b`, which is a < b unless mutant 7
# is chosen: then it is a <= b. The number comes from the environment when a kernel first asks, so that code is compiled
# once for all mutants. sl_is is not instrumented: it is no access of the kernel's.
CHOICE = """
extern "C" char *getenv(const char *);
extern "C" int atoi(const char *);
static inline int sl_number(const char *name) { char *t = getenv(name); return t ? atoi(t) : 0; }
struct sl_choice { static inline int mutant = -1, trap = 0; };
__attribute__((const, noinline, disable_sanitizer_instrumentation)) static bool sl_is(int id) {
    if (sl_choice::mutant < 0) { sl_choice::trap = sl_number("SL_MUTANT_TRAP"); sl_choice::mutant = sl_number("SL_MUTANT"); }
    if (sl_choice::mutant == id && sl_choice::trap) __builtin_trap();
    return sl_choice::mutant == id;
}
#define SL_SHIFTED(name, op, other) \\
template <int ID> struct name {}; \\
template <int ID, typename T> struct name##_left { T v; }; \\
template <int ID, typename T> inline name##_left<ID, T> operator op(T v, name<ID>) { return {v}; } \\
template <int ID, typename T, typename U> inline auto operator op(name##_left<ID, T> l, U r) { if (sl_is(ID)) return l.v other r; return l.v op r; }
SL_SHIFTED(sl_lt, <, <=)
SL_SHIFTED(sl_le, <=, <)
SL_SHIFTED(sl_gt, >, >=)
SL_SHIFTED(sl_ge, >=, >)
#undef SL_SHIFTED
"""
SHIFTED = {"<": "sl_lt", "<=": "sl_le", ">": "sl_gt", ">=": "sl_ge"}
CHOICE_AFTER = "using namespace metal;\n"  # of step.h, which every kernel file includes first


def call_around(text, m):
    """Of a bound in a template's arguments, `f<(A > 1 ? 4 : 1)>(x)`: begin and end of the call; None elsewhere."""
    head = re.search(r"(?:\w+::)*(?:template )?\w+<\([^()<>]*$", text[:m.begin])
    tail = re.match(r"[^()<>]*\)>\(", text[m.end:])
    if m.kind != "bound" or not head or not tail:
        return None
    end, depth = m.end + tail.end(), 1
    while depth:
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    return head.start(), end


def span(text, m):
    return call_around(text, m) or (m.begin, m.end)


def chosen(text, m, number, inner, which):
    """The place of a mutant, whose behaviour is chosen when it runs. inner: the place with the mutants within it."""
    begin, end = span(text, m)
    original, changed = text[m.begin:m.end], text[begin:m.begin] + m.texts[which] + text[m.end:end]
    if m.kind == "barrier":
        return f"{{ if (!sl_is({number})) {original} }}"
    if (begin, end) != (m.begin, m.end):
        return f"(sl_is({number}) ? {changed} : {inner})"
    if m.kind == "bound":
        return f"{original} {SHIFTED[original]}<{number}>() {original}"
    return f"(sl_is({number}) ? (decltype(({original}) + 0))({changed}) : ({inner}))"


def with_all(text, mutants):
    """The file's text with all mutants in it, by choice. mutants: (number, mutant, which of its texts)."""
    ordered = sorted(((*span(text, m), number, m, which) for number, m, which in mutants), key=lambda x: (x[0], -x[1]))

    def render(begin, end, inside):
        out, at = [], begin
        while inside:
            first, last, number, m, which = inside[0]
            inner = render(first, last, [x for x in inside[1:] if x[1] <= last])
            out += [text[at:first], chosen(text, m, number, inner, which)]
            at = last
            inside = [x for x in inside[1:] if x[0] >= last]
        return "".join(out) + text[at:end]

    return render(0, len(text), ordered)


def with_choice(text):
    """step.h's text with what the mutants are chosen by."""
    at = text.index(CHOICE_AFTER) + len(CHOICE_AFTER)
    return text[:at] + '#line 1 "mutants"' + CHOICE + f'#line {text.count(chr(10), 0, at) + 1} "step.h"\n' + text[at:]


def with_one(text, m, which):
    return text[:m.begin] + m.texts[which] + text[m.end:]
