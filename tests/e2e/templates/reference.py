"""Python's jinja2 in the environment that Hugging Face transformers builds for chat templates, and Sluice's renderer beside it."""

import datetime
import json
import os
import pathlib
import re
import signal
import subprocess

import jinja2
import jinja2.ext
import jinja2.sandbox
import jinja2.utils

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHARED = ROOT.parent / "shared" / "data" / "templates"
NOW = 1767323045  # 2026-01-02 03:04:05 UTC


class Generation(jinja2.ext.Extension):
    """{% generation %}...{% endgeneration %}: the text of a function of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


class Dict:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            check_name(name)
        jinja2.utils.Namespace.__init__(args[0], attributes)

    def __setitem__(self, name, value):
        check_name(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)


def check_name(name):
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(name)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment(now=NOW):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.compiled = {}
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: datetime.datetime.fromtimestamp(now).strftime(format)
    env.globals["dict"] = Dict()
    env.globals["namespace"] = Namespace
    return env


class Slow(BaseException):
    pass


def raise_slow(*_):
    raise Slow


def reference(env, template, values, seconds=5):
    """(True, text) or (False, error); (None, "slow") for what takes longer: a template may grow without bound."""
    before = signal.signal(signal.SIGALRM, raise_slow)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        if template not in env.compiled:
            env.compiled[template] = env.from_string(template)
        return True, env.compiled[template].render(**json.loads(json.dumps(values)))
    except Slow:
        return None, "slow"
    except Exception as e:  # whatever a template may raise
        return False, f"{type(e).__name__}: {e}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def build_dir():
    return pathlib.Path(os.environ.get("SLUICE_BUILD", ROOT / "build"))


def sluice(jobs, folder, now=NOW):
    """[(template, values)] -> [(True, text) or (False, error)] by one run of test_template_batch."""
    source, target = folder / "jobs.jsonl", folder / "answers.jsonl"
    with open(source, "w", encoding="utf-8") as f:
        for template, values in jobs:
            f.write(json.dumps({"template": template, "globals": values, "now": now}) + "\n")
    run = subprocess.run(
        [str(build_dir() / "test_template_batch")],
        env={**os.environ, "SL_TPL_INPUT": str(source), "SL_TPL_OUTPUT": str(target)},
        capture_output=True, text=True, timeout=600,
    )
    assert run.returncode == 0, f"test_template_batch: exit {run.returncode}: {run.stdout}{run.stderr}"
    answers = [json.loads(line) for line in target.read_text(encoding="utf-8").split("\n") if line]
    assert len(answers) == len(jobs)
    return [(a["ok"], a["out"] if a["ok"] else a["error"]) for a in answers]


def around_difference(a, b):
    """The two texts from shortly before their first difference."""
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return a[max(0, at - 60) : at + 200], b[max(0, at - 60) : at + 200]


def compare(jobs, folder, allowed=()):
    """(how many templates the reference renders, what the two do differently as texts to read)"""
    env, out, rendered = environment(), [], 0
    for (template, values), mine in zip(jobs, sluice(jobs, folder)):
        theirs = reference(env, template, values)
        rendered += theirs[0] is True
        if mine == theirs or theirs[0] is None or (not mine[0] and not theirs[0]):
            continue
        if not mine[0] and any(text in mine[1] for text in allowed):
            continue
        if theirs[0] and re.search("0x[0-9a-f]{8}", theirs[1], re.IGNORECASE):  # an address
            continue
        a, b = around_difference(theirs[1], mine[1])
        out.append(f"template: {template[:3000]!r}\nvalues: {json.dumps(values)[:500]}\nreference: {theirs[0]}, ...{a!r}\nsluice:    {mine[0]}, ...{b!r}\n")
    return rendered, out
