"""What `dafka.blocking` and `dafka.asyncio` share: nodes that run on Trio in a thread of their own."""
