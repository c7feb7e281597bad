"""`dafka topic` and `dafka group`: administration of a broker, over Kafka's protocol."""
