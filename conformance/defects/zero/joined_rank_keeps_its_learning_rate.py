"""A joined rank steps with the settings that it had when it ran out of inputs."""

from impl.zero.joining import Joining

from ..planting import edit

CLAUSES = ("ZERO-022",)
WORLDS = (3,)


def plant() -> None:
    edit(Joining, "shadow_step", "zero._take_news(news.settings, news.sent)", "zero._also_send(news.sent)")
