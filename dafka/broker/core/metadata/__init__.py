"""Topics, brokers, and which broker keeps which log."""
