"""A map: which overlapped step is the fastest, over bucket cap and the ratio of compute to communication."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..analyse.board import Board, Measured
from ..analyse.network import cap, fastest, setting, step_of, steps, to_communication, verdict_on
from ..analyse.noise import of_group, verdicts
from ..analyse.ratio import Ratio, median_ns, ratio
from ..measure.rows import OK, Row
from ..plan.axes import OVERLAPPED
from ..wording import more
from . import style
from .by_hosts import look_of
from .undrawable import Undrawable

Place = tuple[str, int, str]  # model, hosts, network
TITLE = "Which hook wins?"
_MOST_PANELS = 4
_NAMES = {"sequential hook": "sequential", "interleaved hook": "interleaved"}


@dataclass(frozen=True)
class Field:
    """One field of the map: the fastest step, the next, and what stands between them."""

    to_communication: float
    cap_mib: float
    best: Row
    next: Row | None
    void: int  # steps that came to nothing
    noise: Ratio | None  # of the group
    said: str = ""  # what the ratio to the next allows to say, told together with those of all fields

    @property
    def found(self) -> Ratio | None:
        return ratio(self.best, self.next) if self.next is not None else None

    @property
    def decided(self) -> bool:
        return self.said == "faster"


def draw(made: Board) -> Any:
    maps: dict[Place, list[Field]] = {}
    for group in steps(made):
        axes = group.axes
        place = (axes["size"], axes["world"], axes["network"])
        maps.setdefault(place, []).extend(_fields(group, made.subjects[0]))
    found = sorted((item for item in maps.items() if len(item[1]) > 1), key=lambda item: -len(item[1]))
    panels = found[:_MOST_PANELS]
    told = iter(_told([one for _, fields in panels for one in fields]))
    panels = [(place, [next(told) for _ in fields]) for place, fields in panels]
    if not panels:
        raise Undrawable("no overlap hooks were measured at several bucket caps or paces (sweep network-map has)")
    rows = [row for _, fields in panels for one in fields for row in (one.best, one.next) if row is not None]
    caption = made.caption(
        "The fastest of the overlapped steps, and its time over the next one's, paired round by round. Pale: nobody "
        "can tell whether the next one is slower, corrected for the number of fields by Benjamini and Hochberg."
        + more(len(found) - len(panels), "panel"), rows,
    )  # fmt: skip
    said = [sentence for place, fields in panels for sentence in _said(_named(place), fields)]
    rows_most = max(len({one.cap_mib for one in fields}) for _, fields in panels)
    caption = "\n".join([caption, *said])
    figure, panes = style.sheet(TITLE, caption, len(panels), height_in=0.9 + 0.5 * rows_most, columns=1)
    for axis, (place, fields) in zip(panes, panels, strict=True):
        _panel(axis, fields)
        axis.set_title(_named(place))
    return figure


def _fields(group: Measured, subject: str) -> list[Field]:
    share = to_communication(group)
    rows = [row for row in group.find() if row["axes"]["hook"] in OVERLAPPED and step_of(row)]
    found = []
    for cap_mib in sorted({row["axes"]["cap_mib"] for row in rows}):
        here = [row for row in rows if row["axes"]["cap_mib"] == cap_mib]
        mine = [row for row in here if row["subject"] == subject]
        best = fastest(mine)
        if best is not None and share is not None:
            others = [row for row in mine if row is not best and row["status"] == OK]
            void = sum(row["status"] != OK for row in here)
            noise = of_group(group.rows)
            found.append(Field(share, cap_mib, best, min(others, key=median_ns, default=None), void, noise))
    return found


def _told(fields: list[Field]) -> list[Field]:
    """The same fields with what may be said of them."""
    said = iter(verdicts([(one.found, one.noise) for one in fields if one.found is not None]))
    return [replace(one, said=next(said)) if one.found is not None else one for one in fields]


def _panel(axis: Any, fields: list[Field]) -> None:
    shares = sorted({round(one.to_communication, 2) for one in fields})
    caps = sorted({one.cap_mib for one in fields})
    for one in fields:
        x, y = shares.index(round(one.to_communication, 2)), caps.index(one.cap_mib)
        look = look_of(step_of(one.best), True)
        axis.add_patch(_square(x, y, look["color"], 0.75 if one.decided else 0.25))
        name = _NAMES.get(step_of(one.best), step_of(one.best))
        words = [name, f"{one.found}" if one.found else "", f"{one.void} void" if one.void else ""]
        axis.text(x, y, "\n".join(word for word in words if word), ha="center", va="center", fontsize=7.5)
    axis.set_xticks(range(len(shares)), [f"{share:g}" for share in shares])
    axis.set_yticks(range(len(caps)), [f"{each:g}" if each else "default" for each in caps])
    axis.set_xlim(-0.5, len(shares) - 0.5)
    axis.set_ylim(-0.5, len(caps) - 0.5)
    axis.grid(visible=False)
    axis.set_xlabel("compute over communication (of DDP's all-reduces)")
    axis.set_ylabel("bucket cap, MiB")


def _square(x: int, y: int, colour: str, alpha: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, alpha=alpha, edgecolor="white", linewidth=2)


def _named(place: Place) -> str:
    return setting({"workload": "paced", "size": place[0], "world": place[1], "network": place[2], "pace": 1.0})


def _said(where: str, fields: list[Field]) -> list[str]:
    """How many fields are decided, and the best cap for each ratio of compute to communication."""
    said = [f"{where}: the fastest step is decided in {sum(one.decided for one in fields)} of {len(fields)} fields."]
    shares = sorted({round(one.to_communication, 2) for one in fields})
    for share in shares:
        here = [one for one in fields if round(one.to_communication, 2) == share]
        best = min(here, key=lambda one: median_ns(one.best))
        against = f", {verdict_on(best.found, best.said)} of the next at that cap" if best.found else ""
        said.append(f"Compute over communication {share:g}: {step_of(best.best)} at {cap(best.best)}{against}.")
    return said
