"""Texts broken at random, for parsers that must answer everything with one kind of error."""

import re

WORDS = ["SELECT", "WITH", "(", ")", ",", ";", "=>", "=", "'", "`", "*", "NULL", "INTERVAL", "1",
         "EMIT", "EVERY", "ROWS", "FROM", "TABLE", "GROUP BY", "AS", "-", "OPTIONS", "DISTINCT",
         "1e999", "0x", "CASE", "END", "[", "]", "{", "}", "@", "?", "\\", "--", "/*", "\x00", "é",
         "UNION ALL", "JOIN", "OVER", "IN", "9" * 30, "'" + "s3cret" * 20 + "'"]  # fmt: skip


def mutated(rng, text):
    """A text with one to four pieces dropped, doubled, swapped or replaced."""
    tokens = re.findall(r"\w+|\s+|[^\w\s]", text)
    for _ in range(rng.randint(1, 4)):
        place, other = rng.randrange(len(tokens)), rng.randrange(len(tokens))
        kind = rng.randrange(5)
        if kind == 0:
            del tokens[place]
        elif kind == 1:
            tokens.insert(place, tokens[other])
        elif kind == 2:
            tokens[place], tokens[other] = tokens[other], tokens[place]
        elif kind == 3:
            tokens[place] = rng.choice(WORDS)
        else:
            tokens = tokens[: max(1, place)]
        if not tokens:
            return ""
    return "".join(tokens)
