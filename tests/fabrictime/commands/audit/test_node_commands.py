"""The commands `audit gate` and `audit act`: arguments, output and exit codes."""

import pytest

from tests.fabrictime.commands.audit.node_desk import Desk, fabrictime


@pytest.fixture
def desk(log, tmp_path):
    return Desk(log, tmp_path)


def test_admission_as_a_command(desk):
    run = desk.run(n4=["node.ecc"])
    done = fabrictime(desk, "gate", "--hosts", "n1 n2,n1", "--run", run)
    assert (done.returncode, done.stdout) == (0, "2 of 2 hosts are fit\n")
    assert fabrictime(desk, "gate", "--hosts", "n4", "--max-age", "1h").returncode == 1
    done = fabrictime(desk, "gate", "--hosts", " ")
    assert (done.returncode, done.stderr) == (2, "fabrictime: --hosts ' ': expected names such as h1,h2\n")
    nothing = Desk("127.0.0.1:1", desk.folder)
    assert fabrictime(nothing, "gate", "--hosts", "n1").returncode == 2
    desk.run()


def test_act_needs_a_scheduler_that_it_knows(desk):
    done = fabrictime(desk, "act", "--scheduler", "pbs")
    assert done.returncode == 2
    assert done.stderr == (
        "fabrictime: scheduler 'pbs': expected slurm, kubernetes or slinky (actuators.nodes.scheduler)\n"
    )
