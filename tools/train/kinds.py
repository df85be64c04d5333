"""Kinds of documents, and how often an epoch has each document of a kind."""

from . import prompts

KINDS = [*prompts.SHARES, "format", "wikitext"]
WRITTEN = range(len(prompts.SHARES))  # by the teacher
WEIGHTS = [{"wikitext": 4.0, "free": 0.5}.get(k, 1.0) for k in KINDS]
RAW, RAW_LENGTH = [KINDS.index(k) for k in ("article", "entry", "free")], 112  # drawn at temperature 1, the teacher soon loses itself: only the beginning is of use
