"""The secret of a cluster, as a file has it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dafka.broker.interbroker.cluster_secret import read_secret
from dafka.errors import ConfigError

SECRETS = [
    (b"s" * 32, "s" * 32),
    (b" \n" + b"s" * 32 + b"\n", "s" * 32),
    (b"s" * 31, "expected at least 32 characters"),
    (b"\xff" * 40, "cannot read .*: expected text"),
    (b"s" * 31 + b"\n", "expected at least 32 characters"),
]


def test_a_secret_has_a_smallest_length(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with pytest.raises(ConfigError, match="secret_file: cannot read"):
        read_secret(str(path))
    for content, expected in SECRETS:
        path.write_bytes(content)
        try:
            assert read_secret(str(path)) == expected
        except ConfigError as error:
            assert re.search(f"secret_file: {expected}", str(error))  # noqa: PT017
    assert read_secret("") == ""
