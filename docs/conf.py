"""How the documents become pages: ``make docs`` writes them to out/docs, and fails on a broken link."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

project = "Joinery"
author = "The Joinery authors"
html_title = "Joinery"
html_theme = "furo"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["out"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
# documents at the top of the repository are pages too (see pages/*.md), and link to files that are none
suppress_warnings = ["myst.header"]
