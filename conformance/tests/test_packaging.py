"""What is installed is complete: every data file of a package is matched by a pattern in pyproject.toml."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATTERNS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
LEFT_OUT = ("tests", "published", "__pycache__")


@pytest.mark.parametrize("package", ["impl", "conformance", "perf", "reports"])
def test_every_data_file_of_a_package_is_installed(package):
    home = ROOT / package
    there = {path for path in home.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    there = {path for path in there if not set(LEFT_OUT) & set(path.relative_to(home).parts)}
    installed = {path for pattern in PATTERNS[package] for path in home.glob(pattern)}
    assert sorted(str(path.relative_to(ROOT)) for path in there - installed) == []
