"""README and guide name nothing that code, settings, routes or files lack; defaults are those in force."""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import math
import re
import subprocess
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from actuators.effectors import endpoint_protocol, endpoints
from actuators.flows import applier, command_io, local_repair
from actuators.flows.state import MAX_LEASE_NS
from actuators.notify.receivers.base import TEMPORARY
from fabrictime.bench import _apache_kafka
from fabrictime.demo import summary
from fabrictime.demo.script import STEPS
from fabrictime.install import plan, service_checks
from fabrictime.log import append_clock
from fabrictime.metrics.settings import DEFAULT_PORT
from fabrictime.runtime.config import TABLES, load, model_of
from fabrictime.testbed.processes.scheduling_priority import LAST, NICE, RUN_ON_S
from fabrictime.web.api import MAX_ROWS
from fabrictime.web.tabs.base import PAGES as TABS
from fabrictime.web.users import COOKIE_S
from producers.audit.checks import CHECKS
from producers.probe.keys import KEY_BYTES
from schemas.kafka import schema_log
from schemas.metrics.base import Detail
from schemas.metrics.table import METRICS
from schemas.topics import SCHEMAS, TOPICS
from schemas.topology import load_topology
from streams.audit.fabric.checks import RULES
from streams.audit.traffic.pairs import TRAFFIC_RULES
from tests.kubernetes import test_chart as kubernetes
from tools.release import deb, wheels

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    path: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
}
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.M | re.S)
FOREIGN = re.compile(
    r"(?i)(?:ucx|nccl|ibv|mpi|otel|ld|pml|rc|ns|trace|timeline|tensorboard|open|resume|group)_"
)
"""Pattern of identifiers that belong to other programs, or to the reader's own in an example."""
BETWEEN_PARTS = r"\.\.\.|; |\b[A-Z]\b|\S*\d\S*(?: (?:[mnu]?s|min)\b)?|[a-z]+\.[a-z]+:?|[A-Z]{3,}"
"""Pattern of what differs between two messages: figures with units, names and constants."""
UNITS = {"GiB": 2**30, "MB": 10**6}


def blocks(language: str) -> list[tuple[str, str]]:
    """Return the pages' names and texts of all blocks in a language."""
    return [
        (path.name, textwrap.dedent(body))
        for path, text in sorted(PAGES.items())
        for _, name, body in BLOCK.findall(text)
        if name == language
    ]


def code_of(text: str) -> str:
    """Return what a page shows as code: its blocks, and its spans between backquotes."""
    spans = re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
    return "\n".join([*(body for _, _, body in BLOCK.findall(text)), *spans])


def missing(pattern: str, present: Any, *, everywhere: bool = False) -> list[tuple[str, str]]:
    """Return (page, match) of all matches in the pages' code, or in their text, that are not present."""
    return [
        (path.name, name)
        for path, text in sorted(PAGES.items())
        for name in re.findall(pattern, text if everywhere else code_of(text))
        if name not in present
    ]


@cache
def sources() -> dict[str, str]:
    """Return the text of each file of the checkout that is no page and no test."""
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-co", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    texts = {}
    for name in names:
        if not name.startswith(("docs/", "tests/")) and not name.endswith((".md", ".png")):
            with contextlib.suppress(FileNotFoundError):  # removed, and not committed
                texts[name] = (ROOT / name).read_text(encoding="utf-8", errors="replace")
    return texts


def fields(model: Mapping[str, Any], root: Mapping[str, Any], table: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the full name of each key below a table of a JSON schema, with its default."""
    for key, raw in model.get("properties", {}).items():
        yield f"{table}{key}", raw.get("default")
        for branch in (raw, *raw.get("anyOf", ())):
            below = root["$defs"][branch["$ref"].rpartition("/")[2]] if "$ref" in branch else branch
            yield from fields(below, root, f"{table}{key}.")


@cache
def settings() -> dict[str, Any]:
    """Return each setting with its default."""
    models = {table: model_of(table).model_json_schema() for table in TABLES}
    return {key: value for table, model in models.items() for key, value in fields(model, model, f"{table}.")}


def test_identifiers_of_the_pages_are_in_the_code() -> None:
    """An identifier has an underscore: settings, metrics, columns, symbols, variables."""
    present = set(re.findall(r"\w+", " ".join(sources().values())))
    present |= {metric.name for metric in METRICS}
    present |= {
        f"FABRICTIME_KAFKA_{key.partition('.')[2].upper()}" for key in settings() if key.startswith("kafka.")
    }
    names = missing(r"(?<![\w./-])(?!\w+_(?:VERSION|0\.))[A-Za-z][A-Za-z0-9]*_\w+", present)
    names += missing(r"\b[A-Z]+_[A-Z_]+\b", present, everywhere=True)
    assert [(page, name) for page, name in names if not FOREIGN.match(name)] == []


def test_dotted_names_are_settings_topics_checks_or_values_of_the_chart() -> None:
    chart = json.loads((ROOT / "docker/helm/fabrictime/values.schema.json").read_text(encoding="utf-8"))
    rules = {rule.check for rule in (*RULES, *TRAFFIC_RULES)}
    names = {*settings(), *dict(fields(chart, chart)), *TOPICS, SCHEMAS.name, *CHECKS, *rules}
    families = "|".join(sorted({re.escape(name.partition(".")[0]) for name in names}))
    files = {Path(name).name for name in sources()}
    pattern = rf"(?m)^((?:{families})\.[a-z][\w.-]*[a-z0-9])$(?<!\.sock)(?<!\.toml)(?<!\.key)(?<!-1)"
    literals = set(re.findall(r'"([a-z]+\.[a-z.-]+)"', " ".join(sources().values())))
    assert missing(pattern, names | files | literals) == []


def test_defaults_of_the_pages_are_in_force() -> None:
    number = r"(\d[\d,]*(?:\.\d+)?)"
    wrong, count = [], 0
    for path, text in sorted(PAGES.items()):
        after = re.findall(rf"`(\w+\.[\w.]+)`(?:, | \(){number} ?(\w*)", text)
        before = re.findall(rf"{number} ?(\w*)(?: apart| per second)? \(`(\w+\.[\w.]+)`\)", text)
        for key, value, unit in [*after, *((key, value, unit) for value, unit, key in before)]:
            if key in settings():
                count += 1
                if float(value.replace(",", "")) * UNITS.get(unit, 1) != settings()[key]:
                    wrong.append((path.name, key, value))
        for table, rows in re.findall(
            r"\| setting in `\[([\w.]+)\]` \| default .*\n\|[-|]+\n((?:\|.*\n)+)", text
        ):
            for keys, default in re.findall(r"^\| ([^|]+) \| ([^|]+) \|", rows, flags=re.M):
                keys, values = (
                    re.findall(r"`(\w+)`", keys),
                    re.findall(rf"{number}(?=,? |$)", default.strip()),
                )
                values = values * len(keys) if len(values) == 1 else values
                for key, value in zip(keys, values, strict=False):
                    count += 1
                    if float(value.replace(",", "")) != settings()[f"{table}.{key}"]:
                        wrong.append((path.name, f"{table}.{key}", value))
    assert wrong == []
    assert count > 30


def test_figures_of_the_pages_are_constants_of_the_code() -> None:
    """A figure that is no setting stands in a sentence that is made of its constant."""
    at = {service: f"{value}" for service, value in NICE.items()}
    first, last = kubernetes.VERSIONS[0], kubernetes.VERSIONS[-1]
    compose = yaml.safe_load(sources()["docker-compose.yml"])["services"]["kafka"]["environment"]
    delay_ms = service_checks.REBALANCE_DELAY_MS
    assert compose["KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS"] == delay_ms
    hosts, leaves, spines = (settings()[f"fabric.{key}"] for key in ("hosts", "leaves", "spines"))
    details = Counter(metric.detail for metric in METRICS)
    codes = sorted(map(str, TEMPORARY))
    sentences = {
        "README.md": (f"{hosts} hosts, {leaves} leaves and {spines} spines in rootless",),
        "docs/getting-started.md": (
            f"in network namespaces: {hosts} hosts, {leaves} leaves, {spines} spines",
        ),
        "docs/alerts.md": (f"400 to 499 other than {', '.join(codes[:-1])} and {codes[-1]})",),
        "docs/deploy.md": (
            f"Apache Kafka (tested: {' and '.join(_apache_kafka.VERSIONS)})",
            f"one probe key, {' or '.join(map(str, KEY_BYTES))} random bytes",
            f"`probe.key` | the fleet's probe key, mode {plan.SECRET_MODE:04o}",
            f"looks for a schema at most every {schema_log.READ_EVERY_S:g} s",
            f"sinks wait up to {schema_log.HOLD_S:g} s for that",
            f"workers and link health run at niceness {at['worker']}; policy, log, flow reporter and page at",
            f"page at {at['web']}; the history sink at {at['sink']} and history at {at['history']};",
            f"a simulated fleet at {at['sim']}. For an ordinary user the same order runs from 0 to {LAST}",
            f"Set `{service_checks.REBALANCE_DELAY}={delay_ms}` on its brokers",
            f"runs for {RUN_ON_S[0]} s without waiting",
        ),
        "docs/kubernetes.md": (f"the schemas of Kubernetes {first} to {last}",),
        "docs/log.md": (
            f"at {append_clock.SLEW_PPM} ppm; a difference above {append_clock.STEP_MS} ms",
            f"persist for {append_clock.STEPOUT_MS // 1000} s",
        ),
        "docs/metrics.md": (
            f"`metrics.per_nic` adds {details[Detail.PER_NIC]} series per NIC, and `metrics.per_link`",
            f"`metrics.per_link` {details[Detail.PER_LINK]} per directed link",
        ),
        "docs/web-page.md": (f"A login lasts {COOKIE_S // 3600} hours",),
        "docs/clients.md": (f"`limit` (at most {MAX_ROWS:,})",),
        "docs/acting.md": (
            f"ASCII lines of at most {endpoint_protocol.LINE_BYTES} bytes",
            f"A rate above 10^{math.log10(endpoint_protocol.RATE_MAX_BPS):g} bit/s, or for more than",
            f"more than {MAX_LEASE_NS // 60_000_000_000} minutes, is FAILED",
            f"more than {applier.MAX_WAITING} decisions wait for one flow",
            f"older than {local_repair.FRESH_NS // 1_000_000_000} s, older than",
            f"While more than {command_io._MAX_QUEUED:,} messages or",
            f"messages or {command_io._MAX_QUEUED_BYTES >> 20} MB are queued",
            f"more than {endpoints._WAITING_BYTES >> 20} MB of unread commands",
        ),
    }
    for page, texts in sentences.items():
        shown = " ".join(PAGES[ROOT / page].split())
        assert [text for text in texts if text not in shown] == [], page


def test_toml_of_the_pages_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "fabrictime.toml"
    sasl = ""
    for page, text in blocks("toml"):
        tables = tomllib.loads(text)
        file.write_text(text, encoding="utf-8")
        if set(tables) <= set(TABLES):
            if tables == {"actuators": {"kafka": tables.get("actuators", {}).get("kafka")}}:
                file.write_text(sasl + text, encoding="utf-8")  # it replaces keys of an earlier block
            elif "sasl_username" in text and "oauth" not in text:
                sasl = text
            for table in tables:
                assert getattr(load(file), table), page
        elif "nodes" in tables:
            load_topology(file)
        else:
            assert set(tables) == {"expected"}, page  # a baseline


def test_python_of_the_pages_is_valid_and_its_imports_exist() -> None:
    for _, text in blocks("python"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = importlib.import_module(node.module)
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_yaml_and_xml_of_the_pages_are_well_formed() -> None:
    assert all(yaml.safe_load(text) for _, text in blocks("yaml"))
    assert all(len(ElementTree.fromstring(text)) for _, text in blocks("xml"))


def test_make_targets_and_programs_of_the_pages_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert missing(r"(?m)^make ([a-z-]+)", set(re.findall(r"^([a-z-]+):", makefile, flags=re.M))) == []
    modules = {name.removesuffix(".py").replace("/", ".") for name in sources()}
    assert missing(r"python (?:-m )?(tools[/.][\w/.]+)", {*sources(), *modules}) == []


def test_paths_of_ours_are_those_of_the_code() -> None:
    """A file of the reader's own lies in a folder that the code knows."""
    text = " ".join(text for name, text in sources().items())
    pattern = r"(?<![\w.~}])(/(?:etc|opt|var|run|usr)/[\w./-]*fabrictime[a-z]*(?:/[\w-]+(?=/))*)"
    paths = {path for _, path in missing(pattern, ())}
    assert {"/etc/fabrictime", "/opt/fabrictime", "/var/lib/fabrictime"} <= paths
    assert [path for path in sorted(paths) if path not in text] == []


def test_ports_of_the_pages_are_those_of_settings_or_containers() -> None:
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    ports = {str(value) for key, value in settings().items() if key.endswith("port")} | {str(DEFAULT_PORT)}
    ports |= set(re.findall(r'"127\.0\.0\.1:(\d+):', compose))
    assert {"19092", "18123", "8480", "8481", "9318"} <= ports
    foreign = {"22": "ssh", "4318": "an OTLP collector", "33434": "traces, which no program uses"}
    pattern = r"(?:127\.0\.0\.1:|(?<!-)\b[Pp]ort |`port = )(\d{2,5})\b|\((\d{4,5}) is the default port"
    pairs = missing(pattern, (), everywhere=True)
    assert [pair for pair in pairs if "".join(pair[1]) not in {*ports, *foreign}] == []
    assert len(pairs) > 10


def test_routes_of_the_pages_are_those_of_the_servers() -> None:
    from fabrictime.web.api import Api
    from fabrictime.web.changes import Changes
    from schemas.kafka.settings import as_settings

    routers = [Api.router(object.__new__(Api)), Changes(as_settings("127.0.0.1:9")).router()]
    routes = {route.path for router in routers for route in router.routes}
    routes = {re.sub(r"\{(\w+)[^}]*\}", "NAME", path) for path in routes} - {"/api/v1/NAME"}
    pages = "".join(PAGES.values())
    assert sorted(routes - set(re.findall(r"[`/ ](/api/v1/[\w/]+)", pages))) == []
    assert [path for _, path in missing(r"(/api/v1/[a-z]+)", routes | {"/api/v1/hosts"})] == []


@cache
def messages() -> str:
    """Return the strings of the code with a NUL character in place of quotes and placeholders."""
    code = "".join(text for name, text in sources().items() if name.endswith(".py"))
    code = re.sub(r'"\s*\n\s*f?"|`', "", code)
    return re.sub(r'"|\{[^{}\n]*\}|%[.\d]*[a-z]', "\0", code)


def unknown_parts(texts: list[str]) -> list[str]:
    """Return the parts of messages that the code does not have: words between figures, names and constants.

    A part lies within a text of the code, or joins the end of one and the start of one.
    """
    joined = messages()

    def is_message(part: str) -> bool:
        pairs = ((part[:at], part[at:].lstrip()) for at in range(1, len(part)) if part[at] == " ")
        if part in joined or f"{part.removesuffix('s')}\0" in joined:
            return True
        return any(
            (f"{end}\0" in joined or f"{end} \0" in joined) and f"\0{start}" in joined for end, start in pairs
        )

    parts = [part.strip(" ,;:") for text in texts for part in re.split(BETWEEN_PARTS, text)]
    return [part for part in parts if " " in part and not is_message(part)]


def test_messages_in_troubleshooting_are_those_of_the_code() -> None:
    page = PAGES[ROOT / "docs" / "troubleshooting.md"]
    symptoms = [
        text
        for row in re.findall(r"^\| (`.*?) \| ", page, flags=re.M)
        for text in re.findall(r"`([^`]+)`", row)
    ]
    assert unknown_parts(symptoms) == []
    assert len(symptoms) > 10


def test_outputs_of_commands_are_those_of_the_code() -> None:
    """The README shows the end of the tour, and pages show lines that follow a command at a prompt."""
    [tour] = [text for page, text in blocks("") if page == "README.md" and text.startswith(summary.HEAD[0])]
    head, *rows = [re.split(r"\s{2,}", line.strip()) for line in tour.splitlines()]
    assert tuple(head) == summary.HEAD
    assert [row[0] for row in rows] == [step.fault for step in STEPS]
    prompts = [text.splitlines() for _, text in blocks("") if text.startswith("$ fabrictime ")]
    assert unknown_parts([line for lines in prompts for line in lines[1:]]) == []
    assert len(prompts) > 1


def test_tabs_of_the_readme_are_those_of_the_page() -> None:
    rows = re.findall(r"^\| .*\? \| .* \| ([A-Z][\w, ]*|-|`.*) \|$", PAGES[ROOT / "README.md"], flags=re.M)
    names = {name for row in rows if row[0] not in "-`" for name in row.split(", ")}
    assert names <= set(TABS.values())
    assert len(names) > 5


def test_make_run_starts_the_pipeline_after_the_build() -> None:
    makefile = sources()["Makefile"]
    assert re.search(r"^run: build .*\n\t@exec \$\(BIN\)/fabrictime up \$\(ARGS\)$", makefile, flags=re.M)


def test_extras_of_the_guide_are_those_of_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    guide = PAGES[ROOT / "docs" / "deploy.md"]
    [rows] = re.findall(r"^\| extra \| adds .*\n\|[-|]+\n((?:\|.*\n)+)", guide, flags=re.M)
    extras = {name for row in rows.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert extras == set(project["optional-dependencies"]) - {"build", "dist", "test"}
    assert missing(r"fabrictime\[([\w,]+)\]", extras) == []


def test_files_of_a_release_have_the_version() -> None:
    version = deb.version()
    names = missing(r"fabrictime(?:_client)?[-_:](\d+\.\d+\.\d+)", {version})
    assert names == []
    images = set(
        re.findall(r"(?m)(?:FROM |image: )(\S+)", sources()["Dockerfile"] + sources()["docker-compose.yml"])
    )
    assert missing(r"\b((?:[a-z]+/)?[a-z]+:\d[\d.]*-[a-z-]+)", images) == []
    assert missing(r"(manylinux_\d+_\d+)_", {wheels.platform_tag("x86_64").removesuffix("_x86_64")}) == []


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"])
def test_anchors_outside_of_the_site_lead_to_headings(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([\w/.-]+\.md)#([\w-]+)\)", page.read_text(encoding="utf-8")):
        headings = re.findall(r"^#+ (.*)", (page.parent / target).read_text(encoding="utf-8"), flags=re.M)
        assert anchor in {re.sub(r"[^\w-]", "", title.lower().replace(" ", "-")) for title in headings}, (
            target
        )
