"""The manifests of the chart for several sets of values, rendered by the real Helm."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes import binaries

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "docker/helm/fabrictime"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
FLEET = '[[nics]]\nhost = "n1"\ndevice = "eth0"\naddress = "10.0.0.1"\n'
SECURED = (
    VALUES["config"]
    + """
[kafka]
tls = true
tls_ca_file = "/run/secrets/kafka/ca.crt"
sasl_mechanism = "SCRAM-SHA-512"
sasl_username = "fabrictime"
sasl_password_file = "/run/secrets/kafka/password"

[notify.receivers.oncall]
type = "apprise"
url_file = "/run/secrets/notify/oncall"

[actuators.nodes]
scheduler = "kubernetes"
"""
)
TOLERATIONS = [{"operator": "Exists"}]
SETS: dict[str, dict[str, Any]] = {
    "default": {},
    "everything": {
        "config": SECURED,
        "image": {"tag": "1.2.3", "pullSecrets": [{"name": "site"}]},
        "secrets": {"kafka": "kafka-client", "notify": "receivers"},
        "agent": {
            "fleet": FLEET,
            "mounts": [{"name": "dumps", "hostPath": "/var/log/jobs", "mountPath": "/dumps"}],
            "nodeSelector": {"gpu": "yes"},
            "tolerations": TOLERATIONS,
            "affinity": {"nodeAffinity": {}},
            "priorityClassName": "system-node-critical",
            "podAnnotations": {"team": "fabric"},
            "env": [{"name": "FABRICTIME_KAFKA_SASL_USERNAME", "value": "agent"}],
        },
        "services": {"notify": {"enabled": True}, "worker": {"tolerations": TOLERATIONS}},
        "pods": {"podAnnotations": {"team": "fabric"}, "env": [{"name": "TZ", "value": "UTC"}]},
        "autoscaling": {"kind": "keda", "kedaAuthentication": "kafka"},
        "drain": {"enabled": True},
        "preflight": {"enabled": True, "annotations": {"cert-manager.io/inject-ca-from": "fabrictime/ca"}},
        "networkPolicy": {
            "enabled": True,
            "metricsFrom": [{"namespaceSelector": {}}],
            "webFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
            "egress": [{"ports": [{"port": 9092}]}],
        },
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    },
    "control plane": {
        "agent": {"enabled": False},
        "topics": {"create": False},
        "autoscaling": {"kind": "hpa"},
        "services": {"web": {"replicas": 2}},
        "networkPolicy": {"enabled": True},
    },
    "openshift": {"openshift": {"enabled": True}, "agent": {"devices": ["eth1", "eth2"], "rack": "r1"}},
}


def template(values: dict[str, Any], folder: Path, *, lint: bool = False, release: str = "fabrictime") -> Any:
    """Run `helm template`, or `helm lint`, with values; return the finished process."""
    file = folder / "values.json"
    file.write_text(yaml.safe_dump(values))
    if lint:
        return binaries.run("helm", "lint", "--strict", str(CHART), "-f", str(file))
    place = ("--namespace", "fabrictime")
    return binaries.run("helm", "template", release, str(CHART), *place, "-f", str(file))


@cache
def rendered(name: str) -> tuple[Any, ...]:
    """Return the manifests for a set of values."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        done = template(SETS[name], Path(folder))
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def documents(text: str) -> tuple[Any, ...]:
    """Return the manifests of a YAML stream."""
    return tuple(each for each in yaml.safe_load_all(text) if each)


def manifest(name: str, kind: str, component: str = "") -> Any:
    """Return the one manifest of a kind, and of a component if it is named."""
    [found] = [
        each
        for each in rendered(name)
        if each["kind"] == kind and each["metadata"]["name"].endswith(component)
    ]
    return found


def pod_specs(manifests: tuple[Any, ...]) -> dict[str, Any]:
    """Return the pods' specs by the names of their components."""
    specs = {}
    for each in manifests:
        if each["kind"] not in ("DaemonSet", "Deployment"):
            continue
        pod = each["spec"]["template"]
        specs[pod["metadata"]["labels"]["app.kubernetes.io/component"]] = pod["spec"]
    return specs


def containers(spec: Any) -> list[Any]:
    """Return the containers of a pod, the initial ones first."""
    return [*spec.get("initContainers", []), *spec["containers"]]


def settings(name: str) -> dict[str, Any]:
    """Return the rendered settings as tables."""
    return tomllib.loads(manifest(name, "ConfigMap", "settings")["data"]["fabrictime.toml"])
