"""The scenarios beyond the grammar's sentences: scripts in TOML, and Python where a script is not enough.

A file belongs to the role in its name. To add a script, add it to `<role>.toml`. To add a function, add it to a module
with a `SCENARIOS` registry. Modules that begin with an underscore are helpers.
"""
