"""Of a message that takes several words only the first one is read."""

from impl.join.words import Words

from ..planting import edit

CLAUSES = ("DDPJ-009",)


def plant() -> None:
    edit(Words, "unpack", "(words[word] >> shift)", "(words[0] >> shift)")
