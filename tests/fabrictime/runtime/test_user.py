"""Users without a passwd entry, a name or a home, and `~` in paths."""

import os

import pytest

from fabrictime.history.settings import HistorySettings
from fabrictime.runtime import user
from fabrictime.runtime.settings import UpSettings
from streams.runtime.settings import StreamSettings


def test_a_user_without_a_passwd_entry_has_the_id_as_name(monkeypatch):
    for missing in (KeyError("uid not found"), OSError("no username set")):

        def none(error=missing):
            raise error

        monkeypatch.setattr(user.getpass, "getuser", none)
        assert user.user_name() == f"uid {os.getuid()}"


def test_the_state_directory_is_below_the_home(tmp_path):
    assert user.state_directory({"XDG_STATE_HOME": "/x"}) == (user.Path("/x/fabrictime"), "")
    found = user.state_directory({"HOME": str(tmp_path)})
    assert found == (tmp_path / ".local" / "state" / "fabrictime", "")


def test_without_a_home_the_state_directory_is_this_users_own_and_logged_in_one_line(tmp_path):
    own = tmp_path / f"fabrictime-{os.getuid()}"
    found, reason = user.state_directory({}, tmp_path)
    assert found == own
    assert reason == f"no home directory: data in {own} (set HOME, XDG_STATE_HOME or --dir)"
    own.mkdir()
    assert user.state_directory({}, tmp_path)[0] == own
    assert user.state_directory({"HOME": "/dev/null/none"}, tmp_path)[0] == own


def test_a_directory_that_another_user_prepared_is_refused(tmp_path):
    (tmp_path / f"fabrictime-{os.getuid()}").symlink_to("/etc")
    with pytest.raises(ValueError, match="belongs to another user: set HOME, XDG_STATE_HOME or --dir"):
        user.state_directory({}, tmp_path)


def test_home_is_expanded_in_every_path(monkeypatch):
    monkeypatch.setenv("HOME", "/homes/u")
    given = {"data_directory": "~/ft", "fleet": "~/fleet.toml", "host_name": "~", "web": True}
    assert user.expand_paths(UpSettings, given) == {
        "data_directory": "/homes/u/ft",
        "fleet": "/homes/u/fleet.toml",
        "host_name": "~",
        "web": True,
    }
    assert user.expand_paths(HistorySettings, {"directory": "~"}) == {"directory": "/homes/u"}
    below = {"kafka": {"tls_ca_file": "~/ca.pem"}, "history": {"password_file": "~/p"}}
    assert user.expand_paths(StreamSettings, below) == {
        "kafka": {"tls_ca_file": "/homes/u/ca.pem"},
        "history": {"password_file": "/homes/u/p"},
    }
    with pytest.raises(ValueError, match="no home directory is known"):
        user.expand_paths(UpSettings, {"data_directory": "~nobody-of-that-name/x"})
