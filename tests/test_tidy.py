"""The house rules that no linter knows: layers, purity, sizes, reasons, words."""

import ast
import io
import re
import statistics
import subprocess
import sys
import tokenize
from collections.abc import Iterator

import pytest

from tests import sources
from tests.sources import ROOT, Function, Source, package_sources, sources_of_tests

# --- layers: which modules of the package a module may import -------------------------------------------------------
# Names are below `notwice`, "" is the package itself. A name stands for the module and all below it; the longest name
# that fits a module decides. A module may always import itself, and what stands below it.

VALUES = {"problems", "model", "errors"}
PURE_PARTS = VALUES | {"policy", "identity", "fingerprint", "plain", "canonical", "canonical_json", "codec", "results"}
RULES = PURE_PARTS | {"core", "flows"}
LOOPS = RULES | {"observe", "recovery", "backlog", "redaction", "privacy", "waiting", "limits", "heart", "runtime"}
LOOPS |= {"stores.port", "definitions"}
FACES = LOOPS | {
    "purging",
    "steps",
    "operation_base",
    "operation",
    "decorate",
    "guard_base",
    "guard",
    "async_guard",
    "stores",
}
DOORS = FACES | {"http", ""}

LAYERS: dict[str, set[str]] = {
    "": FACES,
    "problems": set(),
    "model": {"problems"},
    "errors": {"problems", "model"},
    "policy": VALUES,
    "plain": set(),
    "canonical_json": {"plain"},
    "canonical": VALUES | {"canonical_json", "plain"},
    "identity": VALUES | {"canonical"},
    "fingerprint": VALUES | {"canonical", "canonical_json"},
    "codec": VALUES | {"canonical", "canonical_json", "plain"},
    "results": VALUES | {"codec"},
    "core": PURE_PARTS,
    "flows": PURE_PARTS | {"core"},
    "observe": VALUES,
    "backlog": set(),
    "redaction": VALUES | {"canonical"},
    "privacy": PURE_PARTS | {"redaction"},
    "waiting": LOOPS - {"heart", "runtime"},
    "limits": set(),
    "awaiting": VALUES,
    "heart": LOOPS - {"runtime"},
    "runtime": LOOPS,
    "definitions": set(),
    "decorate": VALUES | {"identity", "codec", "definitions"},
    "steps": LOOPS,
    "purging": LOOPS,
    "operation_base": LOOPS | {"steps", "awaiting"},
    "operation": LOOPS | {"steps", "awaiting", "operation_base", "decorate"},
    "guard_base": LOOPS | {"steps", "operation_base", "decorate"},
    "recovery": RULES,
    "lookups": PURE_PARTS,
    "guard": FACES - {"async_guard"},
    "async_guard": FACES - {"guard"},
    "stores": VALUES | {"codec"},
    "stores.jsonfile": VALUES | {"codec", "identity", "fingerprint", "stores"},
    "stores.port": VALUES,
    "stores.sealed": VALUES | {"stores.port"},
    "doctor": LOOPS | {"identity", "stores"},
    "http": FACES,
    "http.exchange": RULES,
    "integrations": DOORS,
    "server": DOORS,
    "testing": DOORS | {"integrations"},
    "testing.history": VALUES,
    "testing.linearizable": VALUES,
    "testing.auditor": VALUES | {"testing.history"},
    "cli": DOORS | {"doctor", "integrations", "server", "demo"},
    "demo": DOORS | {"server"},
    "__main__": {"cli"},
}

# --- purity ---------------------------------------------------------------------------------------------------------

PURE = {*RULES, "http.exchange"}
IMPURE_MODULES = {
    *("asyncio", "concurrent", "multiprocessing", "queue", "sched", "signal", "subprocess", "threading"),
    *("fcntl", "glob", "mmap", "os", "pathlib", "platform", "shutil", "sqlite3", "tempfile"),
    *("http", "select", "selectors", "socket", "socketserver", "ssl"),
    *("logging", "random", "secrets", "time"),
}
IMPURE_CALLS = {"open", "print", "input", "eval", "exec", "breakpoint"}
IMPURE_ATTRIBUTES = {"now", "utcnow", "today", "uuid1", "uuid4", "urandom", "getrandom"}

# --- sizes ----------------------------------------------------------------------------------------------------------

FUNCTION_LINES_MAX = 70
FUNCTION_LINES_MEDIAN_MAX = 8
FILE_LINES_MAX = 600
POSITIONAL_MAX = 3

# --- reasons and words ----------------------------------------------------------------------------------------------

EXEMPTION = re.compile(
    r"#\s*(noqa\b(:\s*[A-Z]+[0-9]+([,\s]+[A-Z]+[0-9]+)*)?|(type|pyright|mypy):\s*ignore(\[[^\]]*\])?|pragma:\s*no\s+cover)"
)
REASON = re.compile(r"[A-Za-z]+\W+[A-Za-z]{2,}")

# Each word is given in two halves, so that this file does not hold it.
FORBIDDEN_WORDS = tuple(
    first + second
    for first, second in [
        ("/wo", "rk/"),
        ("/tmp/br", "ief"),
        ("py", "pi.org"),
        ("python", "hosted"),
        ("npm", "js."),
        ("deb.deb", "ian"),
        ("Cla", "ude"),
        ("Anth", "ropic"),
        ("helper ses", "sion"),
        ("cases", ".md"),
        ("anchors", ".md"),
        ("proving", ".md"),
        ("engines", ".md"),
        ("DESI", "GN.md"),
    ]
)
TEXT_SUFFIXES = {
    ".py",
    ".md",
    ".toml",
    ".txt",
    ".sh",
    ".pml",
    ".html",
    ".yml",
    ".yaml",
    ".json",
    ".svg",
    ".tla",
    ".m",
    "",
}
WALKED = ("src", "tests", "docs", "spec", "bench", "examples", "tools", ".ci")

# Parts that need an extra; everything else must import with the standard library alone.
NEED_AN_EXTRA = {
    "integrations",
    "server",
    "testing",
    "demo",
    "__main__",
    "stores.dynamodb.async_store",
    "stores.dynamodb.link",
    "stores.dynamodb.scans",
    "stores.dynamodb.schema",
    "stores.dynamodb.store",
    "stores.mysql.joined",
    "stores.mysql.opening",
    "stores.mysql.session",
    "stores.mysql.store",
    "stores.postgres.async_store",
    "stores.postgres.joined",
    "stores.postgres.store",
    "stores.redis.async_links",
    "stores.redis.checks",
    "stores.redis.flows",
    "stores.redis.lanes",
    "stores.redis.links",
    "stores.redis.opening",
    "stores.redis.routes",
    "stores.redis.rows",
    "stores.redis.scans",
    "stores.redis.settings",
    "stores.redis.store",
}

IMPORT_ALONE = """
import importlib, sys
sys.path.append(sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
"""

MODULES = list(package_sources().values())
EVERYWHERE = [*MODULES, *sources_of_tests()]


def shown(source: Source) -> str:
    return source.shown


def place(source: Source, node: ast.stmt | ast.expr) -> str:
    return f"{source.shown}:{node.lineno}"


def within(module: str, names: set[str]) -> bool:
    return module in names or any(name and module.startswith(f"{name}.") for name in names)


def layer_of(module: str) -> str:
    """The longest name in LAYERS that stands for a module."""
    fitting = [name for name in LAYERS if name == module or (name and module.startswith(f"{name}."))]
    assert fitting, f"notwice.{module} has no row in LAYERS; give it one"
    return max(fitting, key=len)


@pytest.mark.parametrize("source", MODULES, ids=shown)
def test_a_module_imports_only_from_its_own_layer_and_below(source: Source) -> None:
    """The arrows between the layers hold: what a module imports of the package stands in its row of LAYERS."""
    layer = layer_of(source.name)
    wrong = {
        target
        for target in sources.imported_modules(source)
        if not within(target, LAYERS[layer]) and not (layer and within(target, {layer}))
    }
    assert not wrong, f"{source.shown} ({layer!r}) imports {sorted(wrong)}"


def test_no_one_imports_the_command_line_or_the_server() -> None:
    """The composition roots stand on top: only the command line and the demo start the server."""
    wrong = [
        (source.shown, target)
        for source in MODULES
        for target in sources.imported_modules(source)
        if within(target, {"cli", "server"}) and not within(source.name, {"cli", "server", "demo", "__main__"})
    ]
    assert not wrong


def pure_sources() -> list[Source]:
    return [source for source in MODULES if within(source.name, PURE)]


def impurities(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        match node:
            case ast.Import(names=names):
                yield from (f"{place(source, node)} imports {a.name}" for a in names if not allowed_when_pure(a.name))
            case ast.ImportFrom(module=str(module), level=0) if not allowed_when_pure(module):
                yield f"{place(source, node)} imports from {module}"
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                yield f"{place(source, node)} calls {name}()"
            case ast.Call(func=ast.Attribute(attr=name)) if name in IMPURE_ATTRIBUTES:
                yield f"{place(source, node)} calls .{name}()"
            case _:
                pass


def allowed_when_pure(module: str) -> bool:
    top = module.partition(".")[0]
    return top == "notwice" or (top in sys.stdlib_module_names and top not in IMPURE_MODULES)


@pytest.mark.parametrize("source", pure_sources(), ids=shown)
def test_a_pure_module_has_no_clock_no_chance_and_no_input_or_output(source: Source) -> None:
    """The rules use the standard library only, and of it nothing that reads a clock, draws, waits, logs or does I/O."""
    assert not list(impurities(source))


@pytest.mark.parametrize("source", MODULES, ids=shown)
def test_nothing_is_pickled_and_nothing_is_digested_by_a_broken_hash(source: Source) -> None:
    """Stored results never pass through pickle, and no digest is md5 or sha1."""
    names = {node.attr for node in ast.walk(source.tree) if isinstance(node, ast.Attribute)}
    names |= {alias.name for node in ast.walk(source.tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(source.tree) if isinstance(node, ast.ImportFrom)}
    assert not names & {"pickle", "marshal", "shelve", "md5", "sha1"}


@pytest.mark.parametrize("source", EVERYWHERE, ids=shown)
def test_no_function_is_longer_than_a_screen(source: Source) -> None:
    """A function has at most 70 lines, its docstring included."""
    long = [
        (place(source, node), node.name) for node, _ in source.functions() if sources.length(node) > FUNCTION_LINES_MAX
    ]
    assert not long


def test_functions_are_short_as_a_rule() -> None:
    """Half of the package's functions have at most eight lines, their docstrings left out."""
    lines = [
        sources.length(node) - sources.docstring_lines(node) for source in MODULES for node, _ in source.functions()
    ]
    assert statistics.median(lines or [0]) <= FUNCTION_LINES_MEDIAN_MAX


@pytest.mark.parametrize("source", EVERYWHERE, ids=shown)
def test_no_file_is_a_god_file(source: Source) -> None:
    """A file has at most 600 lines."""
    assert len(source.text.splitlines()) <= FILE_LINES_MAX


def positional(node: Function, *, method: bool) -> int:
    static = any(
        isinstance(decorator, ast.Name) and decorator.id == "staticmethod" for decorator in node.decorator_list
    )
    return len(node.args.posonlyargs) + len(node.args.args) - (method and not static)


@pytest.mark.parametrize("source", MODULES, ids=shown)
def test_a_function_takes_at_most_three_positional_parameters(source: Source) -> None:
    """Beyond the third parameter (self and cls not counted) callers must name what they give."""
    wrong = [
        (place(source, node), node.name)
        for node, method in source.functions()
        if positional(node, method=method) > POSITIONAL_MAX
    ]
    assert not wrong


def needs_docstring(node: ast.stmt) -> bool:
    if isinstance(node, ast.ClassDef):
        return True
    if not isinstance(node, sources.type_of_function) or node.name.startswith("_"):
        return False
    decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    return not decorators & {"overload", "override", "setter", "deleter"}


def undocumented(source: Source) -> Iterator[str]:
    public = set(sources.exported(source))
    for node in source.tree.body:
        if not isinstance(node, (ast.ClassDef, *sources.type_of_function)) or node.name not in public:
            continue
        members = node.body if isinstance(node, ast.ClassDef) else []
        for member in filter(needs_docstring, [node, *members]):
            assert isinstance(member, (ast.ClassDef, *sources.type_of_function))
            if not ast.get_docstring(member):
                yield f"{place(source, member)} {member.name}"


@pytest.mark.parametrize("source", MODULES, ids=shown)
def test_what_is_public_is_documented(source: Source) -> None:
    """Each function and class in a module's `__all__` has a docstring, and so have a class's public methods."""
    assert not list(undocumented(source))


def comments(source: Source) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@pytest.mark.parametrize("source", EVERYWHERE, ids=shown)
def test_each_exemption_from_a_check_has_its_reason_beside_it(source: Source) -> None:
    """A comment that turns a check off says why, on the same line."""
    bare = [
        f"{source.shown}:{line} {comment}"
        for line, comment in comments(source)
        if EXEMPTION.search(comment) and not REASON.search(EXEMPTION.sub("", comment))
    ]
    assert not bare


@pytest.mark.parametrize("source", sources_of_tests(), ids=shown)
def test_each_test_states_the_behaviour_it_checks(source: Source) -> None:
    """Every test function has a docstring."""
    silent = [
        (place(source, node), node.name)
        for node, _ in source.functions()
        if node.name.startswith("test_") and source.path.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert not silent


def naps(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        match node:
            case ast.Attribute(value=ast.Name(id="time"), attr="sleep"):
                yield place(source, node)
            case ast.ImportFrom(module="time", names=names) if any(alias.name == "sleep" for alias in names):
                yield place(source, node)
            case _:
                pass


@pytest.mark.parametrize("source", sources_of_tests(), ids=shown)
def test_no_test_sleeps(source: Source) -> None:
    """Tests move a virtual clock or wait for an event; none of them sleeps."""
    assert not list(naps(source))


def texts() -> Iterator[tuple[str, str]]:
    files = [path for path in ROOT.iterdir() if path.is_file()]
    files += [path for folder in WALKED for path in (ROOT / folder).rglob("*") if path.is_file()]
    for path in sorted(files):
        if path.suffix in TEXT_SUFFIXES and "__pycache__" not in path.parts:
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8", errors="replace")


def test_the_project_speaks_only_of_itself() -> None:
    """No file names a machine's folders, a package index, or how the project is worked on."""
    found = [(name, word) for name, text in texts() for word in FORBIDDEN_WORDS if word in text]
    assert not found


def test_the_package_imports_with_no_extra_installed() -> None:
    """Everything but the parts that an extra is for imports with the standard library alone."""
    names = [f"notwice.{source.name}".rstrip(".") for source in MODULES if not within(source.name, NEED_AN_EXTRA)]
    alone = [sys.executable, "-I", "-S", "-W", "error", "-c", IMPORT_ALONE, str(ROOT / "src")]
    run = subprocess.run([*alone, *names], capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stderr
