"""Claims a small volume in Kubernetes, waits until it is bound, deletes the claim, and prints the delay.

It runs as a process of its own: the client is large, and a time-out of the caller must not leave the claim
behind. The claim's name is fixed for each host; a claim that an earlier run left is deleted first. For a
storage class that waits for the first consumer, the claim names the node, as a scheduler would.

It needs the package `kubernetes` and the rights to create, get and delete persistentvolumeclaims in the
namespace, and to list storageclasses.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, Final

SIZE: Final = "1Gi"
NODE: Final = "volume.kubernetes.io/selected-node"
DEFAULT: Final = "storageclass.kubernetes.io/is-default-class"
LABEL: Final = {"app.kubernetes.io/managed-by": "fabrictime-audit"}
REQUEST_S: Final = 10.0
POLL_S: Final = 0.5
SERVICE_ACCOUNT: Final = "KUBERNETES_SERVICE_HOST"


class NoCluster(Exception):
    """There is no cluster to ask: the package or the configuration is missing."""


class Refused(Exception):
    """The API server does not answer, or refuses a request."""


def claim_name(host: str) -> str:
    """Return the name of a host's claim, in characters that Kubernetes allows."""
    plain = re.sub(r"[^a-z0-9]+", "-", host.lower()).strip("-")
    return f"fabrictime-audit-{plain}"[:63].rstrip("-")


class Claims:
    """The volume claims of one namespace."""

    def __init__(self, namespace: str) -> None:
        """Read the user's configuration file, else the pod's configuration. Raises NoCluster."""
        try:
            client, config = import_module("kubernetes.client"), import_module("kubernetes.config")
        except ImportError:
            raise NoCluster(
                "the package kubernetes is missing: pip install 'fabrictime[kubernetes]'"
            ) from None
        configuration = client.Configuration()
        file = os.environ.get("KUBECONFIG", config.KUBE_CONFIG_DEFAULT_LOCATION)
        try:
            if SERVICE_ACCOUNT in os.environ and not Path(file).expanduser().exists():
                config.load_incluster_config(configuration)
            else:
                config.load_kube_config(file, client_configuration=configuration)
        except (config.ConfigException, OSError, TypeError) as error:
            raise NoCluster(f"no cluster: {error}") from None
        configuration.retries = 1
        api = client.ApiClient(configuration)
        self._core, self._storage = client.CoreV1Api(api), client.StorageV1Api(api)
        self._errors = (client.ApiException, import_module("urllib3.exceptions").HTTPError, OSError)
        self._namespace = namespace

    def storage_class(self, name: str) -> dict[str, Any]:
        """Return the storage class `name`; the default class if `name` is empty. Raises Refused."""
        for item in self._call(self._storage.list_storage_class)["items"]:
            notes = item["metadata"].get("annotations") or {}
            if item["metadata"]["name"] == name or (not name and notes.get(DEFAULT) == "true"):
                storage_class: dict[str, Any] = item
                return storage_class
        raise Refused(f"no storage class {name}" if name else "no default storage class")

    def create(self, name: str, storage_class: Mapping[str, Any], node: str) -> None:
        """Create a claim. Raises Refused."""
        waits = storage_class.get("volumeBindingMode") == "WaitForFirstConsumer"
        metadata = {"name": name, "labels": LABEL, "annotations": {NODE: node} if waits else {}}
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class["metadata"]["name"],
            "resources": {"requests": {"storage": SIZE}},
        }
        body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
        self._call(self._core.create_namespaced_persistent_volume_claim, self._namespace, body)

    def phase(self, name: str) -> str:
        """Return the phase of a claim, such as Bound; empty if there is none. Raises Refused."""
        method = self._core.read_namespaced_persistent_volume_claim
        claim = self._call(method, name, self._namespace, absent=True)
        return str((claim.get("status") or {}).get("phase", "Pending")) if claim else ""

    def delete(self, name: str) -> None:
        """Delete a claim if it exists. Raises Refused."""
        method = self._core.delete_namespaced_persistent_volume_claim
        self._call(method, name, self._namespace, absent=True)

    def _call(self, method: Any, *arguments: Any, absent: bool = False) -> dict[str, Any]:
        try:
            answer = method(*arguments, _request_timeout=REQUEST_S, _preload_content=False)
            content: dict[str, Any] = json.loads(answer.data)
        except self._errors as error:
            if absent and getattr(error, "status", None) == 404:
                return {}
            raise Refused(" ".join(f"Kubernetes: {type(error).__name__}: {error}".split())[:300]) from None
        except ValueError:
            raise Refused("Kubernetes: an answer that is no JSON") from None
        return content


@contextlib.contextmanager
def _claimed(claims: Claims, name: str, storage_class: Mapping[str, Any], node: str) -> Iterator[None]:
    """Create a claim, and delete it at the end in any case, even if its creation was not confirmed."""
    try:
        claims.create(name, storage_class, node)
        yield
    finally:
        claims.delete(name)


def bound_s(claims: Claims, name: str, class_name: str, node: str, limit_s: float) -> float | None:
    """Create a claim; return the seconds until it was bound, None beyond the limit. Raises Refused."""
    storage_class = claims.storage_class(class_name)
    until_s = time.monotonic() + limit_s
    if claims.phase(name):
        claims.delete(name)
        while claims.phase(name) and time.monotonic() < until_s:
            time.sleep(POLL_S)
    began_s = time.monotonic()
    with _claimed(claims, name, storage_class, node):
        while (now_s := time.monotonic()) < began_s + limit_s:
            if claims.phase(name) == "Bound":
                return now_s - began_s
            time.sleep(POLL_S)
    return None


def _stopped(number: int, frame: FrameType | None) -> None:
    raise SystemExit(f"ended by signal {number}")


def main() -> None:
    """Print the delay as JSON: `bound_s`, null if the claim was not bound, or `missing` with the reason."""
    parser = argparse.ArgumentParser(description="Claim a small volume in Kubernetes.")
    parser.add_argument("namespace")
    parser.add_argument("storage_class", help="empty: the default class")
    parser.add_argument("limit_s", type=float)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _stopped)
    host = socket.gethostname()
    try:
        claims = Claims(options.namespace)
        duration_s = bound_s(claims, claim_name(host), options.storage_class, host, options.limit_s)
    except NoCluster as error:
        print(json.dumps({"missing": str(error)}))
    except Refused as error:
        raise SystemExit(str(error)) from None
    else:
        print(json.dumps({"bound_s": duration_s}))


if __name__ == "__main__":
    main()
