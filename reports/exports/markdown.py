"""The night in a few lines of Markdown, for the summary page of a CI job."""

from __future__ import annotations

import re

from ..findings import Finding, Urgency, at_work, few_nights, findings, gaps
from ..judging import Change, Health, JudgedHistory
from ..wording import commits, interval, moment, percent, plural

_SIGNS = {Health.HEALTHY: "✅", Health.REGRESSED: "❌", Health.UNJUDGED: "⚠️"}
_TITLES = {
    Urgency.ALARM: "Alarms", Urgency.WATCH: "To watch", Urgency.KNOWN: "Known", Urgency.GOOD: "Better",
}  # fmt: skip
_MOST = 50  # rows of one table: a summary is read, not searched


def as_markdown(judged: JudgedHistory) -> str:
    found = findings(judged)
    lines = [f"## {_SIGNS[judged.health]} Nightly: {judged.health.value}", ""]
    for machine in at_work(judged):
        nights = plural(sum(night.status != "missed" for night in machine.nights), "night")
        lines.append(f"- {_text(machine.name)}: {machine.health.value}, {nights}" + "".join(
            f"; {_text(gap)}" for gap in gaps(machine)
        ))  # fmt: skip
    few = few_nights(judged, at_work(judged))
    lines += [f"- {_text(few)}"] if few else []
    for urgency, title in _TITLES.items():
        rows = [one for one in found if one.urgency is urgency]
        if rows:
            lines += ["", f"### {title}", "", "| what | effect | since | commits | why |", "|---|---|---|---|---|"]
            lines += [_row(one) for one in rows[:_MOST]]
            lines += [f"\n… and {len(rows) - _MOST} more"] if len(rows) > _MOST else []
    lines += _commands([one for one in found if one.urgency is Urgency.ALARM][:_MOST])
    if judged.left_out:
        lines += ["", f"{plural(len(judged.left_out), 'file')} of the history left out:", ""]
        lines += [f"- {_text(one.path)}: {one.kind}: {_text(one.why)}" for one in judged.left_out[:_MOST]]
    return "\n".join(lines) + "\n"


def _row(one: Finding) -> str:
    origin = one.change or one.clause
    span = commits(origin) if origin else ""
    shown = interval if one.urgency is Urgency.ALARM else _effect
    effect = shown(one.change) if one.change else ""
    cells = [f"{_text(one.name)}: {_text(one.what)}", effect, moment(one.since), span, _text(one.why[:300])]
    return "| " + " | ".join(cells) + " |"


def _effect(change: Change) -> str:
    return percent(change.effect)


def _commands(alarms: list[Finding]) -> list[str]:
    commands = list(dict.fromkeys(one.command for one in alarms if one.command))
    if not commands:
        return []
    body = "\n".join(commands)
    runs = re.findall("`+", body)
    fence = "`" * max([3, *(len(run) + 1 for run in runs)])
    return ["", "Reproduce:", "", f"{fence}sh", body, fence]


def _text(text: str) -> str:
    """Nothing in a name, a note or a witness is Markdown or HTML."""
    one_line = " ".join(text.split())
    return re.sub(r"([\\`*_{}\[\]<>()#!|~&@])", r"\\\1", one_line)
