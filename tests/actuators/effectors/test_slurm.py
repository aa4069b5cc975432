"""Drains and resumes in a real Slurm: slurmctld and one slurmd per node on loopback."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.effectors.node_base import NodeError
from actuators.effectors.slurm import Slurm, parse_nodes
from actuators.nodes.policy import NodeState
from tests.actuators.slurm_cluster import slurm_of

REASON = (
    "fabrictime: run=r1 checks=node.ecc,pcie.link: mc0: 3 uncorrectable errors = bad [DIMM 4]; expected 0"
)


@pytest.fixture(scope="module")
def slurm():
    with slurm_of("n1", "n2", "n3") as cluster:
        yield cluster


@pytest.fixture
def effector(slurm, monkeypatch):
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.env[name])
    yield Slurm()
    slurm.restore()


def states(effector):
    return {each.name: each for each in effector.nodes()}


def test_a_drain_shows_our_reason_and_a_resume_ends_it(slurm, effector):
    assert sorted(states(effector)) == ["n1", "n2", "n3"], "a FUTURE node does not count"
    effector.drain("n1", REASON)
    assert (states(effector)["n1"].is_out, states(effector)["n1"].reason) == (True, REASON)
    assert not states(effector)["n2"].is_out
    updates = slurm.updates("n1")
    assert updates == 1
    effector.drain("n1", REASON)
    assert slurm.updates("n1") == updates, "the same drain is not sent twice"
    effector.resume("n1")
    slurm.until_in("n1")
    assert states(effector)["n1"].reason == ""
    effector.resume("n1")


def test_the_owner_of_a_running_job_reads_of_the_drain_in_its_standard_error(slurm, effector, tmp_path):
    script, error = tmp_path / "job.sh", tmp_path / "job.err"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    assert effector.jobs("n1") == []
    slurm.run("sbatch", "--nodelist=n1", f"--error={error}", "--output=/dev/null", str(script))
    slurm.until(lambda: effector.jobs("n1"), "the job runs")
    (job,) = effector.jobs("n1")
    slurm.until(error.exists, "the job's standard error")
    effector.notify(job, "fabrictime: node n1 gets no new jobs")
    slurm.until(lambda: "node n1 gets no new jobs" in error.read_text(), "the message")
    slurm.run("scancel", job.name)
    slurm.until(lambda: not effector.jobs("n1"), "the job is over")
    with pytest.raises(NodeError, match="scontrol notify"):
        effector.notify(job, "late")


def test_a_drain_by_an_administrator_is_left_alone(slurm, effector):
    slurm.scontrol("update", "NodeName=n2", "State=DRAIN", "Reason=Anna: new riser")
    with pytest.raises(NodeError, match="node n2: already out, Anna: new riser"):
        effector.drain("n2", REASON)
    with pytest.raises(NodeError, match="node n2: drained by another, Anna: new riser"):
        effector.resume("n2")
    assert states(effector)["n2"].reason == "Anna: new riser"


def test_a_node_that_is_down_is_out_and_stays_down(slurm, effector):
    effector.drain("n3", REASON)
    slurm.scontrol("update", "NodeName=n3", "State=DOWN", f"Reason={REASON}")
    effector.resume("n3")
    found = states(effector)["n3"]
    assert (found.is_out, found.reason) == (True, "")
    assert found.state.startswith("DOWN")
    with pytest.raises(NodeError, match="node n3: drained by another, DOWN"):
        effector.resume("n3")


def test_a_refusal_of_slurm_is_one_line(effector):
    with pytest.raises(NodeError, match=r"scontrol --oneliner show node: exit code 1: Node n9 not found"):
        effector.drain("n9", REASON)


def test_a_scontrol_that_hangs_or_is_missing_is_one_line(effector, tmp_path, monkeypatch):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\nexec sleep 60\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(NodeError, match=r"scontrol --oneliner show nodes: no end within 0\.2 s"):
        Slurm(0.2).nodes()
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(NodeError, match="No such file or directory"):
        Slurm().nodes()


@pytest.mark.parametrize(
    ("state", "is_out"),
    [
        ("IDLE", False),
        ("MIXED", False),
        ("ALLOCATED+COMPLETING", False),
        ("IDLE+CLOUD+POWERED_DOWN", False),
        ("IDLE+DRAIN", True),
        ("ALLOCATED+DRAIN", True),
        ("DOWN*", True),
        ("IDLE+NOT_RESPONDING", True),
        ("IDLE+MAINTENANCE", True),
        ("FAILING", True),
        ("UNKNOWN", True),
    ],
)
def test_states_of_nodes(state, is_out):
    (found,) = parse_nodes(f"NodeName=n1 CPUTot=1 State={state} Weight=1\n\n")
    assert found == NodeState("n1", is_out, "", state)


def test_a_comment_after_the_reason_is_no_part_of_it():
    line = "NodeName=n1 State=IDLE+DRAIN A=1 Reason=a [b] c [root@2026-11-26T07:44:08] Comment=d [e@2026]"
    assert parse_nodes(line)[0].reason == "a [b] c"


@pytest.mark.parametrize("text", ["No nodes in the system", "NodeName=n1", "\x00", "State=IDLE NodeName=n1 "])
def test_another_output_is_refused(text):
    with pytest.raises(NodeError, match=r"expected NodeName=\.\.\. State=\.\.\."):
        parse_nodes(text)


PARTS = st.sampled_from(
    ["NodeName=n1", " ", "State=", "IDLE+DRAIN", "Reason=x [a@2026-01-01T00:00:00]", "\n", "=", "\x00"]
)


@given(st.lists(PARTS | st.text(max_size=6), max_size=12).map("".join))
def test_any_output_is_read_or_refused(text):
    with suppress(NodeError):
        assert all(isinstance(each, NodeState) for each in parse_nodes(text))


def test_a_node_that_does_not_answer_is_out_in_older_releases_too():
    (found,) = parse_nodes("NodeName=n1 Arch=x86_64 State=IDLE* ThreadsPerCore=1 ")
    assert found.is_out
