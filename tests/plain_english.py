"""Finds wording that is hard to read: `python -m tests.plain_english [PATH...]`, as `make check` does.

It reads docstrings, comments and pages. The style guide in CONTRIBUTING.md says what to write instead.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

PATTERNS = {
    r"\blacks?\b": "does not have, misses",
    r"\bno more\b(?! than| records| requests)": "no longer, not ... any more",
    r"\btold\b": "say who sends what, or what a client gets",
    r"\b(is|are|was|were) to be\b": "must, will",
    r"\b(is|are) let\b": "is allowed to, may",
    r"\b(those|they|he|she|them) who\b": "name them: clients, peers, readers",
    r"\bthat which\b": "name it",
    r"\bwhoever\b": "name them",
    r"\boftener\b": "more often",
    r"\bfor ever\b": "forever",
    r"\bso many\b(?! \w+ that)": "this number of",
    r"\bin the place of\b": "instead of",
    r"^(Let|Tell|Say)\b": "say what happens: have, report, describe",
}
"""What is hard to read, as regular expressions, and what to write instead."""

SKIPPED = {"tests", "_build", "node_modules", "vendor"}
PATHS = ("dafka", "conformance/dafka_conformance", "benchmarks", "docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
_FOUND = [(re.compile(pattern, re.MULTILINE), advice) for pattern, advice in PATTERNS.items()]


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and comments of a module, each with its line."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                yield each.lineno, each.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def prose_of(page: str) -> str:
    """Return a page without its code, in as many lines."""
    return re.sub(r"```.*?```|`[^`\n]*`", lambda code: re.sub(r"[^\n]", " ", code[0]), page, flags=re.DOTALL)


def find(text: str) -> Iterator[tuple[int, str]]:
    """Yield what is hard to read in a text: the line in it, counted from 0, and a sentence."""
    for pattern, advice in _FOUND:
        for found in pattern.finditer(text):
            yield text.count("\n", 0, found.start()), f"{found[0]!r}: {advice}"


def check(path: Path) -> Iterator[str]:
    """Yield a line for each place of a file that is hard to read."""
    source = path.read_text("utf-8")
    texts = texts_of(source) if path.suffix == ".py" else [(1, prose_of(source))]
    for line, text in texts:
        for offset, sentence in find(text):
            yield f"{path}:{line + offset}: {sentence}"


def main(names: list[str]) -> int:
    """Print what is hard to read. Return 1 if there is anything."""
    files = [
        path
        for name in names or PATHS
        for path in ([Path(name)] if Path(name).is_file() else sorted(Path(name).rglob("*")))
        if path.suffix in {".py", ".md"} and not SKIPPED.intersection(path.parts)
    ]
    found = [line for path in files for line in check(path)]
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
