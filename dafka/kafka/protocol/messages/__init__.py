"""The messages of Kafka's APIs. Each module describes some of them in tables; `tables` explains the language."""
