"""Put the records of partitions in order, fetch what is missing, and buffer what is in order."""
