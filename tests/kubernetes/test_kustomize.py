"""Kustomize: the base is what Helm renders, and each overlay changes what its file says and no more."""

import copy

import pytest
import yaml

from tests.kubernetes import binaries
from tests.kubernetes.charts import ROOT, documents, pod_specs, rendered

OVERLAYS = ROOT / "docker/kustomize"


def _build(folder):
    helm = str(binaries.folder() / "helm")
    done = binaries.run("kubectl", "kustomize", "--enable-helm", "--helm-command", helm, str(folder))
    assert done.returncode == 0, done.stderr
    return {(each["kind"], each["metadata"]["name"]): each for each in documents(done.stdout)}


def _rendered():
    """Return the manifests of Helm by kind and name."""
    return {(each["kind"], each["metadata"]["name"]): each for each in copy.deepcopy(rendered("default"))}


def test_the_base_is_the_chart():
    assert _build(ROOT / "docker/helm") == _rendered()


def test_the_overlays_are_there():
    folders = {file.parent.name for file in OVERLAYS.glob("*/kustomization.yaml")}
    assert folders == {"gpu-fleet", "air-gapped"}


def test_gpu_nodes_get_agents_and_eight_workers_run():
    expected = _rendered()
    expected["Deployment", "fabrictime-worker"]["spec"]["replicas"] = 8
    expected["DaemonSet", "fabrictime-agent"]["spec"]["template"]["spec"] |= {
        "nodeSelector": {"nvidia.com/gpu.present": "true"},
        "priorityClassName": "system-node-critical",
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    }
    assert _build(OVERLAYS / "gpu-fleet") == expected


def test_without_internet_every_image_comes_from_the_site():
    expected = _rendered()
    for spec in pod_specs(tuple(expected.values())).values():
        spec["imagePullSecrets"] = [{"name": "site-registry"}]
        for each in [*spec.get("initContainers", []), *spec["containers"]]:
            each["image"] = "registry.example/fabrictime/fabrictime:0.1.0"
    assert _build(OVERLAYS / "air-gapped") == expected


@pytest.mark.parametrize("folder", [ROOT / "docker/helm", *sorted(OVERLAYS.glob("*"))])
def test_no_manifest_is_written_twice(folder):
    text = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(text) <= {
        "namespace",
        "helmGlobals",
        "helmCharts",
        "resources",
        "replicas",
        "patches",
        "images",
    }
