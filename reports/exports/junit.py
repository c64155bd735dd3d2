"""The verdicts as JUnit XML: what alarms failed, what could not be judged is an error or skipped, never passed."""

from __future__ import annotations

import re
from xml.etree import ElementTree as Xml

from ..findings import Finding, Urgency, findings, gaps
from ..judging import ClauseHistory, ClauseState, JudgedHistory, Machine, Series, State
from ..wording import commits, interval, moment

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0
_UNJUDGED = (State.MISSING, State.LEARNING)
_ANSWERED = (ClauseState.KEPT, ClauseState.LISTED, ClauseState.UNSTEADY, ClauseState.BROKEN)


def as_junit(judged: JudgedHistory) -> str:
    """One suite for each machine; one case for the night itself, each series and each clause of a subject and world."""
    alarms = {(one.machine, one.key): one for one in findings(judged) if one.urgency is Urgency.ALARM}
    root = Xml.Element("testsuites", name="joinery nightly")
    for machine in judged.machines:
        suite = Xml.SubElement(root, "testsuite", name=machine.name)
        _night(suite, machine)
        for series in judged.series:
            if series.machine == machine.name and series.current:
                _series(suite, series, alarms.get((machine.name, series.key)))
        for clause in judged.clauses:
            if clause.machine == machine.name:
                _clause(suite, clause, alarms.get((machine.name, clause.key)))
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
        suite.set("tests", str(len(suite.findall("testcase"))))
    Xml.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _case(suite: Xml.Element, kind: str, name: str) -> Xml.Element:
    return Xml.SubElement(suite, "testcase", classname=_legal(f"nightly.{kind}"), name=_legal(name))


def _said(case: Xml.Element, tag: str, message: str, text: str = "") -> None:
    Xml.SubElement(case, tag, message=_legal(message)).text = _legal(text)


def _night(suite: Xml.Element, machine: Machine) -> None:
    case = _case(suite, "night", "the night is whole")
    missing = gaps(machine)
    if missing:
        _said(case, "error", "; ".join(missing))


def _series(suite: Xml.Element, series: Series, alarm: Finding | None) -> None:
    case = _case(suite, "series", f"{series.name} ({series.key})")
    if alarm is not None:
        _failed(case, alarm)
    elif series.state in _UNJUDGED:
        _said(case, "skipped", f"{series.state}: {series.points[-1].why or 'too few nights yet'}")


def _clause(suite: Xml.Element, clause: ClauseHistory, alarm: Finding | None) -> None:
    case = _case(suite, "clause", clause.key)
    if alarm is not None:
        _failed(case, alarm)
    elif clause.states[-1] not in _ANSWERED:
        _said(case, "skipped", clause.states[-1].value)


def _failed(case: Xml.Element, alarm: Finding) -> None:
    effect = f" {interval(alarm.change)}" if alarm.change else ""
    origin = alarm.change or alarm.clause
    span = commits(origin) if origin else ""
    lines = [alarm.why, f"commits: {span}" if span else "", f"reproduce: {alarm.command}" if alarm.command else ""]
    _said(case, "failure", f"{alarm.what}{effect} since {moment(alarm.since)}", "\n".join(filter(None, lines)))


def _legal(text: str) -> str:
    return _ILLEGAL.sub("\ufffd", text)
