"""What must never be done with what comes from outside: unpickled, run, or let out of its folder."""

import ast
from pathlib import Path

import pytest

from conformance.explore.program import Program

HOME = Path(__file__).parents[2]
NOT_OURS = {"tests", "checks", "defects", "cases", "fixtures", "foreign", "published", "worked_examples"}
#: What can run what it reads, and the files that may do it: SECURITY.md says of each why.
ALLOWED = {
    "pickle.loads": {
        "impl/zero/group_settings.py", "impl/zero/copies.py", "impl/comm/collectives.py", "conformance/ranks/worker.py",
        "conformance/ranks/agent.py", "conformance/ranks/gather.py",
    },
    "torch.load": {"impl/zero/checkpoint.py"},  # bytes of a rank of the same group
    "eval": {"conformance/explore/oracle.py"},  # a program's own lines; see below
    "exec": {"conformance/explore/loading.py"},
    "dist.all_gather_object": {"perf/measure/links.py", "perf/measure/on_ranks.py"},
    "dist.broadcast_object_list": {"perf/measure/on_ranks.py"},
}  # fmt: skip
DANGEROUS = {
    *ALLOWED, "pickle.load", "pickle.Unpickler", "yaml.load", "yaml.unsafe_load", "marshal.loads", "shelve.open",
    "os.system", "os.popen", "dist.gather_object", "dist.scatter_object_list", "dist.recv_object_list",
}  # fmt: skip


def calls(path):
    """The dangerous calls in a file, by the words that they are written with."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and (word := ast.unparse(node.func)) in DANGEROUS:
            yield word
        if isinstance(node, ast.Call) and any(
            each.arg == "shell" and ast.unparse(each.value) == "True" for each in node.keywords
        ):
            yield "shell=True"


def test_only_the_listed_places_unpickle_or_run_what_they_read():
    found: dict[str, set[str]] = {}
    for package in ("impl", "conformance", "perf", "reports"):
        for path in (HOME / package).rglob("*.py"):
            if not NOT_OURS & set(path.relative_to(HOME).parts):
                for word in calls(path):
                    found.setdefault(word, set()).add(str(path.relative_to(HOME)))
    assert found == ALLOWED


@pytest.mark.parametrize(
    "text",
    [
        """{"layers": "__import__('os').system('true')"}""", '{"counts": ["1", "2"]}', '{"at": 1.5}',
        '{"iterations": [1]}', '{"world": "2\\\\nimport os"}', '{"order": {}}', '{"takes": [[1]]}',
    ],
)  # fmt: skip
def test_a_program_from_a_file_holds_nothing_but_listed_choices_and_whole_numbers(text):
    with pytest.raises(ValueError, match=r"give|no such choices|do not go together"):
        Program.read(text)


def test_the_page_of_the_board_names_no_file_outside_of_its_folder():
    from conformance.bad_input import BadInput
    from conformance.board.columns import _read

    for name in ("..", "../x", "/etc", "a/b", "a\\b", "", "A", "a\n"):
        with pytest.raises(BadInput):
            _read({"name": name, "subject": "impl", "about": "x"}, "here")
