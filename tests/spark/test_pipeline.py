from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

if TYPE_CHECKING:
    from types import ModuleType

    from pyspark.sql import SparkSession

FLIGHTS = 20_000


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    import flights_pipeline

    return flights_pipeline


def test_the_pipeline_agrees_with_pandas(spark: SparkSession, pipeline: ModuleType, tmp_path: Path) -> None:
    flights = pipeline.load(FLIGHTS)
    results = trio.run(pipeline.run, spark, flights, tmp_path)
    assert results.is_right
    assert [step.outcome for step in results.steps] == [
        "every record stored",
        "equal to pandas",
        "equal to pandas",
        "equal to the store",
    ]
    assert results.steps[-1].count > FLIGHTS // 2
    assert (results.hours["flights"].sum(), results.carriers["flights"].sum()) == (FLIGHTS, FLIGHTS)
    assert set(results.hours["origin"]) == set(pipeline.AIRPORTS)
    pipeline.draw(results, tmp_path / "flights.png")
    picture = (tmp_path / "flights.png").read_bytes()
    assert (picture[:8], len(picture) > 20_000) == (b"\x89PNG\r\n\x1a\n", True)
    assert [table.row_count for table in pipeline.to_tables(results)] == [4, 5]


def test_all_records_are_loaded_and_a_different_number_is_detected(pipeline: ModuleType) -> None:
    flights = pipeline.load()
    assert len(flights) == 336_776
    assert flights["scheduled"].is_monotonic_increasing
    expected = pipeline.expected_carriers(flights[:1000])
    assert pipeline.compare(expected.copy(), expected) == "equal to pandas"
    assert pipeline.compare(expected.assign(delay=expected["delay"] + 1), expected) == "DIFFERENT"
    assert pipeline.compare(expected[1:].reset_index(drop=True), expected) == "DIFFERENT"
