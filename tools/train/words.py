"""Topics for prompts, from WordNet 3.0 (Debian's wordnet-base): everyday nouns, verbs and adjectives, and named people, places and things."""

from pathlib import Path

DEFAULT = Path("/usr/share/wordnet")
PERSON, PLACE = 18, 15  # WordNet's lexicographer files
CRUDE = ("sex", "nud", "porn", "prostitut", "rape", "whore", "bastard", "genital", "slut", "slur", "ethnic", "racis", "disparag", "offensive")


def lines(path):
    return [line for line in path.read_text(encoding="latin-1").splitlines() if not line.startswith(" ")]


def common(directory, part):
    """Words of one part of speech that occur in WordNet's tagged texts, each once per meaning found there: familiar words come more often."""
    out = []
    for line in lines(directory / f"index.{part}"):
        fields = line.split()
        word, pointers = fields[0], int(fields[3])
        tagged = int(fields[5 + pointers])
        text = word.replace("_", " ")
        if tagged and text.replace(" ", "").isalpha() and len(text) > 2 and not any(c in text for c in CRUDE):
            out += [text] * tagged
    return out


def named(directory):
    """-> [(name, kind, gloss)]: instances such as a person, a city, a war."""
    out = []
    for line in lines(directory / "data.noun"):
        data, gloss = line.split(" | ", 1)
        fields = data.split()
        name = fields[4].replace("_", " ")
        gloss = gloss.split(";")[0].strip()
        if " @i " not in data or not name[0].isupper() or any(c in gloss.lower() for c in CRUDE):
            continue
        kind = {PERSON: "person", PLACE: "place"}.get(int(fields[1]), "thing")
        out.append((name, kind, gloss))
    return out


def load(directory=DEFAULT):
    directory = Path(directory)
    return {part: common(directory, part) for part in ("noun", "verb", "adj")} | {"named": named(directory)}
