"""Spark reads Dafka's stores and running clusters, and publishes into them: the extra `dafka[spark]`."""
