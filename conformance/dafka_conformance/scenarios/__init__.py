"""The scenarios beyond the grammar's sentences: scripts in TOML, and in Python what a script cannot say."""
