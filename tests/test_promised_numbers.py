"""Numbers that peers, operators or files on disk rely on. Changing one is a decision; it must not happen by mistake.

Numbers that only trade speed for memory are not here. `tests/mutation/scope.toml` names them.
"""

from __future__ import annotations

from importlib import import_module

MIB = 2**20

PROMISED: dict[str, dict[str, object]] = {
    "wire.batch": {"OPEN_RUNS_MAX": 8},
    "wire.batch_runs": {"HEADERS_MAX": 16_384},
    "wire.commands": {"VERSION": 1, "NUMBER_4_MAX": 2**32 - 1, "NUMBER_8_MAX": 2**64 - 1},
    "wire.primitives": {"STRINGS_MAX": 65_536},
    "records": {"SEQUENCE_MAX": 2**62, "RECORD_MEMORY_BYTES": 64, "TEXT_BYTES_MAX": 255},
    "protocol.polling": {"RETRY_WAITS_S": (5.0, 30.0), "KEYS_MAX": 10_000},
    "protocol.ordering.cursor": {"RUNS_MAX": 4096},
    "protocol.ordering.fetch_planner": {"RENEWALS_MAX": 256},
    "protocol.ordering.gap_resolver": {
        "HOLDS_NOTHING": 2**64 - 1,
        "PATIENCE_ATTEMPTS": 5,
        "STORES_MAX": 1024,
        "ANSWERS_MAX": 10_000,
        "NODES_MAX": 100_000,
    },
    "protocol.ordering.held_end": {"PROBE_S": 0.5, "PATIENCE_S": 2.0, "QUIET_S": 1.0},
    "protocol.ordering.reassembler": {"UNPROVEN_MAX": 50_000, "IDLE_S": 30.0, "UNANSWERED_ATTEMPTS": 3},
    "protocol.answering.fetch_responder": {
        "CHUNK_RECORDS_MAX": 10_000,
        "FETCH_RECORDS_MAX": 1_000_000,
        "RANGES_MAX": 256,
        "REQUESTOR_PARTITIONS_MAX": 1024,
        "UNVERIFIED_MAX": 256,
        "UNVERIFIED_CHUNK_RECORDS_MAX": 1000,
        "UNVERIFIED_DELAY_S": 0.02,
    },
    "protocol.answering.head_responder": {
        "SLICE": 100,
        "UNVERIFIED_SLICE": 20,
        "PAUSE_S": 0.001,
        "UNVERIFIED_PAUSE_S": 0.01,
        "QUESTIONS_MAX": 50_000,
        "FOLLOWING_MAX": 16,
    },
    "protocol.presence.beacon_registry": {
        "NODES_PER_CONNECTION_MAX": 64,
        "BEACONS_BURST": 2000,
        "BEACONS_PER_S": 200.0,
        "LATE_FACTOR": 5,
    },
    "protocol.presence.beacons": {
        "SETTLE_PERIODS_MAX": 10,
        "UNECHOED_FACTOR": 10,
        "NEW_NODE_BEACONS_PER_S": 20,
        "NEW_NODE_BEACONS_BURST": 20,
        "PREFIXES_MAX": 16,
    },
    "protocol.presence.connections": {
        "CONNECTING_MAX": 256,
        "TRY_S": 1.0,
        "QUEUED_TRY_S": 5.0,
        "STEADY_S": 30.0,
        "CONNECT_S": 1.0,
    },
    "storage.base": {"READ_BYTES": MIB},
    "storage.sqlite.connection": {"BUSY_TIMEOUT_S": 30.0, "PAGE_BYTES": 16 * 1024},
    "storage.sqlite.write_ahead_log": {
        "LOG_BYTES_MAX": 32 * MIB,
        "CHECKPOINT_BYTES": 16 * MIB,
        "READERS_TIMEOUT_S": 0.1,
        "RETRY_S": (0.1, 2.0),
    },
    "storage.sqlite.schema": {"APPLICATION_ID": 0x4441464B, "SCHEMA_VERSION": 4, "SEQUENCE_MAX": 2**63 - 1},
    "storage.sqlite.damage": {"DAMAGES_MAX": 100},
    "storage.filelog.storage": {"SEGMENT_BYTES": 64 * MIB, "SEGMENT_MS": 7 * 24 * 3600 * 1000},
    "storage.filelog.segment": {"SEQUENCE_END_MAX": 2**63 - 1},
    "storage.filelog.stored": {"ROW_BYTES": 28},
    "storage.filelog.index": {"ROW_EVERY_BYTES": 64 * 1024, "OFFSET_MAX": 2**31 - 1},
    "storage.filelog.layout": {"VERSION": 2},
    "storage.tools.json_lines": {"SEQUENCE_MAX": 2**64 - 1, "TIME_MAX": 2**63 - 1},
    "transport.keys": {"KEY_LENGTH": 40, "KEY_FILE_BYTES_MAX": MIB},
    "transport.zap": {"REFRESH_S": 1.0, "REPORT_INTERVAL_S": 60.0, "REPORTED_MAX": 256},
    "watched_files": {"SETTLED_S": 3.0},
    "cli.runner": {"SECOND_SIGNAL_S": 1.0, "EXTRA_END_S": 5.0, "REFUSED_S": 1.0},
}


def test_promised_numbers_are_kept() -> None:
    for module, numbers in PROMISED.items():
        found = import_module(f"dafka.{module}")
        assert (module, {name: getattr(found, name) for name in numbers}) == (module, numbers)
