"""The kinds of errors of a host's reads."""

from __future__ import annotations

import errno
import os

import pytest

from producers.audit.host.base import Missing, Unreadable, as_unreadable


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EINVAL, errno.ENODEV])
def test_an_absent_thing_is_missing(code: int) -> None:
    assert isinstance(as_unreadable("/sys/none", OSError(code, os.strerror(code))), Missing)


def test_a_refused_thing_is_unreadable() -> None:
    error = as_unreadable("/sys/none", PermissionError(errno.EACCES, "Permission denied"))
    assert type(error) is Unreadable
    assert str(error) == "/sys/none: Permission denied"


def test_a_process_that_ends_while_it_is_read_is_not_there() -> None:
    assert isinstance(as_unreadable("/proc/7/stat", OSError(errno.ESRCH, "No such process")), Missing)
