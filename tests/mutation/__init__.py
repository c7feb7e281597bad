"""Mutation testing: changes the code in small ways, and counts the changes that no test notices.

Cosmic Ray supplies the operators. This package adds some, chooses for each mutant the tests that run its line, and runs
them in forked processes, because a new interpreter for each mutant would take most of the time.
"""
