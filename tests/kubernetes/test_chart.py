"""The Helm chart: Helm and Kubernetes accept it; its names, settings and rights are those of our code."""

import json
import re
import tempfile
from functools import cache
from pathlib import Path

import kubernetes_validate
import pytest
import typer.main
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from kubernetes_validate import utils

from fabrictime.audit.webhook import PREFLIGHT
from fabrictime.commands.cli import app
from fabrictime.runtime import config, service
from schemas.topics import TOPICS
from tests.examples import examples
from tests.kubernetes import binaries, charts
from tests.kubernetes.charts import CHART, ROOT, SETS, VALUES, containers, manifest, pod_specs, rendered
from tools import chart_values

VERSIONS = ("1.33", "1.34", "1.35", "1.36", "1.37")
FOREIGN = {"ScaledObject", "PodMonitor", "SecurityContextConstraints"}
"""Kinds that operators or OpenShift define; Kubernetes has no schema of them."""
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
PORTS = {"metrics", "web"}


@pytest.mark.parametrize("name", SETS)
def test_helm_lint_accepts_the_chart(name, tmp_path):
    done = charts.template(SETS[name], tmp_path, lint=True)
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout


@pytest.fixture(autouse=True, scope="module")
def _read_each_schema_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", cache(utils.schema_contents))
        yield


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_accepts_every_manifest(version):
    assert utils.latest_version().startswith(VERSIONS[-1]), "the schemas are newer than the tested versions"
    kinds = set()
    for name in SETS:
        for each in rendered(name):
            kinds.add(each["kind"])
            if each["kind"] not in FOREIGN:
                assert kubernetes_validate.validate(each, version, strict=True) == version
    assert kinds >= FOREIGN | {
        "DaemonSet",
        "Deployment",
        "HorizontalPodAutoscaler",
        "NetworkPolicy",
    }


SWITCHES = (
    "topics.create",
    "agent.enabled",
    *(f"services.{name}.enabled" for name in VALUES["services"] if name != "notify"),
    "preflight.enabled",
    "podDisruptionBudget.enabled",
    "networkPolicy.enabled",
    "podMonitor.enabled",
    "openshift.enabled",
)


@given(
    switches=st.sets(st.sampled_from(SWITCHES)),
    kind=st.sampled_from(["none", "keda", "hpa"]),
    release=st.from_regex(r"[a-z]([a-z0-9-]{0,51}[a-z0-9])?", fullmatch=True),
)
@settings(max_examples=examples(100))
def test_every_combination_of_switches_is_consistent(switches, kind, release):
    values = {"autoscaling": {"kind": kind}}
    for switch in SWITCHES:
        below = values
        *path, last = switch.split(".")
        for key in path:
            below = below.setdefault(key, {})
        below[last] = switch in switches
    with tempfile.TemporaryDirectory() as folder:
        done = charts.template(values, Path(folder), release=release)
    assert done.returncode == 0, done.stderr
    manifests = charts.documents(done.stdout)
    names = {(each["kind"], each["metadata"]["name"]) for each in manifests}
    assert len(names) == len(manifests)
    for each in manifests:
        assert len(each["metadata"]["name"]) <= 63
        if each["kind"] not in FOREIGN:
            kubernetes_validate.validate(each, VERSIONS[-1], strict=True)
        target = each.get("roleRef") or each.get("spec", {}).get("scaleTargetRef")
        assert not target or (target.get("kind", "Deployment"), target["name"]) in names
    for spec in pod_specs(manifests).values():
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert all(
            ("ConfigMap", volume["configMap"]["name"]) in names
            for volume in volumes.values()
            if "configMap" in volume
        )
        assert ("ServiceAccount", spec.get("serviceAccountName")) in names or "serviceAccountName" not in spec
        for container in containers(spec):
            assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)


def test_the_chart_is_packed(tmp_path):
    done = binaries.run("helm", "package", str(CHART), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    packed = tmp_path / "fabrictime-0.1.0.tgz"
    done = binaries.run("helm", "template", "fabrictime", str(packed), "--namespace", "fabrictime")
    assert charts.documents(done.stdout) == rendered("default")


def test_a_wrong_manifest_is_refused():
    deployment = json.loads(json.dumps(manifest("default", "Deployment", "links")))
    deployment["spec"]["template"]["spec"]["containers"][0]["imagepullpolicy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("name", SETS)
def test_objects_have_one_name_and_labels_of_the_release(name):
    names = [(each["kind"], each["metadata"]["name"]) for each in rendered(name)]
    assert len(set(names)) == len(names)
    for each in rendered(name):
        assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == "fabrictime"
        is_cluster = each["kind"] in {
            *("ClusterRole", "ClusterRoleBinding", "SecurityContextConstraints"),
            "ValidatingWebhookConfiguration",
        }
        assert each["metadata"].get("namespace") == (None if is_cluster else "fabrictime")
        if "selector" in each.get("spec", {}) and "template" in each["spec"]:
            pod = each["spec"]["template"]["metadata"]["labels"]
            assert each["spec"]["selector"]["matchLabels"].items() <= pod.items()


def test_the_services_are_those_of_the_compose_file():
    ours = {name for name, each in COMPOSE.items() if each.get("command", [""])[0] == "service"}
    pods = pod_specs(rendered("everything"))
    assert set(pods) == ours | {"agent", "notify", "drain", "preflight"}
    for name in {*ours, "notify"}:
        [container] = pods[name]["containers"]
        assert name in service.SERVICES
        assert container["args"] == ["service", name, "--config", "/etc/fabrictime/fabrictime.toml"]
        if name in ours:
            assert container["args"] == COMPOSE[name]["command"]
    assert pods["worker"]["initContainers"][0]["args"] == COMPOSE["topics"]["command"]
    assert "initContainers" not in pod_specs(rendered("control plane"))["worker"]


def test_the_groups_asked_for_health_are_those_of_the_compose_file():
    pods = pod_specs(rendered("default"))
    for name in ("worker", "links", "policy", "sink"):
        probe = pods[name]["containers"][0]["readinessProbe"]
        assert probe["exec"]["command"] == COMPOSE[name]["healthcheck"]["test"][1:]


@pytest.mark.parametrize("name", SETS)
def test_one_image_serves_every_container(name):
    expected = f"fabrictime:{SETS[name].get('image', {}).get('tag') or '0.1.0'}"
    images = {each["image"] for spec in pod_specs(rendered(name)).values() for each in containers(spec)}
    assert images == {expected}
    assert COMPOSE["worker"]["image"] == "fabrictime:0.1.0"
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{chart["appVersion"]}"\n' in project


@pytest.mark.parametrize("name", SETS)
def test_the_settings_are_accepted(name, tmp_path):
    file = tmp_path / "fabrictime.toml"
    file.write_text(manifest(name, "ConfigMap", "settings")["data"]["fabrictime.toml"])
    loaded = config.load(file)
    # The files of secrets exist in the pods alone; all other tables are checked as by `config check`.
    for table in sorted(set(config.TABLES) - {"kafka"}):
        getattr(loaded, table)
    assert loaded.kafka.bootstrap == "kafka:9092"


def _read_by(pod: str) -> set[str]:
    """Return the settings of secrets' files that the processes of a pod read."""
    own = {
        "sink": ["up.history_password_file"],
        "web": ["web.history_token_file"],
        "agent": ["probes.key_file"],
    }
    return {"kafka.tls_ca_file", "kafka.sasl_password_file", *own.get(pod, [])}


@pytest.mark.parametrize("name", SETS)
def test_secrets_are_mounted_where_they_are_read_and_nowhere_else(name):
    tables = charts.settings(name)
    for pod, spec in pod_specs(rendered(name)).items():
        for container in containers(spec):
            mounts = {each["mountPath"] for each in container["volumeMounts"]}
            files = [tables.get(key.split(".")[0], {}).get(key.split(".")[1]) for key in _read_by(pod)]
            if pod == "web":
                files.append(tables["web"]["login"]["users_file"])
            if pod == "notify":
                files += [each["url_file"] for each in tables["notify"]["receivers"].values()]
            if pod == "preflight":
                files.append("/run/secrets/preflight/tls.crt")
            expected = {str(Path(file).parent) for file in files if file}
            assert {mount for mount in mounts if mount.startswith("/run/secrets")} == expected, pod
        for volume in spec["volumes"]:
            if "secret" in volume:
                assert volume["secret"]["defaultMode"] == (0o400 if pod == "agent" else 0o440)
                assert volume["secret"]["secretName"] in {
                    *VALUES["secrets"].values(),
                    *SETS[name].get("secrets", {}).values(),
                }


def test_templates_name_settings_that_exist_with_their_defaults():
    text = "".join(file.read_text() for file in sorted((CHART / "templates").iterdir()))
    uses = re.findall(r'dig "(\w+)" "(\w+)" (\S+) ', text)
    assert len(uses) >= 5
    defaults = {
        "metrics.port": "8481",
        "notify.receivers": "dict",
        "actuators.nodes": "dict",
        "up.log_url": '""',
    }
    for table, key, default in uses:
        field = config.model_of(table).model_fields[key]
        expected = defaults.get(f"{table}.{key}", json.dumps(field.default, default=str))
        assert default == expected, f"{table}.{key}"
    for topic in re.findall(r"topic: (\S+)", text):
        assert topic in TOPICS


def test_ports_come_from_the_settings(tmp_path):
    text = VALUES["config"].replace("port = 8481", "port = 7001").replace("[web]\n", "[web]\nport = 7002\n")
    done = charts.template({"config": text, "networkPolicy": {"enabled": True}}, tmp_path)
    manifests = charts.documents(done.stdout)
    ports = {
        (each["name"], each["containerPort"])
        for spec in pod_specs(manifests).values()
        for container in spec["containers"]
        for each in container["ports"]
    }
    assert ports == {("metrics", 7001), ("web", 7002)}
    [web] = [each for each in manifests if each["kind"] == "Service"]
    assert web["spec"]["ports"][0]["port"] == 7002


@pytest.mark.parametrize("name", SETS)
def test_probes_and_policies_name_ports_that_the_container_has(name):
    for spec in pod_specs(rendered(name)).values():
        for container in spec["containers"]:
            ports = {each["name"] for each in container.get("ports", [])}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                http = container.get(probe, {}).get("httpGet")
                assert http is None or http["port"] in ports
            if ports:
                assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)
    for each in rendered(name):
        if each["kind"] == "NetworkPolicy":
            for rule in each["spec"]["ingress"]:
                assert {port["port"] for port in rule["ports"]} <= PORTS


@pytest.mark.parametrize("name", SETS)
def test_services_meet_the_restricted_pod_security_standard(name):
    for pod, spec in pod_specs(rendered(name)).items():
        if pod == "agent":
            continue
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        is_openshift = name == "openshift"
        assert ("runAsUser" in spec["securityContext"]) is not is_openshift, "OpenShift draws the user"
        assert all(not {"hostPath"} & set(volume) for volume in spec["volumes"])
        for container in containers(spec):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        assert spec["automountServiceAccountToken"] is (pod == "drain")


@pytest.mark.parametrize("name", ["default", "everything", "openshift"])
def test_the_agent_has_capabilities_with_reasons_instead_of_privilege(name):
    spec = pod_specs(rendered(name))["agent"]
    [agent] = spec["containers"]
    context = agent["securityContext"]
    assert context["privileged"] is False
    assert context["capabilities"]["drop"] == ["ALL"]
    assert spec["hostNetwork"] is True
    assert spec["dnsPolicy"] == "ClusterFirstWithHostNet"
    lines = [line.strip() for line in (CHART / "templates/agent.yaml").read_text().splitlines()]
    for capability in context["capabilities"]["add"]:
        assert lines[lines.index(f"- {capability}") - 1].startswith("# "), f"{capability}: no reason"
    unit = (ROOT / "tools/release/agent/fabrictime.service").read_text()
    [bound] = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, flags=re.MULTILINE)
    assert {f"CAP_{each}" for each in context["capabilities"]["add"]} == set(bound.split()), (
        "as under systemd"
    )
    for init in spec.get("initContainers", []):
        assert "add" not in init["securityContext"]["capabilities"]


def test_openshift_allows_the_agent_its_own_rights_alone():
    spec = pod_specs(rendered("openshift"))["agent"]
    scc = manifest("openshift", "SecurityContextConstraints", "agent")
    added = spec["containers"][0]["securityContext"]["capabilities"]["add"]
    assert scc["allowedCapabilities"] == added
    assert scc["allowHostNetwork"] is spec["hostNetwork"]
    assert scc["allowHostPID"] is spec["hostPID"]
    assert scc["allowPrivilegedContainer"] is False
    kinds = {next(key for key in volume if key != "name") for volume in spec["volumes"]}
    assert kinds <= set(scc["volumes"])
    account = f"system:serviceaccount:fabrictime:{spec['serviceAccountName']}"
    assert scc["users"] == [account]


def test_the_only_role_holds_the_calls_of_the_drain():
    source = (ROOT / "actuators/effectors/kubernetes.py").read_text()
    rights = {
        "list_node": ("nodes", "list"),
        "read_node": ("nodes", "get"),
        "patch_node": ("nodes", "patch"),
        "patch_node_status": ("nodes/status", "patch"),
        "list_pod_for_all_namespaces": ("pods", "list"),
        "create_namespaced_event": ("events", "create"),
    }
    calls = set(re.findall(r"self\._api\.(\w+)", source))
    assert calls == set(rights)
    role = manifest("everything", "ClusterRole", "drain")
    granted = {
        (resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]
    }
    assert granted == {rights[call] for call in calls}
    assert not [each for each in rendered("default") if "Role" in each["kind"]]
    assert manifest("everything", "ClusterRoleBinding")["subjects"][0]["namespace"] == "fabrictime"


def test_the_webhook_is_off_by_default_and_fails_open(tmp_path):
    assert not [each for each in rendered("default") if "Webhook" in each["kind"]], "off by default"
    [webhook] = manifest("everything", "ValidatingWebhookConfiguration")["webhooks"]
    assert (webhook["failurePolicy"], webhook["timeoutSeconds"]) == ("Ignore", 2)
    assert webhook["namespaceSelector"] == {"matchLabels": {PREFLIGHT: "enabled"}}
    service = manifest("everything", "Service", "preflight")
    address = {**webhook["clientConfig"]["service"]}
    assert address.pop("port") == service["spec"]["ports"][0]["port"]
    assert address == {"name": service["metadata"]["name"], "namespace": "fabrictime"}
    [container] = pod_specs(rendered("everything"))["preflight"]["containers"]
    arguments = dict(option.removeprefix("--").split("=") for option in container["args"][2:])
    command = typer.main.get_command(app).commands["audit"].commands["webhook"]
    assert set(arguments) <= {option.removeprefix("--") for each in command.params for option in each.opts}
    assert arguments["listen"].endswith(f":{container['ports'][0]['containerPort']}")
    done = charts.template({"preflight": {"enabled": True}, "secrets": {"preflight": ""}}, tmp_path)
    assert "secrets.preflight: expected the Secret" in done.stderr


def test_workers_scale_by_lag_up_to_the_partitions(tmp_path):
    scaled = manifest("everything", "ScaledObject", "worker")["spec"]
    [trigger] = scaled["triggers"]
    loaded = charts.settings("everything")
    assert trigger["metadata"]["bootstrapServers"] == loaded["up"]["log_url"]
    assert trigger["metadata"]["consumerGroup"] == config.model_of("streams").model_fields["group"].default
    assert scaled["maxReplicaCount"] <= loaded["log"]["partitions"]
    for name in ("everything", "control plane"):
        assert "replicas" not in manifest(name, "Deployment", "worker")["spec"], "the scaler owns the number"
    target = manifest("control plane", "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"]
    assert target == manifest("control plane", "Deployment", "worker")["metadata"]["name"]
    done = charts.template({"autoscaling": {"kind": "keda", "maxReplicas": 9}}, tmp_path)
    assert done.returncode
    assert "autoscaling.maxReplicas is 9, expected at most log.partitions, 8" in done.stderr


def test_the_jobs_of_the_pod_monitors_are_those_of_the_rules():
    monitors = [each for each in rendered("everything") if each["kind"] == "PodMonitor"]
    jobs = {each["spec"]["podMetricsEndpoints"][0]["relabelings"][0]["replacement"] for each in monitors}
    scraped = yaml.safe_load((ROOT / "docker/prometheus/prometheus.yml").read_text())["scrape_configs"]
    assert jobs == {each["job_name"] for each in scraped}
    assert all(each["metadata"]["labels"]["release"] == "prometheus" for each in monitors)


def test_disruption_budgets_are_made_for_several_pods():
    budgets = {each["metadata"]["name"] for each in rendered("control plane") if "Budget" in each["kind"]}
    assert budgets == {"fabrictime-worker", "fabrictime-web"}


def test_values_of_placement_reach_the_pods():
    pods = pod_specs(rendered("everything"))
    given = SETS["everything"]["agent"]
    for key in ("nodeSelector", "tolerations", "affinity", "priorityClassName"):
        assert pods["agent"][key] == given[key]
    [agent] = pods["agent"]["containers"]
    assert agent["env"] == given["env"]
    assert {"name": "dumps", "mountPath": "/dumps", "readOnly": True} in agent["volumeMounts"]
    assert pods["worker"]["tolerations"] == charts.TOLERATIONS
    assert "tolerations" not in pods["links"]
    assert all(spec["imagePullSecrets"] == [{"name": "site"}] for spec in pods.values())
    init = pod_specs(rendered("openshift"))["agent"]["initContainers"][0]["args"]
    assert {"--device=eth1", "--device=eth2", "--rack=r1"} <= set(init)


def test_new_settings_restart_the_pods(tmp_path):
    def notes(values):
        manifests = charts.documents(charts.template(values, tmp_path).stdout)
        pods = [each for each in manifests if each["kind"] in ("DaemonSet", "Deployment")]
        return [each["spec"]["template"]["metadata"]["annotations"] for each in pods]

    former = notes({})
    changed = notes({"config": VALUES["config"] + "\n[audit]\nevery_s = 0\n"})
    assert all(old != new for old, new in zip(former, changed, strict=True))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"agents": {}}, "agents"),
        ({"services": {"links": {"replicas": 2}}}, "replicas"),
        ({"agent": {"dataPath": "state"}}, "dataPath"),
        ({"autoscaling": {"kind": "vpa"}}, "kind"),
        ({"config": "[up\n"}, "config: not a TOML file"),
        ({"config": "[up]\n"}, "config: expected up.log_url"),
        ({"services": {"notify": {"enabled": True}}}, "expected receivers in config"),
        ({"secrets": {"probe": ""}}, "secrets.probe: expected the Secret"),
    ],
)
def test_wrong_values_are_refused_by_name(values, message, tmp_path):
    done = charts.template(values, tmp_path)
    assert done.returncode
    assert message in done.stderr


def test_the_schema_describes_every_value():
    schema = json.loads((CHART / "values.schema.json").read_text())

    def compare(values, part, path):
        for key, value in values.items():
            below = part["properties"].get(key)
            assert below, f"{path}{key}: not in the schema"
            if "properties" in below:
                compare(value, below, f"{path}{key}.")
            else:
                assert below["description"], f"{path}{key}"

    compare(VALUES, schema, "")


def test_the_values_of_the_guide_are_accepted(tmp_path):
    text = (ROOT / "docs/kubernetes.md").read_text()
    [block] = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    done = charts.template(yaml.safe_load(block), tmp_path)
    assert done.returncode == 0, done.stderr
    assert {"agent", "notify"} <= set(pod_specs(charts.documents(done.stdout)))
    for folder in re.findall(r"docker/[\w./-]*\w", text):
        assert (ROOT / folder).exists(), folder


def test_the_table_of_values_has_every_value_with_its_default():
    table = chart_values.values_table()
    for name, default in (("secrets.probe", '`"fabrictime-probe"`'), ("services.links.replicas", "`1`")):
        assert f"| `{name}` | {default} |" in table
    assert "| `config` | see values.yaml |" in table


@pytest.mark.parametrize("name", SETS)
def test_every_container_has_arguments_that_the_command_line_takes(name):
    for spec in pod_specs(rendered(name)).values():
        for container in containers(spec):
            _parse(typer.main.get_command(app), [str(each) for each in container["args"]])


def _parse(command, arguments):
    """Parse the arguments as the command line does; it raises for an unknown command, option or value."""
    context = None
    while hasattr(command, "resolve_command"):
        context = command.make_context(command.name, arguments, parent=context)
        rest = [*context._protected_args, *context.args]
        _, command, arguments = command.resolve_command(context, rest)
    command.make_context(command.name, arguments, parent=context)
