pytest_plugins = ["dafka.testing.plugin"]
