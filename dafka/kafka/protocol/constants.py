"""Numbers in Kafka's messages that its message definitions give no names."""

TOPIC, BROKER = 2, 4
"""The types of resources that have settings."""

SET, DELETE = 0, 1
"""What IncrementalAlterConfigs does to a setting."""

FROM_TOPIC, FROM_BROKER, FROM_DEFAULT = 1, 4, 5
"""Where the value of a setting comes from."""

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
"""The times that stand for offsets in ListOffsets."""

GROUP_KEY, TRANSACTION_KEY = 0, 1
"""What FindCoordinator asks for."""

INITIAL_EPOCH, FINAL_EPOCH = 0, -1
"""The epochs of a fetch that begins a session, and of one without a session."""

OFFSET_FETCH_GROUPS_VERSION = 8
"""The first version of OffsetFetch that asks for several groups."""
