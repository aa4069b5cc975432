"""Shell scripts for Slurm, in a real Slurm: a job that must not start, a node that drains itself."""

import subprocess
from pathlib import Path

import pytest

from tests.actuators.slurm_cluster import slurm_of

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tools" / "slurm"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A Slurm whose controller asks the prolog script, with settings that a test can change."""
    folder = tmp_path_factory.mktemp("scripts")
    folder.parent.parent.chmod(0o755)
    folder.parent.chmod(0o755)
    folder.chmod(0o755)
    prolog = script(folder / "prolog.sh", f". {folder}/settings\nexec {SCRIPTS}/prolog.sh\n")
    (folder / "settings").write_text("")
    with slurm_of("n1", "n2", more=f"PrologSlurmctld={prolog}") as found:
        found.settings = folder / "settings"
        yield found


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


def answering(folder, code, text="n1: unfit: node.ecc"):
    """Return a program with this exit code, which keeps its arguments."""
    return script(folder / f"answer-{code}", f'echo "$@" >{folder}/arguments\necho "{text}"\nexit {code}\n')


def run(name, folder, *, code, **settings):
    program = answering(folder, code)
    return subprocess.run(
        [SCRIPTS / name],
        env={"PATH": f"{folder}:/usr/sbin:/usr/bin:/bin", "FABRICTIME": str(program), **settings},
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("code", "unknown", "expected"),
    [(0, "open", 0), (1, "open", 1), (2, "open", 0), (70, "open", 0), (0, "closed", 0), (2, "closed", 1)],
)
def test_the_prolog_fails_open_or_closed(tmp_path, code, unknown, expected):
    done = run("prolog.sh", tmp_path, code=code, SLURMD_NODENAME="n1", FABRICTIME_UNKNOWN=unknown)
    assert (done.returncode, done.stdout) == (expected, "")
    assert (tmp_path / "arguments").read_text() == "audit gate --hosts n1 --max-age 2h\n"


def test_a_command_that_hangs_or_is_missing_counts_as_not_known(tmp_path):
    hanging = script(tmp_path / "hanging", "exec sleep 60\n")
    for program, unknown, expected in ((hanging, "open", 0), (hanging, "closed", 1), ("/none", "open", 0)):
        done = subprocess.run(
            [SCRIPTS / "prolog.sh"],
            env={
                "PATH": "/usr/bin:/bin",
                "FABRICTIME": str(program),
                "FABRICTIME_LIMIT_S": "0.2",
                "FABRICTIME_UNKNOWN": unknown,
                "SLURMD_NODENAME": "n1",
            },
            check=False,
            timeout=30,
        )
        assert done.returncode == expected


@pytest.mark.parametrize("code", [0, 1, 2])
def test_epilog_and_health_check_never_fail(tmp_path, code):
    assert run("epilog.sh", tmp_path, code=code, SLURMD_NODENAME="n1").returncode == 0
    assert (tmp_path / "arguments").read_text() == "audit --hosts n1 --limit 15s\n"
    assert run("healthcheck.sh", tmp_path, code=code, SLURMD_NODENAME="n1").returncode == 0
    assert (tmp_path / "arguments").read_text() == "audit\n"


def job(cluster, *nodes):
    """Submit a job on these nodes, and return its id."""
    done = subprocess.run(
        ["sbatch", "--parsable", "--chdir=/", f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}",
         "--output=/dev/null", "--wrap=true"],
        env=cluster.env, capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    return done.stdout.strip()


def answer(cluster, program):
    """Let the prolog run this program instead of fabrictime. slurmctld gives it an environment of its own."""
    cluster.settings.write_text(
        f"export FABRICTIME={program} SLURM_CONF={cluster.conf} PATH={cluster.env['PATH']}\n"
    )


def state_of(cluster, number):
    text = cluster.scontrol("-o", "show", "job", number)
    return dict(each.partition("=")[::2] for each in text.split())


def test_a_job_starts_on_fit_nodes_alone(cluster, tmp_path):
    tmp_path.chmod(0o755)
    answer(cluster, answering(tmp_path, 0))
    number = job(cluster, "n1", "n2")
    cluster.until(lambda: state_of(cluster, number)["JobState"] == "COMPLETED", "the job ends")
    assert (tmp_path / "arguments").read_text() == "audit gate --hosts n1,n2 --max-age 2h\n"
    answer(cluster, answering(tmp_path, 1))
    number = job(cluster, "n1", "n2")
    cluster.until(lambda: state_of(cluster, number)["Restarts"] != "0", "the job is requeued")
    assert state_of(cluster, number)["JobState"] in ("PENDING", "CONFIGURING")
    assert "DRAIN" not in "".join(cluster.states().values())
    cluster.scontrol("hold", number)


def test_the_health_check_drains_its_node_and_ends_its_own_drain_alone(cluster, tmp_path):
    def check(code):
        done = subprocess.run(
            [SCRIPTS / "healthcheck.sh"],
            env={
                **cluster.env,
                "FABRICTIME": str(answering(tmp_path, code, "not fit: 1 errors, 'x'")),
                "FABRICTIME_DRAIN": "yes",
                "SLURMD_NODENAME": "n2",
            },
            check=False,
            timeout=30,
        )
        assert done.returncode == 0
        return cluster.states()["n2"]

    cluster.restore()
    assert "DRAIN" in check(1)
    assert "Reason=fabrictime-local: not fit: 1 errors, x [" in cluster.scontrol("-o", "show", "node", "n2")
    assert "DRAIN" in check(2)
    assert "DRAIN" not in check(0)
    cluster.until_in("n2")
    cluster.scontrol("update", "NodeName=n2", "State=DRAIN", "Reason=Anna")
    assert "DRAIN" in check(0)
    assert "DRAIN" in check(1)
    assert "Reason=Anna [" in cluster.scontrol("-o", "show", "node", "n2")


@pytest.mark.parametrize("name", sorted(path.name for path in SCRIPTS.glob("*.sh")))
def test_scripts_are_correct_posix_shell(name):
    assert subprocess.run(["sh", "-n", SCRIPTS / name], check=False).returncode == 0
    assert (SCRIPTS / name).stat().st_mode & 0o111
