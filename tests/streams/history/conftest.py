"""Fixtures of the history server for the tests of the sink."""

from tests.fabrictime.history.conftest import (  # noqa: F401  pytest finds fixtures by name
    client,
    own_server,
    path_delays,
    reader,
    shared_server,
)
