"""The part of the Kubernetes API server that node effectors and the audit use, over HTTP on loopback.

It serves nodes, their status and their pods, and takes events, with pages, resource versions and the
strategic merge of patches: lists of conditions merge by type, taints are replaced as a whole, null removes a
key. Volume claims are bound at the `binds_after`th read.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

TOKEN = "secret-token"
PATCH = "application/strategic-merge-patch+json"
NODE = re.compile(r"/api/v1/nodes/([^/]+)(/status)?")
CLAIM = re.compile(r"/api/v1/namespaces/([^/]+)/persistentvolumeclaims(?:/([^/]+))?")
EVENTS = re.compile(r"/api/v1/namespaces/([^/]+)/events")
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"


def node(name, **spec):
    return {
        "metadata": {"name": name, "resourceVersion": "1"},
        "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def pod(name, on, namespace="ml", owner="Job", conditions=(), phase="Running"):
    return {
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": [{"kind": owner}]},
        "spec": {"nodeName": on},
        "status": {"phase": phase, "conditions": [{"type": each, "status": "True"} for each in conditions]},
    }


def merged(old, patch):
    """Return a value after a strategic merge patch of a node."""
    if not isinstance(patch, dict) or not isinstance(old, dict):
        return patch
    found = dict(old)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif key == "conditions":
            kinds = {each["type"] for each in value}
            found[key] = [*(each for each in old.get(key, []) if each["type"] not in kinds), *value]
        else:
            found[key] = merged(old.get(key, {}), value)
    return {key: value for key, value in found.items() if value != {}}


class KubernetesServer:
    """Nodes by name. `before_patch` runs before each patch is applied, as another client would act."""

    def __init__(self, *nodes) -> None:
        self.nodes = {each["metadata"]["name"]: each for each in nodes}
        self.patches: list[tuple[str, dict]] = []
        self.before_patch: Callable[[str], None] | None = None
        self.classes: list[dict] = []
        self.claims: dict[str, dict] = {}
        self.created: list[dict] = []
        self.pods: list[dict] = []
        self.events: list[dict] = []
        self.binds_after = 2
        self.on_read: Callable[[str], None] | None = None
        """Runs before a claim is read."""
        self.refused_posts = 0
        self.answer: tuple[int, bytes] | None = None
        """Answers every request, if set."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                server._handle(self, None)

            def do_PATCH(self):
                server._handle(self, self._body())

            def do_POST(self):
                server._handle(self, self._body())

            def do_DELETE(self):
                self._body()
                server._handle(self, None)

            def _body(self):
                return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")

            def log_message(self, *arguments):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def condition(self, name, kind="FabrictimeUnfit"):
        found = [each for each in self.nodes[name]["status"]["conditions"] if each["type"] == kind]
        return found[0] if found else None

    def _handle(self, request, patch):
        if self.answer is not None:
            return self._answer(request, *self.answer)
        if request.headers["Authorization"] != f"Bearer {TOKEN}":
            return self._refuse(request, 401, "Unauthorized")
        url = urlsplit(request.path)
        if url.path == CLASSES:
            return self._send(request, {"items": self.classes})
        if claim := CLAIM.fullmatch(url.path):
            return self._claim(request, claim[2], patch)
        if url.path == "/api/v1/pods":
            return self._send(request, {"items": self._selected(parse_qs(url.query)["fieldSelector"][0])})
        if EVENTS.fullmatch(url.path) and request.command == "POST":
            self.events.append(patch)
            return self._send(request, patch)
        found = NODE.fullmatch(url.path)
        if url.path == "/api/v1/nodes" and patch is None:
            return self._list(request, parse_qs(url.query))
        if found is None or found[1] not in self.nodes:
            return self._refuse(request, 404, f'nodes "{found and found[1]}" not found')
        if patch is not None:
            if request.headers["Content-Type"] != PATCH:
                return self._refuse(request, 415, f"{request.headers['Content-Type']} is not supported")
            return self._patch(request, found[1], patch, "status" if found[2] else "spec")
        return self._send(request, self.nodes[found[1]])

    def _selected(self, selector):
        """Return the pods that a selector of two fields names."""
        node, phase = (part.partition("=")[2] for part in selector.split(","))
        return [p for p in self.pods if (p["spec"]["nodeName"], p["status"]["phase"]) == (node, phase)]

    def _claim(self, request, name, body):
        if request.command == "POST":
            self.claims[body["metadata"]["name"]] = body | {"reads": 0}
            self.created.append(body)
            if self.refused_posts:
                self.refused_posts -= 1
                return self._refuse(request, 500, "the connection to the store was lost")
            return self._send(request, body)
        if self.on_read is not None and request.command == "GET":
            self.on_read(name)
        found = self.claims.get(name)
        if found is None:
            return self._refuse(request, 404, f'persistentvolumeclaims "{name}" not found')
        if request.command == "DELETE":
            return self._send(request, self.claims.pop(name))
        found["reads"] += 1
        return self._send(
            request,
            found | {"status": {"phase": "Bound" if found["reads"] >= self.binds_after else "Pending"}},
        )

    def _list(self, request, query):
        names = sorted(self.nodes)
        first, limit = int(query.get("continue", ["0"])[0]), int(query.get("limit", ["500"])[0])
        more = {"continue": str(first + limit)} if first + limit < len(names) else {}
        page = [self.nodes[name] for name in names[first : first + limit]]
        self._send(request, {"items": page, "metadata": more})

    def _patch(self, request, name, patch, part):
        if self.before_patch is not None:
            self.before_patch(name)
        version = self.nodes[name]["metadata"]["resourceVersion"]
        if patch.get("metadata", {}).get("resourceVersion", version) != version:
            return self._refuse(request, 409, "the object has been modified")
        if set(patch) - {"metadata", part}:
            return self._refuse(request, 422, f"{set(patch)}: expected {part}")
        self.nodes[name] = merged(self.nodes[name], patch)
        self.nodes[name]["metadata"]["resourceVersion"] = str(int(version) + 1)
        self.patches.append((name, patch))
        return self._send(request, self.nodes[name])

    def _refuse(self, request, code, message):
        self._answer(request, code, json.dumps({"kind": "Status", "message": message}).encode())

    def _send(self, request, value):
        self._answer(request, 200, json.dumps(value).encode())

    def _answer(self, request, code, body):
        request.send_response(code)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def kubeconfig(self, path: Path, token: str = TOKEN) -> Path:
        """Write a kubeconfig file for this server."""
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "test", "cluster": {"server": self.url}}],
                    "users": [{"name": "test", "user": {"token": token}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                }
            )
        )
        return path

    @contextmanager
    def running(self) -> Iterator[KubernetesServer]:
        thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            thread.join()
            self._http.server_close()
