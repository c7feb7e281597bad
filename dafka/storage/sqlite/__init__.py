"""Storage in a SQLite file, `sqlite:PATH` or `sqlite:PATH?synchronous=NORMAL`; the default.

One connection writes and one reads, each in a worker thread of its own turn. The file is public: see
docs/reference/sqlite-schema.md.
"""

from dafka.storage.sqlite.storage import SqliteStorage, open_sqlite

__all__ = ["SqliteStorage", "open_sqlite"]
