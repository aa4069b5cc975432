"""`audit gate` and `audit act` with a real log and a real Slurm: a planted fault drains, a clean run
resumes."""

import json
import os

import pytest

from actuators.nodes.service import alone
from fabrictime.commands.audit.nodes import act, admit, host_names
from fabrictime.commands.views import actions
from schemas.input_error import InputError
from schemas.records import ActMode, FlowAction
from schemas.topics import AUDIT
from tests.actuators.audit_results import result, run_of
from tests.actuators.kubernetes_server import KubernetesServer, node
from tests.actuators.slurm_cluster import slurm_of
from tests.fabrictime.commands.audit.node_desk import NAMES, Desk, fabrictime


@pytest.fixture
def desk(log, tmp_path):
    found = Desk(log, tmp_path)
    found.mode(ActMode.ACT, FlowAction.DRAIN, FlowAction.RESUME)
    return found


@pytest.fixture(scope="module")
def cluster():
    with slurm_of(*NAMES) as found:
        yield found


@pytest.fixture
def slurm(cluster, monkeypatch):
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, cluster.env[name])
    yield cluster
    cluster.restore()


def test_a_planted_fault_drains_the_node_and_a_clean_run_brings_it_back(desk, slurm, capsys):
    bad = desk.run(n2=["backend.carrier"])
    assert act(desk.settings) == 0
    reason = f"fabrictime: run={bad} checks=backend.carrier: mlx5_0:  carrier  is down, expected up"
    assert capsys.readouterr().out == f"APPLIED drain n2: {reason}\n"
    assert slurm.states()["n2"] == "IDLE+DRAIN"
    assert f"Reason={reason} [" in slurm.scontrol("-o", "show", "node", "n2")
    assert desk.reports(bad) == [("DRAIN", "n2", "APPLIED")]

    assert act(desk.settings) == 0
    assert capsys.readouterr().out.startswith("none resume n2: backend.carrier passed in 0 runs since")
    assert desk.reports(bad) == [("DRAIN", "n2", "APPLIED")]

    clean = desk.run()
    assert act(desk.settings) == 0
    assert capsys.readouterr().out == (
        f"APPLIED resume n2: backend.carrier passed in run {clean}; drained by run {bad}\n"
    )
    slurm.until_in("n2")
    assert desk.reports(clean) == [("RESUME", "n2", "APPLIED")]
    text = f"backend.carrier passed in run {clean}; drained by run {bad}"
    assert desk.repairs(bad) == [("n2", "ENDED", text)]
    assert act(desk.settings) == 0
    assert capsys.readouterr().out == "no action: no node is unfit, and none is drained by an audit\n"


def test_a_node_drained_by_an_administrator_is_never_resumed(desk, slurm, capsys):
    slurm.scontrol("update", "NodeName=n1", "State=DRAIN", "Reason=Anna: new riser")
    bad = desk.run(n1=["node.ecc"])
    act(desk.settings)
    assert capsys.readouterr().out == "none drain n1: already out: Anna: new riser\n"
    clean = desk.run()
    act(desk.settings)
    assert slurm.states()["n1"] == "IDLE+DRAIN"
    assert desk.reports(bad) == desk.reports(clean) == []


def test_a_drain_that_an_administrator_takes_over_is_not_resumed(desk, slurm):
    bad = desk.run(n1=["node.ecc"])
    act(desk.settings)
    slurm.scontrol("update", "NodeName=n1", "Reason=Anna: keep")
    desk.run()
    act(desk.settings)
    assert slurm.states()["n1"] == "IDLE+DRAIN"
    assert desk.repairs(bad) == [("n1", "ENDED", "taken over: Anna: keep")]


def test_the_breaker_stops_at_the_share_and_counts_the_drains_of_others(desk, slurm, capsys):
    slurm.scontrol("update", "NodeName=n4", "State=DRAIN", "Reason=Anna")
    bad = desk.run(n1=["node.ecc"], n2=["node.ecc", "pcie.link"], n3=["node.ecc"])
    assert act(desk.settings) == 0
    drained = sorted(name for name, state in slurm.states().items() if "DRAIN" in state)
    assert drained == ["n2", "n4"]
    assert sorted(desk.reports(bad)) == [
        ("DRAIN", "n1", "LIMITED"),
        ("DRAIN", "n2", "APPLIED"),
        ("DRAIN", "n3", "LIMITED"),
    ]
    expected = "LIMITED drain n1: circuit breaker: 2 of 4 nodes are out, at most 2 may be (max_out_share 0.5)"
    assert expected in capsys.readouterr().out
    desk.run()
    act(desk.settings)
    slurm.until_in("n1", "n2", "n3")


@pytest.mark.parametrize(
    ("mode", "allowed", "options", "outcome"),
    [
        (ActMode.OBSERVE, [FlowAction.DRAIN], {}, "OBSERVED"),
        (ActMode.ACT, [FlowAction.DRAIN], {"observe": True}, "OBSERVED"),
        (ActMode.ACT, [], {}, "NOT_ALLOWED"),
    ],
)
def test_nothing_is_done_without_mode_and_permission(desk, slurm, mode, allowed, options, outcome):
    desk.mode(mode, *allowed)
    bad = desk.run(n1=["node.ecc"])
    assert act(desk.settings, **options) == 0
    assert slurm.states()["n1"] == "IDLE"
    assert desk.reports(bad) == [("DRAIN", "n1", outcome)]
    desk.run()


def test_a_kill_between_drain_and_report_applies_nothing_twice(desk, slurm, capsys):
    """`scontrol` kills its caller with SIGKILL once slurmctld has taken the update."""
    folder = desk.folder / "bin"
    folder.mkdir()
    wrapper = folder / "scontrol"
    wrapper.write_text(
        '#!/bin/sh\n/usr/bin/scontrol "$@"\ncode=$?\n[ "$1" = update ] && kill -9 $PPID\nexit $code\n'
    )
    wrapper.chmod(0o755)
    killing = {"PATH": f"{folder}:{os.environ['PATH']}"}
    before = slurm.updates("n3")
    bad = desk.run(n3=["pcie.link"])
    assert fabrictime(desk, "act", **killing).returncode == -9
    assert slurm.states()["n3"] == "IDLE+DRAIN"
    assert desk.reports(bad) == []
    assert desk.repairs(bad) == [("n3", "DRAINING", "")]
    assert act(desk.settings) == 0
    assert desk.repairs(bad) == [("n3", "OPEN", "")]
    assert capsys.readouterr().out.startswith(f"APPLIED drain n3: fabrictime: run={bad} ")
    assert desk.reports(bad) == [("DRAIN", "n3", "APPLIED")]
    assert slurm.updates("n3") == before + 1

    clean = desk.run()
    assert fabrictime(desk, "act", **killing).returncode == -9
    assert desk.reports(clean) == []
    assert act(desk.settings) == 0
    assert desk.reports(clean) == [("RESUME", "n3", "APPLIED")]


def test_actions_lists_a_drain_with_its_reason(desk, slurm, capsys):
    bad = desk.run(n4=["node.ecc"])
    act(desk.settings)
    desk.run()
    capsys.readouterr()
    actions.main(desk.cluster, actions.Wanted(("n4",)))
    shown = capsys.readouterr().out
    assert "n4 node n4" in shown
    assert "drain the node" in shown
    assert f"run={bad}" in shown


def test_a_scheduler_that_refuses_is_exit_code_1_and_one_that_is_absent_2(desk, slurm):
    bad = desk.run(n1=["node.ecc"])
    folder = desk.folder / "refusing"
    folder.mkdir()
    wrapper = folder / "scontrol"
    wrapper.write_text(
        '#!/bin/sh\n[ "$1" = update ] && { echo "slurm_update error: Access denied" >&2; exit 1; }\n'
        'exec /usr/bin/scontrol "$@"\n'
    )
    wrapper.chmod(0o755)
    done = fabrictime(desk, "act", PATH=f"{folder}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "FAILED drain n1: scontrol update" in done.stdout
    assert desk.reports(bad) == [("DRAIN", "n1", "FAILED")]
    wrapper.write_text(
        "#!/bin/sh\necho 'slurm_load_node error: Unable to contact slurm controller' >&2\nexit 1\n"
    )
    done = fabrictime(desk, "act", PATH=f"{folder}:{os.environ['PATH']}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "fabrictime: scontrol --oneliner show nodes: exit code 1: "
        "slurm_load_node error: Unable to contact slurm controller\n"
    )
    desk.run()


def test_one_process_acts_at_a_time(desk, slurm):
    with (
        alone(desk.settings.node_lock_path),
        pytest.raises(InputError, match="another process acts on nodes"),
    ):
        act(desk.settings)


def test_kubernetes_is_drained_and_resumed(desk, capsys):
    pytest.importorskip("kubernetes", reason="the package kubernetes is missing (extra kubernetes)")
    with KubernetesServer(*map(node, NAMES)).running() as server:
        settings = desk.with_nodes(
            scheduler="kubernetes", max_out_share=0.5, kubeconfig=server.kubeconfig(desk.folder / "config")
        )
        bad = desk.run(n2=["backend.carrier"])
        assert act(settings, as_json=True) == 0
        line = json.loads(capsys.readouterr().out)
        assert (line["node"], line["action"], line["outcome"], line["run"]) == ("n2", "DRAIN", "APPLIED", bad)
        assert server.nodes["n2"]["spec"]["unschedulable"]
        desk.run()
        assert act(settings) == 0
        assert "spec" not in server.nodes["n2"]


def test_an_unknown_scheduler_is_refused(desk):
    with pytest.raises(InputError, match="scheduler 'none': expected slurm, kubernetes or slinky"):
        act(desk.with_nodes())


def test_fit_hosts_alone_are_admitted(desk, capsys):
    desk.run()
    assert admit(desk.cluster, ["n1", "n2"]) == 0
    assert capsys.readouterr().out == "2 of 2 hosts are fit\n"
    bad = desk.run(n2=["node.ecc"])
    assert admit(desk.cluster, ["n1", "n2", "n9"]) == 1
    assert capsys.readouterr().out == (
        "n2: unfit: node.ecc: mlx5_0: 'carrier' is down, expected up\n"
        "n9: unknown: no result\n"
        "1 of 3 hosts are fit\n"
    )
    clean = desk.run()
    assert admit(desk.cluster, ["n2"], run=bad) == 1
    assert admit(desk.cluster, ["n2"], run=clean) == 0
    assert admit(desk.cluster, ["n9"], run=clean) == 2
    assert admit(desk.cluster, ["n1"], max_age_s=1e-6) == 2
    capsys.readouterr()
    assert admit(desk.cluster, ["n1", "n9"], as_json=True) == 2
    assert json.loads(capsys.readouterr().out) == {
        "exit_code": 2,
        "hosts": [
            {"host": "n1", "fitness": "FIT", "reasons": []},
            {"host": "n9", "fitness": "UNKNOWN", "reasons": ["no result"]},
        ],
    }


def test_an_incomplete_run_is_not_known_to_be_fit(desk):
    desk.publisher.publish(AUDIT, "part", result("n7", run="part"))
    for record in run_of("n8", "part", ["node.ecc"], status="UNKNOWN"):
        desk.publisher.publish(AUDIT, "part", record)
    desk.publisher.flush(10)
    assert admit(desk.cluster, ["n7"]) == 2
    assert admit(desk.cluster, ["n8"]) == 0
    assert admit(desk.cluster, ["n8"], strict=True) == 2


def test_host_lists():
    assert host_names("h1, h2\nh1 h3,") == ["h1", "h2", "h3"]
    with pytest.raises(InputError, match="expected names such as h1,h2"):
        host_names(" ,")
