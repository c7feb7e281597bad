"""Trials with the C implementation, if the environment variable `LIBDAFKA_TOOLS` names the folder of its programs."""
