"""Sphinx extension: fenced `mermaid` blocks become SVG while the site is built.

The pages hold diagrams as Mermaid text, which code hosts render too. Rendering them here keeps the site free of scripts
from other servers.
"""

from __future__ import annotations

import hashlib

import mermaidx
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata


class Mermaid(SphinxDirective):
    """The directive `mermaid`: its content is Mermaid text."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the diagram's SVG; a warning, which ends the build, if the text is not Mermaid."""
        source = "\n".join(self.content)
        svg = str(mermaidx.render(source, theme="neutral").svg())
        if "<svg" not in svg:
            return [self.state.document.reporter.warning("expected a Mermaid diagram", line=self.lineno)]
        # Mermaid scopes a diagram's styles by its identifier, so each diagram of a page needs its own.
        identifier = "diagram-" + hashlib.sha256(f"{self.lineno}{source}".encode()).hexdigest()[:8]
        figure = f'<div class="diagram" role="img">{svg.replace("my-svg", identifier)}</div>'
        return [nodes.raw("", figure, format="html")]


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("mermaid", Mermaid)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
