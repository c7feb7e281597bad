"""Numbers that peers, operators or files on disk rely on. Changing one is a decision; it must not happen by mistake.

Numbers that only trade speed for memory are not here. `tests/mutation/scope.toml` names them.
"""

from __future__ import annotations

import ast
from pathlib import Path

import dafka

PROMISED = """
broker.interbroker.cluster_secret SECRET_LENGTH_MIN=32
cli.runner SECOND_SIGNAL_S=1.0 EXTRA_END_S=5.0 REFUSED_S=1.0
clients.trio_thread EXIT_S=5.0
config.settings RECORD_BYTES_MAX=64*MIB
discovery.tower TOWER_BYTES_MAX=4*MIB
endpoints HOST_LENGTH_MAX=255 TOWER_SUB_PORT=5556
http.api.nodes NODES_MAX=1000
http.api.overview LAG_MAX=1000 FREE_SHARE_MIN=0.05
http.api.registry DOCUMENT_BYTES_MAX=MIB
http.api.storage TOPICS_SHOWN=100
http.api.streams LIMIT_MAX=1_000_000 WAIT_MS_MAX=60_000 EVENT_LOGS_MAX=100 KEEP_ALIVE_S=15.0 RETRY_MS=1000
http.api.topics PAGE_MAX=1000
http.forwarding.broker_client CONNECT_S=5.0 ANSWER_S=30.0 PING_S=5.0 CONNECTIONS_MAX=8 IDLE_S=10.0
    ANSWER_BYTES_MAX=2**26
http.forwarding.broker_link CREDIT=1
http.forwarding.leaders RETRY_S=0.1
http.forwarding.remote_appends LANES_MAX=64
http.forwarding.remote_reads KEPT_S=10.0
http.logs.log_access LEADER_WAIT_S=10.0
http.logs.records TIMESTAMP_MAX=2**53-1
http.server.authentication FAILURE_DELAY_S=0.1 VERIFIED_MAX=1000 SESSION_S=12*3600.0 SESSIONS_MAX=10_000
    USER_SESSIONS_MAX=100
http.server.connection AHEAD_BYTES_MAX=2**16
http.server.storage_state USAGE_S=3.0
http.server.survey_cache INTERVAL_S=2.0 UNASKED_S=20.0 RETRY_S=10.0 SETTLE_S=5.0 SURVEY_S=5.0
http.server.throughput INTERVAL_S=0.9 GAP_S=15.0 SAMPLES_MAX=300
http.websocket.binary PUBLISH=1 RECORDS=2
http.websocket.client_tasks REFRESH_S=5.0
http.websocket.connection COMPRESSED_BYTES_MIN=1024
http.websocket.messages TEXT_BYTES_MAX=4096 WATCH_INTERVAL_MS_MIN=500
http.websocket.session UNANSWERED_MAX=256 FORWARDED_FACTOR=100 PING_INTERVAL_S=20.0 HEADER_BYTES_MAX=2**16
http.websocket.shared_reads KEPT_S=1.0 UNPACKING_FACTOR=3
http1.head HEAD_BYTES_MAX=16*1024 PARAMETERS_MAX=100
kafka.apis.fetch RESPONSE_BYTES_MAX=50*MIB READ_COMMITTED=1
kafka.apis.reassignments DEFAULT_FACTOR=-1 PREFERRED=0
kafka.protocol.constants OFFSET_FETCH_GROUPS_VERSION=8
kafka.protocol.frames SIZE_BYTES=4 FRAME_BYTES_MAX=100*MIB
kafka.protocol.tables VERSION_MAX=2**15-1
kafka.server.cluster_view NO_NODE=-1
kafka.server.responses UNANSWERED_MAX=100
kafka.server.fetch_sessions NO_SESSION=0
kafka.server.kafka_server REPORT_S=60.0 REPORTED_MAX=1000
kafka.server.sasl LOGIN_BYTES_MAX=2**16 LOGIN_REQUESTS_MAX=20 FAILURE_DELAY_S=0.1
operations.http REQUEST_BYTES_MAX=8192 CONNECTIONS_MAX=32 EXCHANGE_S=10.0
operations.metrics CACHE_FACTOR=20
operations.systemd STATUS_S=5.0 WATCHDOG_FACTOR=4
protocol.answering.announced_heads ROUND_S=10.0 WALK_S=600.0 PARTITIONS_MAX=100 HEADS_MAX=1000 ORPHAN_PAUSE_S=2.0
    ORPHAN_INTERVAL_S=1.0 ORPHAN_HEADS_MAX=20 ORPHANS_MAX=10_000
protocol.answering.fetch_responder CHUNK_RECORDS_MAX=10_000 FETCH_RECORDS_MAX=1_000_000 RANGES_MAX=256
    REQUESTOR_PARTITIONS_MAX=1024 UNVERIFIED_MAX=256 UNVERIFIED_CHUNK_RECORDS_MAX=1000 UNVERIFIED_DELAY_S=0.02
protocol.answering.head_responder SLICE=100 UNVERIFIED_SLICE=20 PAUSE_S=0.001 UNVERIFIED_PAUSE_S=0.01
    QUESTIONS_MAX=50_000 FOLLOWING_MAX=16
protocol.answering.position_responder QUESTIONS_MAX=50_000
protocol.groups.member SILENCE_FACTOR=1.25 SIGNS_PER_LEASE=4 SURVEYS_PER_LEASE=8 SURVEY_PAUSE_S=0.05
protocol.groups.records GROUP_RECORD_VERSION=1 FULL_EVERY_RECORDS=100 LEASE_MS_MAX=600_000 READ_BACK_RECORDS=128
protocol.groups.topic_reader RETRY_S=0.25 RESTART_S=2.0
protocol.machines.consumer GET_HEADS_INTERVAL=1.0 ALL_HEADS_PER_S=50 PEERS_REMEMBERED_MAX=10_000 PREFIXES_MAX=4
protocol.machines.head_exchange TOPICS_MAX=64 REFUSED_TOPICS_MAX=1000 ALL_HEADS_WAITS_S=(1.0,4.0,15.0)
    ALL_HEADS_PER_S=1000 FAREWELL_HEADS_PER_S=1000.0 FAREWELL_HEADS_BURST=10000.0
protocol.machines.head_intervals GROWTH_FACTOR=2
protocol.machines.producer HELD_RECORDS_MAX=10_000 SUBSCRIBERS_MAX=10_000 FOLLOWED_S=5.0 LEAVING_HEAD_S=1.0
    STORES_MAX=1024
protocol.machines.reader GREETING_INTERVAL_S=0.25 REFRESH_INTERVAL_S=5.0 PATIENCE_S=1.0 SLOW_STORES_S=4.0
protocol.machines.store ACKS_MAX=64
protocol.machines.store_answers PAGE_BYTES_MAX=3000
protocol.machines.stored_partitions RESTART_GRACE_S=3600.0 CROWDED_S=3600.0 UNPROVEN_S=3600.0
protocol.machines.stranded_detector ASKING_S=15.0 STRANDED_CHECK_S=0.5 NODES_MAX=10_000
protocol.machines.tower PULSE_S=1.0 PULSE_MAX_S=10.0 PROMPT_PULSES=12 PULSES_PER_TIMEOUT=4 TICK_S=0.25
    REGISTRATION_S=60.0 REGISTRATION_TIMEOUTS=0.75 INTRODUCTIONS_S=0.25 PREFIXES_MAX=1000
protocol.observer.node_table FORGET_S=300.0 ENDED_TIMEOUTS=2
protocol.observer.poll_schedule PATIENCE_S=1.5 QUIET_S=0.3 ASK_AGAIN_S=0.25 LAST_S=1.0
protocol.observer.survey_machine STORES_MAX=50 TOPICS_MAX=10_000 PAGES_MAX=1000 PARTITIONS_MAX=20_000
protocol.ordering.cursor RUNS_MAX=4096
protocol.ordering.fetch_planner RENEWALS_MAX=256 LIMITED_PAGE_S=0.25
protocol.ordering.gap_resolver PATIENCE_ATTEMPTS=5 STORES_MAX=1024 ANSWERS_MAX=10_000
    NODES_MAX=100_000
protocol.ordering.held_end PROBE_S=0.5 PATIENCE_S=2.0 QUIET_S=1.0
protocol.ordering.position_query PATIENCE_S=2.0 RETRY_S=0.5 RETRY_MAX_S=8.0 PARTITIONS_MAX=50_000
protocol.ordering.reassembler UNPROVEN_MAX=50_000 IDLE_S=30.0 UNANSWERED_ATTEMPTS=3 AHEAD_SHARE=4
    MISSING_FIRST_S=15.0 MISSING_INTERVAL_S=60.0
protocol.polling RETRY_WAITS_S=(5.0,30.0) KEYS_MAX=10_000 LASTING_INTERVAL_S=60.0
protocol.presence.beacon_registry NODES_PER_CONNECTION_MAX=64 BEACONS_BURST=2000 BEACONS_PER_S=200.0 LATE_FACTOR=5
protocol.presence.beacons SETTLE_PERIODS_MAX=10 UNECHOED_FACTOR=10 NEW_NODE_BEACONS_PER_S=20
    NEW_NODE_BEACONS_BURST=20 PREFIXES_MAX=16 SILENT_INTERVALS=2 SILENCE_INTERVAL_S=60.0
protocol.presence.connections CONNECTING_MAX=256 TRY_S=1.0 QUEUED_TRY_S=5.0 STEADY_S=30.0 CONNECT_S=1.0
protocol.presence.directory_client UNANSWERED_FACTOR=10 INTERVAL_MIN_S=0.01 JITTER=0.25 SILENT_TIMEOUTS=2
    PAUSE_MAX_S=60.0 PULSES_MAX=10
protocol.presence.identity FORMER_NODES_MAX=100_000
protocol.presence.node_directory PAGE_BYTES_MAX=16*1024 ENTRIES_AT_ONCE_MAX=20_000 REPEAT_S=0.2
protocol.presence.peer_limits UNKNOWN_PARTITIONS_MAX=1000 NODE_BURST=100 NODE_PER_S=20.0 UNKNOWN_BURST=1000
    UNKNOWN_PER_S=100.0 FETCH_COST=0.02 UNKNOWN_FETCH_COST=0.2 HEADS_COST=0.01 UNKNOWN_HEADS_COST=0.05
protocol.presence.subscribers CONNECTIONS_MAX=10_000
records SEQUENCE_MAX=2**62 RECORD_MEMORY_BYTES=64 TEXT_BYTES_MAX=255 RECORD_BYTES_LIMIT=2**29 NO_TIMESTAMP=-1
roles.arguments HEADER_OVERHEAD_BYTES=10
roles.commit_pipeline SLOW_COMMIT_REPEAT_S=60.0
roles.compactor IDLE_SHARE=3
roles.consumer SETTLE_S=2.0
roles.events EVENTS_MAX=1000 LINES_BURST=200 LINES_PER_S=2.0 DISCARDS_INTERVAL_S=1.0 DISCARDS_REPEAT_S=60.0
    UNANSWERED_INTERVAL_S=60.0
roles.group LEAVE_S=2.0
roles.group_tools RESURVEY_S=0.5 PATIENCE_S=10.0
roles.producer REBIND_ATTEMPTS=100
roles.producer_partition REPLACEMENTS_DOUBLED_MAX=10 SPOOL_RETRY_S=1.0
roles.reader POSITIONS_TIMEOUT_S=60.0
roles.replies COLD_READS_MAX=4 REPORTS_MAX=1000
roles.sockets RESOLVE_S=60.0
roles.statistics BOUNDS_S=(0.001,0.0025,0.005,0.01,0.025,0.05,0.1,0.25,0.5,1.0,2.5,5.0,10.0)
roles.store STUCK_S=60.0
roles.tower BEACON_BYTES_MAX=1024 NO_CONNECTION=-1 QUEUE_MAX=10_000
serializers.formats FINGERPRINT_BYTES=8
spark.__init__ OLDEST_PYSPARK=(4,3)
spark.avro DECIMAL_DIGITS_MAX=38
spark.cluster_source FETCH_TIMEOUT_MS=60_000 EARLIEST_TIMEOUT_S=10.0 EARLIEST_RETRY_TIMEOUT_S=0.5
    BUFFER_BYTES_MAX=16*1024*1024
spark.java OLDEST_VERSION=17 VERSION_TIMEOUT_S=60.0
spark.offsets EARLIEST=-2 LATEST=-1
spark.portal EXIT_S=5.0
spark.publishing PRODUCERS_MAX=32 FURTHER_BYTES_MAX=4*MIB TASKS_AHEAD=32 QUESTIONS_MAX=256
spark.scan RECORD_BYTES_MAX=64*2**10
storage.arrow TIMESTAMP_MAX=(2**63-1)//1000
storage.base READ_BYTES=MIB
storage.cold.buckets UPLOAD_BYTES_PER_S_MIN=MIB UPLOAD_BYTES_MAX=256*MIB
storage.cold.manifest VERSION=1
storage.cold.object_store REQUESTS_MAX=8 FIRST_PAUSE_S=0.1 REST_S=1.0 REST_S_MAX=30.0
storage.cold.options HOUR_MS=3_600_000
storage.cold.segments NAME_LENGTH_MAX=160
storage.compaction KEYS_MAX=500_000 KEY_BYTES_MAX=31
storage.filelog.index ROW_EVERY_BYTES=64*1024 OFFSET_MAX=2**31-1
storage.filelog.layout VERSION=2 PART_LENGTH_MAX=200
storage.filelog.segment SEQUENCE_END_MAX=2**63-1
storage.filelog.storage SEGMENT_BYTES=64*MIB SEGMENT_MS=7*24*3600*1000
storage.made_at CLOCK_ERROR_MS=5000
storage.sqlite.connection BUSY_TIMEOUT_S=30.0 PAGE_BYTES=16*1024
storage.sqlite.damage DAMAGES_MAX=100
storage.sqlite.inserting RUNS_MAX=8 NUMBER_DIGITS=20
storage.sqlite.schema APPLICATION_ID=0x4441464B SCHEMA_VERSION=4 SEQUENCE_MAX=2**63-1
storage.sqlite.write_ahead_log LOG_BYTES_MAX=32*MIB CHECKPOINT_BYTES=16*MIB READERS_TIMEOUT_S=0.1 RETRY_S=(0.1,2.0)
storage.tools.json_lines SEQUENCE_MAX=2**64-1 TIME_MAX=2**63-1 TIMESTAMP_MIN=-(2**63) COMPACTED_MAX=2**16
transport.accepted SILENT_S=10.0
transport.connections SRCFD=2 RESERVED_DESCRIPTORS=128 CONNECTIONS_MIN=16
transport.connector RETRY_S=1.0 BROKEN_MAX=3 HIGH_WATERMARK=100_000 MESSAGE_BYTES_MAX=4096 DIAGNOSIS_S=1.0
transport.keys KEY_LENGTH=40 KEY_FILE_BYTES_MAX=MIB
transport.loops FRAME_BYTES=64
transport.mesh SLACK_S=2.0 SOCKETS_MAX=60_000 SUBSCRIPTION_BYTES_MAX=1024 HANDSHAKE_MS=10_000
transport.plain_subscriber DISCARDS_PER_S=200 IDENTIFY_S=5.0 IDENTIFY_SLOW_S=1.0 IDENTIFY_SLOW_INTERVAL_S=20.0
    TOLERATED_PER_S=100 TOLERATED_BURST=500 REVIEW_INTERVAL_S=1.0 SHARE=0.05 PROBATION_SLICE_S=0.0005 PAUSE_S=0.01
    PROBATION_COUNT_MAX=200 PROBATION_QUEUE=100
transport.publisher COUNT_PER_S=2000 TOTAL_FACTOR=8 NAMES_MAX=64 PENALTY_S=30.0 PENALTY_MAX=6 HOSTS_MAX=1024
    QUEUED_BYTES_MIN=256*MIB MESSAGES_MIN=16 RETURN_S=0.5
transport.socket RECEIVE_BYTES_MAX=16*1024*1024 PORT_MAX=65_535
transport.suspect_peers PROBATION_TOLERATED_PER_S=2 PROBATION_TOLERATED_BURST=20 PROBATION_S=5.0
    PROBATION_MAX_S=300.0 NEWCOMER_MAX_S=30.0 HOSTS_MAX=1024 HOSTS_MANY=4
transport.zap REFRESH_S=1.0 REPORT_INTERVAL_S=60.0 REPORTED_MAX=256
watched_files SETTLED_S=3.0
wire.batch OPEN_RUNS_MAX=8
wire.batch_runs HEADERS_MAX=16_384
wire.commands VERSION=1 NUMBER_4_MAX=2**32-1 NUMBER_8_MAX=2**64-1
wire.primitives STRINGS_MAX=65_536
"""


def test_promised_numbers_are_kept() -> None:
    for line in PROMISED.strip().replace("\n    ", " ").splitlines():
        module, *numbers = line.split()
        found = read_constants(module)
        for name, number in (each.split("=") for each in numbers):
            assert evaluate(found[name]) == evaluate(number), f"{module}.{name}"


def read_constants(module: str) -> dict[str, str]:
    """Return what a module assigns to names, without importing what it needs."""
    path = Path(dafka.__file__).parent / f"{module.replace('.', '/')}.py"
    assigned = [each for each in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(each, ast.Assign)]
    return {each.targets[0].id: ast.unparse(each.value) for each in assigned if isinstance(each.targets[0], ast.Name)}


def evaluate(number: str) -> object:
    return eval(number, {"MIB": 2**20})
