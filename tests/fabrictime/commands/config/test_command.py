"""`config`: the settings file, and the live configuration on a real log, for people and scripts."""

import json

from typer.testing import CliRunner

from fabrictime.commands.cli import app
from fabrictime.commands.config.live_config import LiveRecords


def run(*arguments):
    return CliRunner().invoke(app, arguments)


def fabrictime(log, *arguments):
    return run(*arguments, "--log", log)


def test_config_is_set_live_checked_first_and_compared(log):
    assert fabrictime(log, "config", "diff").exit_code == 0
    done = fabrictime(log, "config", "set", "flaps_max=3", "up_delay_ms=50", "mode=OBSERVE")
    assert (done.exit_code, done.stdout) == (0, "*: version 1 is in force\n"), done.stderr
    for wrong, fragment in (
        ("flaps_max=0", "1 to 4096"),
        ("flaps=1", "no such threshold"),
        ("x", "NAME=VALUE"),
        ("flaps_max=many", "a number"),
        ("mode=FAST", "OBSERVE"),
    ):
        refused = fabrictime(log, "config", "set", wrong)
        assert refused.exit_code == 2
        assert fragment in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    assert fabrictime(log, "config", "set", "flaps_max=5", "--host", "h1").exit_code == 0
    assert fabrictime(log, "config", "rule", "r3r7", "rack:r3>rack:r7", "--p99-us", "20").exit_code == 0
    diff = fabrictime(log, "config", "diff", "--host", "h1")
    assert diff.exit_code == 1
    assert diff.stdout.splitlines() == [
        "flaps_max: 5, default 8, set by h1",
        "up_delay_ms: 50, default 200, set by *",
    ]
    got = json.loads(fabrictime(log, "config", "get", "flaps_max", "--json").stdout)
    assert [(t["value"], t["set_by"]) for t in got["thresholds"]] == [(3.0, "*")]
    assert [(r["name"], r["p99_us"], r["for_s"]) for r in got["latency_rules"]] == [("r3r7", 20.0, 10.0)]
    assert got["records"]["*"]["version"] == 2
    assert fabrictime(log, "config", "set", "--unset", "flaps_max").exit_code == 0
    assert {t["name"] for t in LiveRecords(log).records["*"]["thresholds"]} == {"up_delay_ms"}
    assert "set by" in fabrictime(log, "config", "get").stdout


def test_config_check_takes_the_file_as_argument_or_option(tmp_path):
    path = tmp_path / "ft.toml"
    path.write_text("[up]\nworkers = 100\n")
    plain, option = (
        run("config", "check", str(path)),
        run("config", "check", "--config", str(path)),
    )
    assert plain.exit_code == option.exit_code == 2
    assert plain.stderr == option.stderr
    assert "up.workers = 100: expected a whole number from 0 to 64" in plain.stderr
    both = run("config", "check", str(path), "--config", str(path))
    assert (both.exit_code, both.stderr) == (2, "fabrictime: config check: expected one file\n")


def test_diff_shows_the_effect_of_a_file_and_names_its_mistakes(log, tmp_path):
    file = tmp_path / "limits.toml"
    file.write_text("max_actions_per_s = 5000\n")
    shown = fabrictime(log, "config", "diff", "--file", str(file))
    assert shown.exit_code == 1
    assert "max_actions_per_s: not set -> 5000" in shown.stdout
    assert "requires --without-limit" in shown.stdout
    for text, fragment in (("max_actions_per_s = ", "nvalid value"), ("speed = 1", "no such threshold")):
        file.write_text(text)
        refused = fabrictime(log, "config", "diff", "--file", str(file))
        assert (refused.exit_code, fragment in refused.stderr) == (2, True), refused.stderr
    missing = fabrictime(log, "config", "diff", "--file", str(tmp_path / "none.toml"))
    assert missing.stderr.endswith("No such file or directory\n")


def test_a_limit_that_limits_nothing_needs_a_confirmation(log):
    wide = fabrictime(log, "config", "set", "max_moved_share=0.95", "--host", "*")
    assert (wide.exit_code, "nothing was set" in wide.stderr) == (2, True)
    assert fabrictime(log, "config", "set", "max_moved_share=0.95", "--without-limit").exit_code == 0
    assert fabrictime(log, "config", "set", "--unset", "max_moved_share").exit_code == 0
