"""A cold tier on a server that speaks S3 (moto's): moved, read by DuckDB, Polars and the storage itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import polars
import pytest

from dafka.errors import StorageError
from dafka.records import RecordBatch
from dafka.storage import RetentionPolicy, open_storage
from dafka.storage.cold.tiered import TieredStorage
from dafka.storage.tools.verify import verify_storage
from tests.storage.cold.stores import A, B, batch, read_all

server = pytest.importorskip("moto.server")
boto3 = pytest.importorskip("boto3")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A server with an empty bucket `records`."""
    moto = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    url = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=url, **keys).create_bucket(Bucket="records")
    yield url
    moto.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def tiered_url(hot: str, endpoint: str, name: str) -> str:
    cold = f"s3://records/{name}%3Fendpoint%3D{endpoint}%26region%3Dus-east-1"
    limits = "local_retention_bytes=1000&cold_segment_bytes=1000&cold_interval_ms=3600000"
    return f"tiered:{hot}?cold={cold}&{limits}"


async def test_records_are_moved_to_a_bucket_and_read_from_it(endpoint: str, tmp_path: Path) -> None:
    hot = f"sqlite:{tmp_path}/store.db"
    url = tiered_url(hot, endpoint, "moved")
    async with open_storage(url) as storage:
        assert isinstance(storage, TieredStorage)
        await storage.append([batch(A, 0, 100), batch(B, 7, 70)])
        await storage.append([RecordBatch(B, 70, [None, b"last"], keys=[b"k", None])])
        assert await storage.move_due() > 10
    async with open_storage(hot, read_only=True) as reader:  # it knows its tier
        assert await read_all(reader, A) == [*batch(A, 0, 100).values]
        assert await read_all(reader, B) == [*batch(B, 7, 70).values, None, b"last"]
        assert (await verify_storage(reader)).damages == ()
    async with open_storage(hot) as storage:
        assert await storage.apply_retention(RetentionPolicy(records_max=35), "orders") == {A: 60, B: 37}
        assert await storage.find_sequence_by_time(A, 1_700_000_000_075) == 75
        assert (await verify_storage(storage)).damages == ()


async def test_other_tools_read_the_objects(endpoint: str, tmp_path: Path) -> None:
    async with open_storage(tiered_url(f"filelog:{tmp_path}/log", endpoint, "tools")) as storage:
        assert isinstance(storage, TieredStorage)
        await storage.append([batch(A, 0, 100)])
        await storage.move_due()
        urls = storage.object_urls("orders")
        end = sum(each.count for each in (await storage.hot.partitions()).values())
    moved = 100 - end
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_region": "us-east-1"}
    options = {**keys, "aws_endpoint_url": endpoint, "aws_allow_http": "true"}
    frame = (
        polars.scan_parquet(urls, storage_options=options).select(polars.col("offset").sum(), polars.len()).collect()
    )
    assert frame.row(0) == (sum(range(moved)), moved)
    client = boto3.client("s3", endpoint_url=endpoint, aws_access_key_id="key", aws_secret_access_key="secret")
    for number, each in enumerate(urls):  # DuckDB itself would download its extension for S3
        client.download_file("records", each.removeprefix("s3://records/"), str(tmp_path / f"{number}.parquet"))
    query = f"SELECT sum(\"offset\"), count(*), min(stored_at) FROM '{tmp_path}/*.parquet'"
    total, count, first = duckdb.execute(query).fetchall()[0]
    assert (total, count, first.timestamp()) == (sum(range(moved)), moved, 1_700_000_000)


async def test_what_is_not_there_or_wrong_is_one_sentence(endpoint: str, tmp_path: Path) -> None:
    url = tiered_url(f"sqlite:{tmp_path}/store.db", endpoint, "x").replace("records", "nowhere")
    async with open_storage(url) as storage:
        assert isinstance(storage, TieredStorage)
        await storage.append([batch(A, 0, 100)])
        with pytest.raises(StorageError, match="nowhere") as caught:
            await storage.move_due()
        assert "\n" not in str(caught.value)
    with pytest.raises(StorageError, match=r"^cold storage s3://records/x: ") as caught:
        async with open_storage(f"tiered:sqlite:{tmp_path}/s.db?cold=s3://records/x%3Fnope%3D1&local_retention_ms=1"):
            pass
    assert "\n" not in str(caught.value)
