"""What a run found, as a table, as JSON, and as a plot."""

from dafka.bench.report.as_json import to_json
from dafka.bench.report.plot import to_svg
from dafka.bench.report.table import notes, to_table

__all__ = ["notes", "to_json", "to_svg", "to_table"]
