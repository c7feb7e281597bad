"""The coordinator of transactions, and the ids of producers."""
