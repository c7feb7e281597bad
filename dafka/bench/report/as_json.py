"""A run as JSON: what it was asked for, what it ran on, every sample, and what they come to."""

from __future__ import annotations

import json

import attrs

from dafka.bench.model import Results

VERSION = 1
"""Changes when a key is renamed or removed."""


def to_json(results: Results) -> str:
    """The document, with a line end."""
    samples = [
        {"job": sample.job, "system": sample.system, "round": sample.round, **attrs.asdict(sample.measured)}
        for sample in results.samples
    ]
    document = {
        "version": VERSION,
        "settings": dict(results.settings),
        "machine": dict(results.machine),
        "systems": list(results.systems),
        "base": results.base,
        "left_out": dict(results.left_out),
        "failures": [attrs.asdict(failure) for failure in results.failures],
        "summary": [{**attrs.asdict(row), "is_higher_better": row.is_higher_better} for row in results.rows()],
        "samples": samples,
    }
    return json.dumps(document, indent=2) + "\n"
