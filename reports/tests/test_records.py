"""Record files: what is written is read back, and what is not whole is refused."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from reports.records import RecordError, Writer, identity, read

ROW = {
    "clause": "JOIN-001", "check": "test_x", "scenario": "", "subject": "torch", "backend": "gloo", "world": 2,
    "outcome": "passed", "seconds": 0.5, "witness": "", "level": "MUST", "deviation": "", "notes": [],
}  # fmt: skip


def header():
    return identity("conformance", ["python", "-m", "conformance", "run"])


def test_rows_come_back_as_they_were_written(tmp_path):
    path = tmp_path / "a.jsonl"
    separators = ROW | {"witness": "two lines\nand a \u2028 separator, ü"}
    with Writer(path, header()) as writer:
        writer.write(ROW)
        writer.write(separators)
        writer.close({"exit_status": 1})
    record = read(path)
    assert record.rows == [ROW, separators]
    assert record.footer["exit_status"] == 1
    assert record.footer["rows"] == 2
    assert record.complete


def test_the_header_says_who_where_and_with_what(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("MY_SECRET_TOKEN", "hush")
    Writer(tmp_path / "a.jsonl", header()).close()
    found = read(tmp_path / "a.jsonl").header
    assert found["versions"]["python"] == sys.version.split()[0]
    assert found["machine"]["cores"] >= 1
    assert found["command"] == ["python", "-m", "conformance", "run"]
    assert found["environment"]["NCCL_DEBUG"] == "INFO"
    assert "hush" not in json.dumps(found)


def test_the_file_has_its_name_only_when_it_is_whole(tmp_path):
    path = tmp_path / "a.jsonl"
    writer = Writer(path, header())
    writer.write(ROW)
    assert not path.exists()
    writer.close()
    assert path.exists()
    assert os.listdir(tmp_path) == ["a.jsonl"]


def test_an_abandoned_file_leaves_the_earlier_one_alone(tmp_path):
    path = tmp_path / "a.jsonl"
    Writer(path, header()).close({"exit_status": 0})
    writer = Writer(path, header())
    writer.write(ROW)
    writer.abandon()
    assert read(path).rows == []
    assert os.listdir(tmp_path) == ["a.jsonl"]


def test_an_exception_inside_the_block_marks_the_file_as_interrupted(tmp_path):
    path = tmp_path / "a.jsonl"
    with pytest.raises(KeyboardInterrupt), Writer(path, header()) as writer:
        writer.write(ROW)
        raise KeyboardInterrupt
    record = read(path)
    assert record.rows == [ROW]
    assert record.footer["interrupted"] is True
    assert not record.complete


def test_an_interrupted_record_does_not_take_the_place_of_a_whole_one(tmp_path):
    path = tmp_path / "a.jsonl"
    with Writer(path, header()) as writer:
        writer.write(ROW)
    whole = path.read_bytes()
    with pytest.raises(KeyboardInterrupt), Writer(path, header()) as writer:
        raise KeyboardInterrupt
    assert path.read_bytes() == whole
    assert (writer.path.name, read(writer.path).footer["interrupted"]) == ("a.jsonl.part", True)


def test_a_killed_writer_loses_at_most_the_line_in_flight(tmp_path):
    path = tmp_path / "a.jsonl"
    program = f"""
        import os, signal
        from pathlib import Path
        from reports.records import Writer, identity
        writer = Writer(Path({str(path)!r}), identity("conformance"))
        for _ in range(3):
            writer.write({ROW!r})
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=300)
    assert done.returncode == -signal.SIGKILL
    assert not path.exists()
    part = tmp_path / "a.jsonl.part"
    with pytest.raises(RecordError, match="no footer"):
        read(part)
    assert read(part, partial=True).rows == [ROW] * 3


def test_a_line_cut_in_half_is_left_out_of_a_partial_reading(tmp_path):
    path = tmp_path / "a.jsonl"
    writer = Writer(path, header())
    writer.write(ROW)
    writer.close()
    whole = path.read_text().splitlines()
    path.write_text("\n".join([*whole[:2], whole[1][:20]]))
    with pytest.raises(RecordError, match="no footer"):
        read(path)
    assert read(path, partial=True).rows == [ROW]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines[1:], "no header"),
        (lambda lines: lines[:-1], "no footer"),
        (lambda lines: [lines[0], lines[-1]], "counts 1 rows"),
        (lambda lines: [lines[0], "{oops", lines[-1]], "line 2 is no JSON"),
        (lambda lines: [lines[0], "[]", lines[-1]], "line 2 is no JSON object"),
        (lambda lines: [lines[0], lines[-1], lines[1], lines[-1]], "neither a row nor the footer"),
        (lambda lines: [lines[0].replace('"schema": 1', '"schema": 99'), *lines[1:]], "schema 99"),
        (lambda lines: [lines[0], lines[1].replace('"world": 2', '"world": "two"'), lines[-1]], "world is 'two'"),
        (lambda lines: [lines[0], lines[1].replace('"world": 2', '"world": true'), lines[-1]], "world is True"),
        (lambda lines: [lines[0], lines[1].replace('"clause"', '"claws"'), lines[-1]], "no 'clause'"),
        (lambda _: [], "no header"),
        (lambda _: ["not a record"], "line 1 is no JSON"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(tmp_path, change, words):
    path = tmp_path / "a.jsonl"
    writer = Writer(path, header())
    writer.write(ROW)
    writer.close()
    path.write_text("".join(line + "\n" for line in change(path.read_text().splitlines())))
    with pytest.raises(RecordError, match=words):
        read(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(RecordError, match=r"gone\.jsonl: cannot be read"):
        read(tmp_path / "gone.jsonl")


def test_a_row_that_lacks_a_field_cannot_be_written(tmp_path):
    writer = Writer(tmp_path / "a.jsonl", header())
    with pytest.raises(RecordError, match="no 'outcome'"):
        writer.write({key: value for key, value in ROW.items() if key != "outcome"})
    writer.abandon()


def test_nothing_can_be_written_after_the_end(tmp_path):
    writer = Writer(tmp_path / "a.jsonl", header())
    writer.close()
    with pytest.raises(RecordError, match="after it was closed"):
        writer.write(ROW)


def test_two_writers_of_one_path_at_once_lose_nothing(tmp_path):
    path = tmp_path / "a.jsonl"
    first, second = Writer(path, header()), Writer(path, header())
    first.write(ROW)
    second.write(ROW | {"clause": "JOIN-002"})
    second.close()
    first.close()
    assert (second.path, first.path) == (path, tmp_path / "a-2.jsonl")
    assert [read(one.path).rows[0]["clause"] for one in (first, second)] == ["JOIN-001", "JOIN-002"]
    third = Writer(path, header())  # one after the other: the later file takes the earlier one's place
    third.close()
    assert third.path == path
    assert sorted(os.listdir(tmp_path)) == ["a-2.jsonl", "a.jsonl"]


def test_what_a_killed_writer_left_is_taken_over_and_a_living_writers_file_is_not(tmp_path):
    path = tmp_path / "a.jsonl"
    (tmp_path / "a.jsonl.part").write_text("left behind")
    writer = Writer(path, header())
    other = Writer(path, header())
    writer.write(ROW)
    other.abandon()
    writer.close()
    assert read(path).rows == [ROW]
    assert os.listdir(tmp_path) == ["a.jsonl"]


def test_gpus_are_asked_of_the_drivers_own_tool_and_its_absence_or_failure_is_no_error(tmp_path, monkeypatch):
    from reports.records.gpus import gpus

    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for body, names in (
        ("echo 'NVIDIA H200, 143771 MiB, 570.1'; echo 'NVIDIA H200, 143771 MiB, 570.1'", ["NVIDIA H200"] * 2),
        ("echo 'NVIDIA-SMI has failed'; exit 9", []),
        ("echo 'no commas here'", []),
    ):
        tool.write_text(f"#!/bin/sh\n{body}\n")
        tool.chmod(0o755)
        gpus.cache_clear()
        found = gpus()
        assert [gpu["name"] for gpu in found["gpus"]] == names
        assert isinstance(found["nccl"], str)
    gpus.cache_clear()
    assert {"kernel", "gpus", "driver", "nccl"} <= set(header()["machine"])
