"""Kinds of documents, and how often an epoch has each document of a kind."""

from . import prompts

KINDS = [*prompts.SHARES, "format", "wikitext"]
WEIGHTS = [{"wikitext": 4.0}.get(k, 1.0) for k in KINDS]


def indices(*names):
    return [KINDS.index(n) for n in names]


CHATS, RAW = indices("chat", "begun", "turns", "question", "everyday"), indices("article", "entry", "free")
GROUPS = {"chats": CHATS, "stories": indices("story"), "chats and stories": CHATS + indices("story"), "raw text": RAW, "written by the teacher": CHATS + indices("story") + RAW}
ANSWERS = indices("chat", "begun", "question", "everyday", "story")  # one answer each: the student writes its own to the same prompts
