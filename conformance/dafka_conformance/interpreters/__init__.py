"""How scenarios are played: the grammar's sentences, scripts of given, when and then, and scenarios in Python."""
