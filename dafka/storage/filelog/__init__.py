"""Storage in a folder of log files: `filelog:FOLDER`."""

from dafka.storage.filelog.storage import FilelogStorage, open_filelog

__all__ = ["FilelogStorage", "open_filelog"]
