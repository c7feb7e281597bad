"""The tests that hold for each style of the API."""

from tests.clients.bodies import *  # noqa: F403
