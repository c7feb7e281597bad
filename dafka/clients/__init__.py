"""The common part of `dafka.blocking` and `dafka.asyncio`: nodes that run on Trio in a separate thread."""
