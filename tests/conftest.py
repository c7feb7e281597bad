pytest_plugins = ["dafka.testing.plugin", "cli_fixtures", "transport_fixtures", "spark_fixtures"]
