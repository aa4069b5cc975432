"""Measure the language and the structure of the code base: words, names, complexity, sizes.

`python tools/house.py` prints a table, `--json` one JSON object, `--worst N` the worst sentences and names.
PATHs limit the measurement to some files. `tests/tools/test_house.py` compares the figures with targets.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "schemas",
    "native",
    "producers",
    "streams",
    "actuators",
    "grafana",
    "fabrictime",
    "clients",
    "tools",
)
GENERATED = ("schemas/records.py", "docs/topics.md", "docs/reference/topics.md")
NAMING = ROOT / "tools" / "naming.md"
GENERATED_TEXT = re.compile(
    r"schemas/(?:released/.*|.*\.avsc|released\.jsonl)|grafana/dashboards/.*\.json"
    r"|docs/(?:topics\.md|commands\.md|thresholds\.md|fabrictime\.toml)"
)
"""Pattern of files, other than Python, that tools write, format or copy."""

RELATIVE = re.compile(r"\b(?:what|who|whose|whom|whoever)\b", re.IGNORECASE)
SPEECH = re.compile(
    r"\b(?:tell|tells|told|telling|say|says|said|saying|hear|hears|heard|hearing|ask|asks|asked|asking)\b",
    re.IGNORECASE,
)
HEADLESS = re.compile(
    r"^(?:What|Who|Whose|Whoever|Of)\s+[a-z]|^That\s+(?!is\b|was\b|are\b|can\b|may\b|does\b|makes?\b|keeps?\b|costs?\b)[a-z]"
    r"|^Where\s+[a-z][^,]*$"
)
"""Pattern of a sentence that begins with a relative clause instead of its subject. It matches no question."""
BRANCHES = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.comprehension,
    ast.Assert,
    ast.match_case,
)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
COMPLEX_ABOVE = 12
VERDICT_LOGIC = re.compile(
    r"streams/diagnosis/(?!(?:symptoms|record|inputs|stage|job/(?:columns|process|view)"
    r"|network/(?:view|delay_windows|table_routes))\.py).*\.py"
)
"""Pattern of the modules with verdict logic: the diagnosis without its table of causes, the texts of its
records, and the readers of messages and columns."""
ALLOWED = (
    "one_way",
    "least_squares",
    "cpu_starved",
    "sip_word",
    "state_words",
    "denied_words",
    "by_hand",
    "most_recent",
)
"""Technical terms that are allowed although they contain a denied word."""
PARTICIPLE = re.compile(
    r"_*(?:found|known|wanted|chosen|taken|kept|made|usual|odd|whole|mine|theirs|given|seen|shown|meant|asked|gone|each"
    r"|again)_*"
)
"""Pattern of variable names that state an act or a relation instead of the thing that the variable holds."""
CYTHON_BINDING = re.compile(
    r"^\s*(?:cdef\s[^=(]*?\b)?([A-Za-z_]\w*)(?::[^=]*)?\s[-+*/|&]?=\s|\bfor\s+([\w\s,]+?)\s+in\s",
    re.MULTILINE,
)
"""Pattern of an assignment or a loop target in a Cython file."""
UNTYPED = re.compile(r"dict\[\s*str,\s*Any\b")
PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


@dataclass
class Figures:
    """The measurements of a set of files."""

    tokens: int = 0
    relatives: int = 0
    speech: int = 0
    sentences: int = 0
    headless: list[str] = field(default_factory=list)
    worst: Counter[str] = field(default_factory=Counter)
    denied: Counter[str] = field(default_factory=Counter)
    denied_places: list[str] = field(default_factory=list)
    bindings: int = 0
    participles: list[str] = field(default_factory=list)
    functions: int = 0
    complex_functions: list[str] = field(default_factory=list)
    files: list[tuple[int, str]] = field(default_factory=list)
    classes: list[tuple[int, str]] = field(default_factory=list)
    c_files: list[tuple[int, str]] = field(default_factory=list)
    formatter_skips: int = 0
    untyped_reads: int = 0
    local_records: int = 0
    consumers: list[str] = field(default_factory=list)
    modules: int = 0
    modules_with_test: int = 0
    production_lines: int = 0
    diagnosis_lines: int = 0
    """Lines of `VERDICT_LOGIC`."""
    diagnosis_branches: int = 0
    """Largest complexity of a function of the diagnosis."""
    generated_lines: int = 0


def tracked(root: Path, paths: list[str]) -> list[str]:
    """Return the paths of the files that git tracks, and of new files that git does not ignore."""
    command = ["git", "-c", f"safe.directory={root}", "ls-files", "-co", "--exclude-standard", "--", *paths]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (root / name).is_file()]


def denied_words(naming: Path = NAMING) -> dict[str, str]:
    """Read the denylist: return the replacement of each denied part of an identifier.

    The table under the heading 'Denied in names' has one row per word: `term`, replacement.
    """
    text = naming.read_text(encoding="utf-8") if naming.exists() else ""
    _, _, section = text.partition("## Denied in names")
    return dict(re.findall(r"^\| `([a-z_]+)` \| ([^|]+?) \|", section, flags=re.MULTILINE))


def name_parts(name: str) -> list[str]:
    """Split an identifier or file name into lower-case parts."""
    return [part.lower() for part in PARTS.findall(name)]


def denied_in(name: str, denied: dict[str, str]) -> list[str]:
    """Return the denied words that an identifier contains: a part, or a run of parts joined by `_`."""
    joined = "_" + "_".join(name_parts(name)) + "_"
    for term in ALLOWED:
        joined = joined.replace(f"_{term}_", "_")
    return [term for term in denied if f"_{term}_" in joined]


def sentences(text: str) -> Iterator[str]:
    """Split prose into sentences, without code blocks, tables, links and backticked words."""
    text = re.sub(r"```.*?```", " ", text, flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "X", text)
    for block in re.split(r"\n\s*\n|\n\s*[-*|#]", text):
        plain = " ".join(block.split())
        yield from (part for part in re.split(r"(?<=[.!?:])\s+", plain) if re.search(r"[a-z]", part))


def measure_prose(text: str, place: str, figures: Figures) -> None:
    """Count the words of one docstring, comment or page, and add them to `figures`."""
    for sentence in sentences(text):
        tokens = re.findall(r"[A-Za-z][A-Za-z'-]*", sentence)
        figures.tokens += len(tokens)
        figures.sentences += 1
        relatives, speech = len(RELATIVE.findall(sentence)), len(SPEECH.findall(sentence))
        figures.relatives += relatives
        figures.speech += speech
        headless = bool(HEADLESS.match(sentence)) and not sentence.endswith("?")
        if headless:
            figures.headless.append(f"{place}: {sentence[:100]}")
        if relatives or speech or headless:
            figures.worst[f"{place}: {sentence[:140]}"] += relatives + speech + 2 * headless


def measure_names(names: set[str], place: str, denied: dict[str, str], figures: Figures) -> None:
    """Count the identifiers of one file that contain a denied word, and add them to `figures`."""
    for name in sorted(names):
        for term in denied_in(name, denied):
            figures.denied[term] += 1
            figures.denied_places.append(f"{place}: {name} ({term} -> {denied[term]})")


def children_of(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the children of a node except contexts, three times as fast as `ast.iter_child_nodes`."""
    for name in node._fields:
        if name == "ctx":
            continue
        value = getattr(node, name, None)
        if isinstance(value, list):
            for item in value:
                if isinstance(item, ast.AST):
                    yield item
        elif isinstance(value, ast.AST):
            yield value


def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """Return a node and all its descendants, level by level."""
    nodes = [tree]
    for node in nodes:  # which grows
        nodes.extend(children_of(node))
    return nodes


def complexity(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the cyclomatic complexity (McCabe 1976) of a function, without nested functions."""
    count, todo = 1, list(children_of(node))
    while todo:
        child = todo.pop()
        if isinstance(child, SCOPES):
            continue
        if isinstance(child, BRANCHES):
            count += 1
        if isinstance(child, ast.BoolOp):
            count += len(child.values) - 1
        if isinstance(child, ast.comprehension):
            count += len(child.ifs)
        todo.extend(children_of(child))
    return count


def names_of(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that a module defines: functions, classes, arguments, variables, attributes."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.alias) and node.asname:
            names.add(node.asname)
    return names


def bindings_of(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield each name that a module binds, for every binding: assignment, parameter, loop, `with`, walrus."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def cython_bindings(text: str) -> Iterator[str]:
    """Yield the names that the assignments and loops of a Cython file bind."""
    for assigned, looped in CYTHON_BINDING.findall(text):
        yield from re.findall(r"\w+", assigned or looped)


def measure_bindings(names: Iterable[str], place: str, figures: Figures) -> None:
    """Count the bindings of one file, and those whose name is a participle or an adverb."""
    for name in names:
        figures.bindings += 1
        if PARTICIPLE.fullmatch(name):
            figures.participles.append(f"{place}: {name}")


def comments_of(text: str) -> str:
    """Return the comments of a Python file, with consecutive lines joined to paragraphs."""
    lines: list[str] = []
    last = -1
    if "#" not in text:
        return ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or re.match(r"#\s*(?:noqa|type:|fmt:|!)", token.string):
            continue
        if token.start[0] != last + 1:
            lines.append("")
        last = token.start[0]
        lines.append(token.string.lstrip("# "))
    return "\n".join(lines)


def is_untyped(annotation: ast.expr | None) -> bool:
    """Return whether an annotation is the type of an untyped record, such as `dict[str, Any]`."""
    return annotation is not None and "dict[str, Any]" in ast.unparse(annotation)


def untyped_reads(nodes: list[ast.AST]) -> int:
    """Count subscripts with a literal key on names annotated as `dict[str, Any]`, or as an alias of it."""
    aliases = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and is_untyped(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def untyped(annotation: ast.expr | None) -> bool:
        return is_untyped(annotation) or (
            annotation is not None
            and any(isinstance(n, ast.Name) and n.id in aliases for n in nodes_of(annotation))
        )

    count = 0
    for function in nodes:
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        inner = nodes_of(function)
        named = {name for name, annotation in _annotated(function, inner) if untyped(annotation)}
        if named:
            count += sum(_read_from(node) in named for node in inner)
    return count


def _annotated(
    function: ast.FunctionDef | ast.AsyncFunctionDef, inner: Iterable[ast.AST]
) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield (name, annotation) of the arguments and the annotated variables of a function."""
    for argument in (*function.args.args, *function.args.kwonlyargs, *function.args.posonlyargs):
        yield argument.arg, argument.annotation
    for node in inner:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.annotation


def _read_from(node: ast.AST) -> str | None:
    """Return the name that a subscript with a literal key reads from, None for other nodes."""
    match node:
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str())):
            return name
    return None


def measure_python(name: str, text: str, denied: dict[str, str], figures: Figures) -> None:
    """Measure one Python file."""
    nodes = nodes_of(ast.parse(text))
    lines = text.count("\n")
    figures.files.append((lines, name))
    figures.production_lines += lines
    measure_diagnosis(name, nodes, lines, figures)
    docs: set[int] = set()
    for node in nodes:
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and (doc := ast.get_docstring(node)):
            docs.add(id(node.body[0]))
            measure_prose(doc, f"{name}:{getattr(node, 'lineno', 1)}", figures)
        if isinstance(node, ast.ClassDef):
            figures.classes.append(((node.end_lineno or 0) - node.lineno + 1, f"{name}:{node.name}"))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            figures.functions += 1
            branches = complexity(node)
            if branches > COMPLEX_ABOVE:
                figures.complex_functions.append(f"{name}:{node.lineno} {node.name} {branches}")
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and id(node) not in docs
        if is_text and isinstance(node.value.value, str):  # a documented constant or field
            measure_prose(node.value.value, f"{name}:{node.lineno}", figures)
    measure_prose(comments_of(text), name, figures)
    measure_names(names_of(nodes) | {Path(name).stem}, name, denied, figures)
    if name.endswith(".py"):
        measure_bindings(bindings_of(nodes), name, figures)
    figures.formatter_skips += (
        len(re.findall(r"# fmt: (?:skip|off)", text)) if name != "tools/house.py" else 0
    )
    if UNTYPED.search(text):
        figures.untyped_reads += untyped_reads(nodes)
    figures.local_records += len(
        re.findall(r"^\w*Record\w*(?:: TypeAlias)? = dict\[str, Any\]", text, re.MULTILINE)
    )
    if not name.startswith(("schemas/kafka/", "clients/")) and re.search(
        r"\b(?:AIOKafka)?Consumer\(\s*[{*\n]|AIOKafkaConsumer\(", text
    ):
        figures.consumers.append(name)


def measure_diagnosis(name: str, nodes: list[ast.AST], lines: int, figures: Figures) -> None:
    """Add a module to the figures of the diagnosis, if the module belongs to it."""
    if name.startswith("streams/diagnosis/"):
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        figures.diagnosis_branches = max([figures.diagnosis_branches, *map(complexity, functions)])
        figures.diagnosis_lines += lines if VERDICT_LOGIC.fullmatch(name) else 0


def measure_c(name: str, text: str, denied: dict[str, str], figures: Figures) -> None:
    """Measure one C, header or Cython file."""
    lines = text.count("\n")
    figures.production_lines += lines
    if name.endswith((".c", ".h")):
        figures.c_files.append((lines, name))
    comment = r'"""(.*?)"""|#([^\n]*)' if name.endswith((".pyx", ".pxd")) else r"/\*(.*?)\*/|//([^\n]*)"
    spoken = "\n\n".join("".join(match) for match in re.findall(comment, text, flags=re.DOTALL))
    measure_prose(re.sub(r"^\s*\* ?", "", spoken, flags=re.MULTILINE), name, figures)
    code = re.sub(comment + r'|"(?:\\.|[^"\\\n])*"', " ", text, flags=re.DOTALL)
    measure_names(set(re.findall(r"[A-Za-z_]\w+", code)) | {Path(name).stem}, name, denied, figures)
    if name.endswith(".pyx"):
        measure_bindings(cython_bindings(code), name, figures)


def measure_schema(name: str, text: str, denied: dict[str, str], figures: Figures) -> None:
    """Measure one `.avsc` file: names of records, fields and symbols; docs as prose."""
    names: set[str] = set()

    def walk(node: object) -> None:
        if isinstance(node, dict):
            names.update(v for v in (node.get("name"), *node.get("symbols", ())) if isinstance(v, str))
            if isinstance(node.get("doc"), str):
                measure_prose(node["doc"], name, figures)
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(json.loads(text))
    measure_names(names | {Path(name).stem}, name, denied, figures)


def test_folders(names: list[str]) -> dict[str, set[str]]:
    """Return the names of the folders above each test file, by the file's name."""
    folders: defaultdict[str, set[str]] = defaultdict(set)
    for name in names:
        path = Path(name)
        if path.name.startswith("test_"):
            folders[path.name].update(path.parent.parts)
    return folders


def has_test(module: str, tests: dict[str, set[str]]) -> bool:
    """Return whether a test file has the module's name, below a folder named like one of the module's."""
    path = Path(module)
    stem = path.stem.lstrip("_")
    file_names = (f"test_{stem}.py", f"test_{path.parent.name}_{stem}.py")
    return any(tests.get(name, set()) & set(path.parent.parts) for name in file_names)


def measure(root: Path = ROOT, paths: list[str] | None = None) -> Figures:
    """Measure the language and structure of the files of a checkout; `paths` limits the files."""
    figures, denied = Figures(), denied_words()
    names = tracked(root, paths or [])
    tests = test_folders(tracked(root, ["tests"]))
    for name in names:
        if GENERATED_TEXT.fullmatch(name):
            figures.generated_lines += (root / name).read_text(encoding="utf-8").count("\n")
        if name not in GENERATED and not name.startswith("tests/golden/data"):
            measure_file(root, name, tests, denied, figures)
    return figures


def measure_file(
    root: Path, name: str, tests: dict[str, set[str]], denied: dict[str, str], figures: Figures
) -> None:
    """Measure one file by its kind: prose, test, Python, C or schema."""
    path, package = root / name, name.partition("/")[0]
    suffix = path.suffix
    if suffix == ".md" and package in ("docs", name):
        measure_prose(path.read_text(encoding="utf-8"), name, figures)
    elif package == "tests" and suffix == ".py":
        text = path.read_text(encoding="utf-8")
        measure_names(names_of(nodes_of(ast.parse(text))) | {path.stem}, name, denied, figures)
    elif package not in PACKAGES:
        return
    elif suffix in (".py", ".pyi"):
        measure_python(name, path.read_text(encoding="utf-8"), denied, figures)
        if suffix == ".py" and path.stem not in ("__init__", "__main__", "base", "settings"):
            figures.modules += 1
            figures.modules_with_test += has_test(name, tests)
    elif suffix in (".c", ".h", ".pyx", ".pxd"):
        measure_c(name, path.read_text(encoding="utf-8"), denied, figures)
    elif suffix == ".avsc":
        measure_schema(name, path.read_text(encoding="utf-8"), denied, figures)


def rate(count: int, tokens: int) -> float:
    """Return the number of occurrences per 1,000 tokens, which are words or bindings."""
    return round(1000 * count / max(tokens, 1), 2)


def report(figures: Figures) -> dict[str, object]:
    """Return the figures of the report, by name."""
    largest = max(figures.files, default=(0, ""))
    largest_class = max(figures.classes, default=(0, ""))
    largest_c = max(figures.c_files, default=(0, ""))
    return {
        "who_per_1000_words": rate(figures.relatives, figures.tokens),
        "speech_per_1000_words": rate(figures.speech, figures.tokens),
        "headless_sentences": len(figures.headless),
        "headless_share": round(len(figures.headless) / max(figures.sentences, 1), 4),
        "words": figures.tokens,
        "denied_names": sum(figures.denied.values()),
        "participles_per_1000_bindings": rate(len(figures.participles), figures.bindings),
        "functions": figures.functions,
        "complex_share": round(len(figures.complex_functions) / max(figures.functions, 1), 4),
        "largest_python_file": largest[0],
        "largest_python_file_name": largest[1],
        "largest_class": largest_class[0],
        "largest_class_name": largest_class[1],
        "largest_c_file": largest_c[0],
        "largest_c_file_name": largest_c[1],
        "formatter_skips": figures.formatter_skips,
        "untyped_record_reads": figures.untyped_reads,
        "local_record_types": figures.local_records,
        "hand_built_consumers": len(figures.consumers),
        "modules": figures.modules,
        "modules_with_test_share": round(figures.modules_with_test / max(figures.modules, 1), 3),
        "diagnosis_branches": figures.diagnosis_branches,
        "diagnosis_lines": figures.diagnosis_lines,
        "production_lines": figures.production_lines,
        "generated_lines": figures.generated_lines,
    }


def main(arguments: list[str]) -> int:
    """Print the figures in the selected format. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worst", type=int, default=0, metavar="N")
    parser.add_argument("--root", type=Path, default=ROOT, help="measure another checkout")
    options = parser.parse_args(arguments)
    figures = measure(options.root.resolve(), options.paths)
    result = report(figures)
    if options.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:28} {value}")
    if options.worst:
        for text, _ in figures.worst.most_common(options.worst):
            print(text)
        print(dict(figures.denied.most_common(60)))
        for place in figures.denied_places[: options.worst]:
            print(place)
        print(Counter(place.rpartition("/")[0] for place in figures.participles).most_common(40))
        for place in [*figures.complex_functions[: options.worst], *figures.consumers]:
            print(place)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
