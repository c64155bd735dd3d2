"""The shape that Apache Otava reads: for each machine one CSV, a row for each night and a column for each series."""

from __future__ import annotations

import json

from ..judging import JudgedHistory, Machine, Series
from .tables import csv_text


def otava_csv(judged: JudgedHistory, machine: Machine) -> str:
    """``time``, ``night``, ``commit``, then the value of every current series; empty where a night has none."""
    import pandas as pd

    values = {one.key: {point.night: point.value for point in one.points} for one in _measured(judged, machine)}
    nights = [(night.time, night.name, night.commit) for night in machine.nights if night.status != "missed"]
    measured = pd.DataFrame(values, dtype=float).dropna(how="all")
    return csv_text(pd.DataFrame(nights, columns=["time", "night", "commit"]).join(measured, on="night", how="inner"))


def otava_config(judged: JudgedHistory, files: dict[str, str]) -> str:
    """The ``tests`` of an otava.yaml; ``files`` names the CSV of each machine. JSON strings are YAML, too."""
    lines = ["tests:"]
    for machine in judged.machines:
        if machine.name not in files:
            continue
        lines += [
            f"  {json.dumps(machine.name)}:", "    type: csv", f"    file: {json.dumps(files[machine.name])}",
            "    time_column: time", "    attributes: [night, commit]", "    metrics:",
        ]  # fmt: skip
        for one in _measured(judged, machine):
            lines += [f"      {json.dumps(one.key)}:  # {_comment(one.name)}", "        direction: -1"]
            lines += [f"        column: {json.dumps(one.key)}"]
        lines += ["    csv_options:", "      delimiter: ','", "      quote_char: '\"'"]
    return "\n".join(lines) + "\n"


def _measured(judged: JudgedHistory, machine: Machine) -> list[Series]:
    return [one for one in judged.series if one.machine == machine.name and one.current]


def _comment(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
