"""Random small templates: expressions composed of operators, filters, tests and methods, and statements that nest, shadow and trim."""

import random

VALUES = {
    "s": "Hello, World-wide web", "e": "", "u": "Ünï çødé ß 你好 ǆ", "p": "  padded\tline\nnext\r\nlast  ", "h": "<a href='x'>&amp; \"q\"</a>",
    "i": 7, "z": 0, "m": -13, "big": 77, "f": 2.5, "g": -0.125, "w": 1e21, "yes": True, "no": False, "nil": None,
    "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "lm": [1, "x", None, 2.5, [1, 2], {"k": "v"}], "le": [],
    "d": {"b": 2, "a": 1, "C": 3}, "dn": {"name": "Ann", "items": [1, 2], "keys": {"x": 1}, "n": {"deep": {"er": 5}}}, "de": {},
    "rows": [{"name": "x", "n": 2, "tags": ["p"]}, {"name": "Y", "n": 1}, {"name": "x", "n": None, "tags": []}],
    "msgs": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo", "tool_calls": [{"id": "1"}]}, {"role": "user", "content": "bye"}],
}
NAMES = list(VALUES) + ["missing"]
TEXTS = ["'a'", "'-'", "', '", "''", "' '", "'l'", "'Ab'", "'x%sy'", "'%d|%5.1f'", "'{}:{}'", "'\\n'", "'é'", "'role'", "'name'", "'n'", "'user'", "'<b>'", "'12'", "'0x1F'", "' 3.5 '"]
NUMBERS = ["0", "1", "2", "3", "-1", "-2", "5", "10", "1.5", "0.1", "2.0", "1e3", "100"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
FILTERS = [
    "abs", "capitalize", "count", "length", "first", "last", "list", "lower", "upper", "title", "trim", "string", "int", "float", "round", "safe", "escape",
    "e", "forceescape", "reverse|list", "sort", "unique|list", "sum", "min", "max", "join", "items|list", "dictsort", "tojson", "urlencode", "wordcount",
    "pprint", "xmlattr", "striptags", "filesizeformat", "default", "indent", "center(9)", "center({n})", "truncate({k})", "truncate({k}, true, {t})",
    "truncate({n}, leeway={k})", "wordwrap({k})", "wordwrap({k}, false)", "replace({t}, {t})", "replace({t}, {t}, {n})", "join({t})", "join({t}, 'name')", "join({t}, attribute='n')",
    "default({x})", "d({x}, true)", "default({x}, boolean={b})", "int({x})", "int(0, {n})", "float({x})", "round({n})", "round({n}, 'floor')", "round(method='ceil')",
    "indent({n})", "indent({n}, true)", "indent({t}, blank=true)", "indent(first={b})", "batch({n})|list", "batch({n}, {x})|list", "slice({n})|list", "slice({n}, {x})|list",
    "sort(reverse=true)", "sort(false, true)", "sort(attribute='name')", "sort(attribute='n')", "sort(attribute='name,n')", "map('upper')|list", "map('length')|list",
    "map(attribute='name')|list", "map(attribute='n', default={x})|list", "map('default', {x})|list", "map('replace', {t}, {t})|list", "map('int')|sum", "map(attribute='tags.0')|list", "map('first')|list",
    "select|list", "select('odd')|list", "select('string')|list", "select('in', {x})|list", "select('gt', {n})|list", "reject('none')|list", "reject('eq', {x})|list", "reject|list",
    "selectattr('n')|list", "selectattr('tool_calls', 'defined')|list", "selectattr('role', 'equalto', 'user')|map(attribute='content')|join({t})", "rejectattr('n', 'none')|list",
    "rejectattr('role', 'in', ['user'])|list|length", "groupby('name')|list", "groupby('n', default=0)|list", "groupby('name', case_sensitive=true)", "unique(attribute='name')|list", "unique(true)|list",
    "min(attribute='n')", "max(true)", "dictsort(true)", "dictsort(by='value')", "dictsort(reverse=true)", "sum(attribute='n')", "sum(start={n})", "attr('name')", "attr({t})", "tojson(indent={k})",
    "tojson(ensure_ascii=true)", "tojson(separators=(',', ':'))", "tojson(sort_keys=true)", "trim({t})", "format({x})", "format({x}, {x})", "format(name={x})", "filesizeformat(true)",
]
TESTS = [
    "defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string", "mapping", "sequence", "iterable", "callable", "lower", "upper", "odd", "even", "escaped",
    "divisibleby({n})", "divisibleby {n}", "eq({x})", "ne {t}", "lt({n})", "ge({x})", "in({x})", "sameas none", "equalto {t}", "filter", "test", "greaterthan(1)",
]
METHODS = [
    "upper()", "lower()", "title()", "capitalize()", "swapcase()", "casefold()", "strip()", "lstrip()", "rstrip()", "strip({t})", "lstrip({t})", "rstrip({t})", "split()", "split({t})", "split({t}, {n})",
    "split(none, {n})", "rsplit({t}, {n})", "rsplit(none, {n})", "splitlines()", "splitlines(true)", "partition({t})", "rpartition({t})", "replace({t}, {t})", "replace({t}, {t}, {n})", "find({t})",
    "rfind({t})", "find({t}, {n})", "find({t}, {n}, {n})", "index({t})", "count({t})", "count({t}, {n})", "startswith({t})", "endswith({t})", "startswith(({t}, {t}))", "startswith({t}, {n})",
    "join({x})", "join(ls)", "zfill({n})", "ljust({n}, '*')", "rjust({n})", "center({n}, '.')", "removeprefix({t})", "removesuffix({t})", "expandtabs({n})", "isdigit()", "isalpha()", "isalnum()", "isspace()",
    "isupper()", "islower()", "istitle()", "isnumeric()", "isdecimal()", "isidentifier()", "isprintable()", "isascii()", "format({x}, {x})", "format(a={x})", "items()", "keys()", "values()", "get({t})", "get({t}, {x})",
    "copy()", "index({x})", "count({x})", "items", "name", "role", "real", "n.deep.er", "append({x})", "pop()", "update(d)", "bit_length()", "is_integer()", "nothing", "nothing()",
]


class Generator:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.loops = self.macros = 0

    def fill(self, text, depth):
        while "{" in text:
            for mark, make in (("{n}", lambda: self.r.choice(NUMBERS)), ("{k}", lambda: self.r.choice(NUMBERS[:8])), ("{t}", lambda: self.r.choice(TEXTS)),
                               ("{b}", lambda: self.r.choice(["true", "false", "yes"])), ("{x}", lambda: self.expression(depth - 1))):
                if mark in text:
                    filled = make()
                    text = text.replace(mark, filled.replace("{", "\1"), 1)
        return text

    def atom(self):
        kind = self.r.randrange(10)
        if kind < 5:
            return self.r.choice(NAMES)
        if kind < 7:
            return self.r.choice(TEXTS).replace("{", "\1")
        if kind < 9:
            return self.r.choice(NUMBERS)
        return self.r.choice(["[1, 2]", "[]", "('a', 1)", "()", "\1'k': 1}", "\1}", "none", "true", "false", "range(4)", "namespace(a=1)", "dict(a=1)", "(s|safe)"])

    def index(self, depth):
        bounds = [self.r.choice(["", *NUMBERS[:8]]) for _ in range(3)]
        kind = self.r.randrange(4)
        if kind == 0:
            return f"[{bounds[0]}:{bounds[1]}]"
        if kind == 1:
            return f"[{bounds[0]}:{bounds[1]}:{bounds[2]}]"
        return f"[{self.expression(depth - 1)}]"

    def expression(self, depth):
        if depth <= 0:
            return self.atom()
        kind = self.r.randrange(14)
        inner = self.expression(depth - 1)
        if kind < 3:
            return f"({inner} {self.r.choice(BINARY)} {self.expression(depth - 1)})"
        if kind < 7:
            return f"{self.group(inner)}|{self.fill(self.r.choice(FILTERS), depth)}"
        if kind < 10:
            return f"{self.group(inner)}.{self.fill(self.r.choice(METHODS), depth)}"
        if kind == 10:
            return f"({inner} is {self.r.choice(['', 'not '])}{self.fill(self.r.choice(TESTS), depth)})"
        if kind == 11:
            return f"{self.r.choice(NAMES)}{self.index(depth)}"
        if kind == 12:
            return f"({inner} if {self.expression(depth - 1)} else {self.expression(depth - 1)})"
        return self.r.choice([f"(not {inner})", f"(-{self.group(inner)})", f"[{inner}, {self.atom()}]", f"\1'k': {inner}}}", f"({inner},)", f"({inner} ~ {self.atom()})",
                              f"({self.atom()} < {inner} <= {self.atom()})", f"({inner} ** {self.r.choice(['2', '3', '0', '-1', '0.5'])})"])

    def group(self, text):
        return text if text.replace("_", "").isalnum() and not text[0].isdigit() else f"({text})"

    def print(self, depth=3):
        text = self.expression(depth).replace("\1", "{")
        return "{{ " + text + " }}"

    # expressions that mostly evaluate: each pattern makes a type out of types (S text, N number, L list, D dict, B truth, X anything)

    PATTERNS = {
        "S": ["s", "u", "p", "h", "e", "'a b'", "'x-y'", "'ñ'", "{S} + {S}", "{S} ~ {X}", "{S} * 2", "{S}[1:]", "{S}[:-1]", "{S}[::-1]", "{S}[2:9:2]", "{S}|upper", "{S}|lower", "{S}|title",
              "{S}|capitalize", "{S}|trim", "{S}|replace('l', {S})", "{S}|indent(2)", "{S}|truncate(9)", "{S}|wordwrap(7)", "{S}|center(20)", "{S}|e", "{S}|safe", "{S}|striptags", "{S}|reverse",
              "{X}|string", "{X}|tojson", "{D}|tojson(indent=2)", "{L}|join('-')", "{L}|join", "{X}|pprint", "{S}.strip()", "{S}.split('l')[0]", "{S}.replace('l', 'LL', 1)", "{S}.title()", "{S}.swapcase()",
              "{S}.lstrip('He')", "{S}.ljust(9, '.')", "{S}.zfill(8)", "{S}.removeprefix('H')", "', '.join({L}|map('string'))", "'%s:%r' % ({X}, {X})", "'%5d|%-6.2f|%x' % (i, {N}, 255)", "'{:>9}|{}'.format({S}, {X})",
              "'{:,.2f} {:5d} {!r}'.format(f, i, {X})", "{S} if {B} else {S}", "{N}|string", "d|urlencode", "{S}|urlencode", "{X}|default('q', true)", "{S}|format", "({S}|safe) + {S}", "{S}.expandtabs(3)", "{N}|filesizeformat",
              "{S}.partition('-')|join('|')", "dn.name", "rows[0]['name']", "msgs[-1].role", "strftime_now('%d %B %Y')", "{S}|first", "{S}|last", "{S}|escape|upper"],
        "N": ["i", "z", "m", "f", "g", "3", "0.5", "{N} + {N}", "{N} - {N}", "{N} * {N}", "{N} // 3", "{N} % 4", "{N} / 2", "-{N}", "{N}|abs", "{N}|round(1)", "{N}|int", "{N}|float", "{S}|length", "{L}|length", "{D}|length",
              "{S}.find('l')", "{S}.count('e')", "[i, {N}, z]|sum", "[i, {N}]|max", "[f, {N}]|min", "{S}|wordcount", "{S}|int(4)", "({N}) ** 2", "dn.n.deep.er", "l[0]", "{N}|round(method='floor')", "{N} if {B} else {N}", "{S}|float(1.5)"],
        "L": ["l", "ls", "lm", "rows", "msgs", "le", "[{X}, {X}]", "({X}, {N})", "{L} + [1]", "{S}.split()", "{S}.split('l', 1)", "{S}.rsplit(none, 1)", "{S}.splitlines()", "{S}|list", "{L}|list", "{L}[1:]", "{L}[::-1]", "{L}|reverse|list",
              "ls|sort", "l|sort(reverse=true)", "rows|map(attribute='name')|list", "{L}|map('string')|list", "{L}|map('tojson')|list", "{L}|select|list", "{L}|reject('string')|list", "{L}|select('mapping')|list", "{L}|batch(2, none)|list",
              "{L}|slice(2)|list", "{D}|items|list", "{D}|dictsort", "{D}.keys()|list", "{D}.values()|list", "{D}|list", "rows|groupby('name')", "rows|selectattr('n')|list", "rows|rejectattr('tags', 'defined')|list", "rows|sort(attribute='name')",
              "msgs|selectattr('role', 'equalto', 'user')|list", "{L}|map('default', 0)|list", "range({N}|int|abs % 7)|list", "ls|unique|list", "{S}.partition('o')", "{L} if {B} else {L}", "{L} or {L}", "l|map('multiply', 2)|list", "{L}|unique|list"],
        "D": ["d", "dn", "de", "rows[0]", "msgs[1]", "dict(a={X}, b=2)", "\1'k': {X}, 'z': {N}}", "dict(d, q={X})", "dn.n", "{D}.copy()", "dict({D}|items)", "{D} if {B} else {D}", "dict.fromkeys(ls, {X})"],
        "B": ["yes", "no", "{X} == {X}", "{N} < {N}", "{N} >= {N}", "{S} < {S}", "{S} in {S}", "{X} in {L}", "{S} in {D}", "{N} not in {L}", "not {X}", "{B} and {B}", "{B} or {B}", "{X} is defined", "{X} is string", "{X} is mapping", "{X} is sequence",
              "{X} is iterable", "{X} is none", "{X} is number", "{X} is not integer", "{S} is lower", "{S}.startswith('H')", "{S}.endswith(('b', 't'))", "{S}.isalpha()", "{S}.isupper()", "i is odd", "i is divisibleby 7", "0 < {N} <= 7", "{L} == {L}",
              "{D} == {D}", "missing is undefined", "{D}.pop is defined", "{X} is boolean", "{X} is sameas none", "dn.keys is callable", "{S}.istitle()", "{X} is in {L}"],
        "X": ["{S}", "{S}", "{N}", "{L}", "{D}", "{B}", "nil", "missing", "{D}.a", "{D}['name']", "{L}[0]", "{L}|first", "{L}|last", "{D}.get('a', {X})", "{L}[9]", "{X} or {X}", "{X} and {X}", "none", "rows|map(attribute='zzz')|first"],
    }

    def typed(self, type, depth):
        patterns = self.PATTERNS[type]
        flat = [p for p in patterns if "{" not in p]
        pattern = self.r.choice(flat if depth <= 0 and flat else patterns)
        while True:
            at = next((i for i in range(len(pattern) - 2) if pattern[i] == "{" and pattern[i + 1] in self.PATTERNS and pattern[i + 2] == "}"), -1)
            if at < 0:
                return pattern
            inner = self.typed(pattern[at + 1], depth - 1)
            pattern = pattern[:at] + self.group(inner).replace("{", "\2") + pattern[at + 3 :]

    def print_typed(self, depth=3):
        text = self.typed("X" if self.r.random() < 0.4 else self.r.choice("SSNLDB"), depth).replace("\1", "{").replace("\2", "{")
        return "{{ " + text + " }}"

    # statements: a few names, so that they shadow each other

    def tag(self, text):
        return "{%" + self.r.choice(["", "", "-", "-", "+"]) + " " + text + " " + self.r.choice(["", "", "-", "-", "+"]) + "%}"

    def show(self, text):
        return "{{" + self.r.choice(["", "", "-"]) + " " + text + " " + self.r.choice(["", "", "-"]) + "}}"

    def text(self):
        return self.r.choice(["", "\n", "\n\n", " ", "  \n  ", "\t", " x ", "a\n", "\n  b\n", "{# c #}", " {#- c -#}\n", "{# c #}\n", "\r\n", " {% raw %} {{ y }}\n {% endraw %} "])

    def simple(self):
        a, b = (self.r.choice("abcx") for _ in range(2))
        choices = [a, f"{a} ~ {b}", f"{a} is defined", f"ns.v ~ {a}", "1", f"{a} or 'none'", f"mac({a})", f"mac({a}) ~ {b}", f"{a} if {b} else 'E'", f"{a}|default('D')", f"[{a}, {b}]|length"]
        if self.loops or self.r.random() < 0.02:
            choices += [f"loop.index ~ {a}", "loop.last", "loop.length", f"loop.cycle({a}, 'q')", f"loop.changed({a})", "loop.previtem", "loop.nextitem", "loop.revindex0", "loop.depth"]
        if self.macros or self.r.random() < 0.02:
            choices += ["varargs", "kwargs", "caller() if caller", f"caller({a}) if caller", "caller is defined"]
        return self.r.choice(choices)

    def value(self):
        return self.r.choice(["1", "'v'", "[1, 2]", self.simple(), "x", "ns.v", "l", "a, b"])

    def statements(self, depth):
        return "".join(self.text() + self.statement(depth) + self.text() for _ in range(self.r.randrange(1, 4)))

    def statement(self, depth):
        kind = self.r.randrange(13) if depth > 0 else self.r.randrange(3)
        n = self.r.choice("abcx")
        if kind < 2:
            return self.show(self.simple())
        if kind == 2:
            return self.tag(f"set {self.r.choice([n, n, 'ns.v'])} = {self.value()}") if self.r.random() < 0.9 else self.tag(f"set a, {self.r.choice(['b', 'ns.v'])} = [x, {self.simple()}]")
        self.loops += 3 < kind < 7
        self.macros += kind == 7
        body = self.statements(depth - 1)
        self.loops -= 3 < kind < 7
        self.macros -= kind == 7
        if kind == 3:
            other = self.r.choice(["", self.tag("else") + self.statements(depth - 1), self.tag(f"elif ({self.simple()})") + self.statements(depth - 1)])
            return self.tag(f"if ({self.simple()})") + body + other + self.tag("endif")
        if kind < 7:
            source = self.r.choice(["l", "ls", "range(3)", "d", "d.items()", "e", "missing", "le", "l|map('string')", "[a, b]", "lm", "msgs", "ls|sort"])
            target = "a, b" if "items" in source else n
            test = self.r.choice(["", "", f" if {n} != 1", f" if ({self.simple()})"])
            other = self.r.choice(["", self.tag("else") + self.statements(0)])
            jump = self.r.choice(["", "", self.tag(f"if {self.r.choice('abcx')} == {self.r.choice(['1', '2', 'x'])}") + self.tag(self.r.choice(["break", "continue"])) + self.tag("endif")])
            recursive = self.r.choice([""] * 6 + [" recursive"])
            if recursive:
                body += self.show("loop(e) if loop.depth > 2 else loop(['q'])") if self.r.random() < 0.7 else ""
            return self.tag(f"for {target} in {source}{test}{recursive}") + self.r.choice([jump + body, body + jump]) + other + self.tag("endfor")
        if kind == 7:
            return self.tag(self.r.choice(["macro mac(a, b=2)", "macro mac(a=x)", "macro mac(b, a=b)", "macro mac(a, b=a, c=b)", "macro mac(x, caller=none)"])) + body + self.tag("endmacro") + self.show(self.r.choice(["mac(1)"] * 9 + ["mac(1, 2)", "mac(a=5)", "mac()", "mac(1, 2, 3)", "mac(z=1)"]))
        if kind == 8:
            return self.tag(self.r.choice(["call(a=1, b=2) mac(1)"] * 6 + ["call mac(1)", "call(a) mac(1)", "call(b, c=1) mac()", "call mac(x)"])) + body + self.tag("endcall")
        if kind == 9:
            return self.tag(f"with {n} = {self.r.choice(['1', 'x', 'a'])}, c = {self.r.choice(['a', 'n'])}") + body + self.tag("endwith")
        if kind == 10:
            return self.tag(f"set {n}") + body + self.tag("endset") + self.show(n)
        if kind == 11:
            return self.tag(self.r.choice(["filter upper", "filter trim|replace('a', 'A')", "filter indent(1)", f"filter default({n})"])) + body + self.tag("endfilter")
        return self.tag("generation") + body + self.tag("endgeneration")

    def program(self):
        head = self.r.choice(["{% set ns = namespace(v=0) %}"] * 9 + [""]) + self.r.choice(
            ["{% macro mac(a, b=1) %}[{{ a }}{{ b }}]{% endmacro %}", "{% macro mac(a) %}<{{ caller(5) if caller }}{{ varargs }}{{ kwargs }}>{% endmacro %}\n", "{% macro mac(a=x) %}{{ caller() if caller }}{{ a }}{{ varargs }}{{ kwargs|length }}{% endmacro %}", "{% macro mac(a) %}{{ varargs }}{{ kwargs|list }}{% if caller %}{{ caller(a, 2) }}{% endif %}{% endmacro %}"])
        return head + self.statements(3)


def snippets(seed, wild, typed, programs):
    """Three lists of (template, values): expressions of any kind, most of which fail; expressions that mostly succeed; programs."""
    g = Generator(seed)
    return (
        [(g.print(g.r.choice([1, 2, 2, 3])), VALUES) for _ in range(wild)],
        [(g.print_typed(g.r.choice([1, 2, 3, 4])), VALUES) for _ in range(typed)],
        [(g.program(), {**VALUES, "x": "X"}) for _ in range(programs)],
    )
