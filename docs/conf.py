"""Sphinx configuration of the documentation site. `make docs` builds it offline and fails on any warning."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "docs" / "_ext"), str(ROOT / "conformance")]

import dafka  # noqa: E402 (found through the installed package)

project = "dafka"
author = "the dafka contributors"
project_copyright = "the dafka contributors, Mozilla Public License 2.0"
version = release = dafka.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "mermaid_svg",
    "plain_docstrings",
]
exclude_patterns = ["_ext", "_build"]
# Statistics have an attribute `bytes`, which Sphinx confuses with the type.
suppress_warnings = ["ref.python"]

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "fieldlist"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4

autoclass_content = "class"
autodoc_class_signature = "mixed"
autodoc_default_options = {"member-order": "bysource"}
autodoc_typehints = "signature"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
add_module_names = False

html_theme = "furo"
html_title = f"dafka {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/logo.svg"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#3f51b5", "color-brand-content": "#3f51b5"},
    "dark_css_variables": {"color-brand-primary": "#9fa8da", "color-brand-content": "#9fa8da"},
}
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
