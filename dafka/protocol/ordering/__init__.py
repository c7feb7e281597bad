"""Puts the records of partitions in order, fetches missing records, and buffers ordered ones."""
