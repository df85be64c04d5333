"""Chat as a person sees it: on a terminal of its own."""

import json
import os
import pty
import re
import select
import signal
import termios
import time

import pytest


class Terminal:
    """The program on a pseudo-terminal."""

    def __init__(self, arguments, environment):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            # Tests that run in the background inherit signals that are ignored; a person's terminal ignores none.
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.execve(arguments[0], arguments, environment)
        self.seen = ""
        self.status = None

    def read(self, seconds):
        """What comes within `seconds`, or None at the end."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return ""
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return None
        text = data.decode("utf-8", "replace")
        self.seen += text
        return text if data else None

    def wait_for(self, pattern, seconds=30):
        """Reads until the pattern was seen; returns what came up to its end and forgets it."""
        end = time.monotonic() + seconds
        while True:
            found = re.search(pattern, self.seen)
            if found:
                text, self.seen = self.seen[: found.end()], self.seen[found.end() :]
                return text
            if time.monotonic() > end or self.read(0.2) is None and not re.search(pattern, self.seen):
                raise AssertionError(f"no {pattern!r} in {self.seen!r}")

    def prompt(self):
        """Waits until a line can be typed: the prompt is there and the line editor has the keyboard (a control key typed before that would
        mean something else)."""
        text = self.wait_for("> ")
        end = time.monotonic() + 20
        while termios.tcgetattr(self.fd)[3] & termios.ICANON:
            assert time.monotonic() < end, "the line editor does not take the terminal"
            time.sleep(0.01)
        return text

    def type(self, text):
        os.write(self.fd, text.encode())

    def ended(self, seconds=20):
        """Exit status, once the program ended by itself."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
                return self.status
        raise AssertionError(f"still running; last: {self.seen[-500:]!r}")

    def close(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def chat(run, sluice, build, tmp_path):
    """chat(options...) -> Terminal, the prompt is there."""
    model = build / "models" / "synth-chat.gguf"
    model.parent.mkdir(exist_ok=True)
    run("synth", "small-qwen3-moe", model, "--force")
    environment = {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", "SLUICE_HISTORY": str(tmp_path / "history")}
    terminals = []

    def start(*options):
        t = Terminal([str(sluice), "chat", str(model), *map(str, options)], environment)
        terminals.append(t)
        t.wait_for("/help for commands")
        t.prompt()
        return t

    yield start
    for t in terminals:
        t.close()


def test_talks_and_ends(chat):
    t = chat("-n", 8)
    t.type("hello\n")
    t.wait_for("hello\r\n")
    answer = t.prompt()
    assert len(answer.strip()) > 2
    t.type("/exit\n")
    assert t.ended() == 0


def test_ctrl_d_ends(chat):
    t = chat()
    t.type("\x04")
    assert t.ended() == 0


def test_ctrl_c_stops_the_answer_not_the_program(chat):
    t = chat("--ctx", 2048, "--ignore-eos")  # an answer that does not end by itself before the key is down
    t.type("tell me everything\n")
    t.wait_for("everything\r\n")
    t.wait_for(".{20}")
    t.type("\x03")
    t.wait_for("stopped")
    t.prompt()
    t.type("/stats\n")
    t.wait_for("decode +[0-9]+ tokens")
    t.prompt()
    t.type("/exit\n")
    assert t.ended() == 0


def test_ctrl_c_while_typing_drops_the_line(chat):
    t = chat("-n", 4)
    t.type("/ex")
    t.wait_for("/ex")
    t.type("\x03")
    t.prompt()
    t.type("/stats\n")
    t.wait_for("sequence +0 tokens")
    t.type("/exit\n")
    assert t.ended() == 0


def test_commands(chat, tmp_path):
    t = chat("-n", 6, "--system", "be kind")
    t.type("/help\n")
    for word in ["/clear", "/system", "/save", "/stats", "/exit"]:
        t.wait_for(word)
    t.prompt()
    t.type("one\n")
    t.wait_for("one\r\n")
    t.prompt()
    t.type("two\n")
    t.wait_for("two\r\n")
    t.prompt()
    t.type(f"/save {tmp_path}/a.json\n")
    t.wait_for("5 messages in ")
    saved = json.loads((tmp_path / "a.json").read_text())
    assert [m["role"] for m in saved["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    assert [m["content"] for m in saved["messages"] if m["role"] == "user"] == ["one", "two"]
    t.type("/clear\n")
    t.wait_for("the conversation is empty but for its system message")
    t.type("/system none\n")
    t.wait_for("taken away")
    t.type(f"/save {tmp_path}/b.json\n")
    t.wait_for("0 messages in ")
    t.type("/save /nowhere/at/all\n")
    t.wait_for("/nowhere/at/all: No such file")
    t.type("/frobnicate\n")
    t.wait_for("unknown command /frobnicate")
    t.type("/exit\n")
    assert t.ended() == 0


def test_the_sequence_is_continued_not_begun_again(chat):
    t = chat("-n", 6)
    counts = []
    for line in ("first", "second", "third"):
        t.type(line + "\n")
        t.wait_for(line + "\r\n")
        t.prompt()
        t.type("/stats\n")
        counts.append(int(re.search(r"prefill +(\d+) tokens", t.wait_for(r"prefill +\d+ tokens")).group(1)))
        length = int(re.search(r"sequence +(\d+)", t.wait_for(r"sequence +\d+ tokens")).group(1))
        t.prompt()
    # Were each turn evaluated whole, the prefill would have grown by more than the sequence holds in all.
    assert counts[2] <= length


def test_history_is_kept_for_the_next_time(chat, tmp_path):
    t = chat("-n", 2)
    t.type("remember me\n")
    t.wait_for("me\r\n")
    t.prompt()
    t.type("\x04")
    assert t.ended() == 0
    assert (tmp_path / "history").stat().st_mode & 0o777 == 0o600
    t = chat("-n", 2)
    t.type("\x1b[A")
    t.wait_for("remember me")
    t.type("\x15\x04")
    assert t.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_at_the_prompt_leaves_the_terminal_as_it_was(chat, number):
    t = chat()
    assert not termios.tcgetattr(t.fd)[3] & termios.ICANON
    os.kill(t.pid, number)
    assert t.ended() == -number
    modes = termios.tcgetattr(t.fd)
    assert modes[3] & termios.ICANON and modes[3] & termios.ECHO and modes[0] & termios.ICRNL


def test_a_failed_turn_is_not_forgotten_silently(run, build, chat, tmp_path):
    t = chat("--ctx", 128, "-n", 4)
    t.type("x" * 300 + "\n")
    t.wait_for("the context holds 128")
    t.wait_for("what you said is not part of the conversation")
    t.prompt()
    t.type("/exit\n")
    assert t.ended() == 0
    done = run("chat", build / "models" / "synth-chat.gguf", "--ctx", 128, stdin="x" * 300 + "\n", check=False)
    assert done.returncode == 1 and done.stdout == "" and "not part of the conversation" in done.stderr


def test_save_does_not_overwrite_unless_told(run, build, chat, tmp_path):
    model, there = build / "models" / "synth-chat.gguf", tmp_path / "c.json"
    there.write_text("mine")
    done = run("chat", model, "-n", 2, stdin=f"hello\n/save {there}\n")
    assert "is there already" in done.stderr and there.read_text() == "mine"
    run("chat", model, "-n", 2, stdin=f"hello\n/save ! {there}\n")
    assert len(json.loads(there.read_text())["messages"]) == 2


def test_lines_from_a_pipe_are_turns(run, build, chat, tmp_path):
    model = build / "models" / "synth-chat.gguf"
    done = run("chat", model, "-n", 4, "-q", stdin=f"hello \\\nthere\n//slash\n/save {tmp_path}/c.json\n")
    saved = json.loads((tmp_path / "c.json").read_text())
    assert [m["content"] for m in saved["messages"] if m["role"] == "user"] == ["hello \nthere", "/slash"]
    assert done.stdout.count("\n") >= 2 and "> " not in done.stdout


def test_control_characters_do_not_reach_the_terminal(sluice, chat, build, run):
    """A model that says ESC is shown saying it: forced by a bias on the token of byte 0x1b."""
    model = build / "models" / "synth-chat.gguf"
    esc = json.loads(run("tokenize", model, "\x1b", "--json").stdout)["ids"]
    assert len(esc) == 1
    raw = run("run", model, "x", "--raw", "-n", 3, "--logit-bias", f"{esc[0]}=1000").stdout
    assert raw == "\x1b\x1b\x1b\n"  # a pipe gets the bytes
    t = Terminal([str(sluice), "run", str(model), "x", "--raw", "-n", "3", "--logit-bias", f"{esc[0]}=1000"], dict(os.environ, TERM="xterm"))
    try:
        assert t.ended() == 0
        shown = re.sub(r"\r\x1b\[K", "", t.seen)  # the status line's own erasing
        assert shown.count("\u241b") == 3 and "\x1b" not in shown
    finally:
        t.close()
