"""Storage in a SQLite file: `sqlite:PATH` or `sqlite:PATH?synchronous=NORMAL`; the default storage.

The schema is public: see docs/reference/sqlite-schema.md.
"""

from dafka.storage.sqlite.storage import SqliteStorage, open_sqlite

__all__ = ["SqliteStorage", "open_sqlite"]
