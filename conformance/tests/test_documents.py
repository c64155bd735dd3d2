"""The documents: links lead somewhere, entrances are short, and nothing in them waits to be filled in."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("reports/examples/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_into_the_repository_leads_to_a_file(page):
    targets = [target for target in LINK.findall(page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize(("page", "most"), [("README.md", 1500), ("ARCHITECTURE.md", 2500), ("GLOSSARY.md", 700)])
def test_what_newcomers_read_first_is_short(page, most):
    assert len((ROOT / page).read_text().split()) <= most


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_nothing_is_left_to_be_filled_in(page):
    assert re.findall(r"@[A-Z_]{4,}@|\bTODO\b|\bTBD\b", page.read_text()) == []


def test_files_that_documents_name_exist():
    named = re.compile(r"`((?:impl|conformance|perf|reports|docs)/[\w./-]+\.(?:py|toml|md))`")
    missing = {
        (page.name, name)
        for page in PAGES
        if page.name not in ("LOG.md", "CHANGELOG.md")
        for name in named.findall(page.read_text())
        if not (ROOT / name).exists()
    }
    assert missing == set()


def test_environment_variables_that_the_code_reads_are_documented():
    code = [path for name in ("impl", "conformance", "perf", "reports") for path in (ROOT / name).rglob("*.py")]
    texts = [path.read_text() for path in code if "tests" not in path.parts]
    read = {name for text in texts for name in re.findall(r'"(JOINERY_[A-Z_]*[A-Z])"', text)}
    table = set(re.findall(r"^\| `(JOINERY_\w+)`", (ROOT / "docs/commands.md").read_text(), flags=re.MULTILINE))
    assert read == table


def test_variables_of_make_are_documented():
    variables = re.findall(r"^(\w+) +\?=|origin (\w+)\)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    table = (ROOT / "docs/commands.md").read_text().partition("## Environment variables")[0]
    first_cells = re.findall(r"^\|([^|]*)\|", table, flags=re.MULTILINE)
    named = {name for cell in first_cells for name in re.findall("`(.+?)`", cell)}
    assert {one or other for one, other in variables} == named


def test_make_help_names_every_target():
    said = subprocess.run(["make", "help", "SETUP=0", "PYTHON=python3"], cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    (targets,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert [name for name in targets.split() if name != "help" and f"make {name} " not in said.stdout] == []
