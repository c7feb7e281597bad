"""Adversarial peers attack a role that runs as a process: `python -m benchmarks.adversarial --help`."""
