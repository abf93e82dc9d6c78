"""The package's and the tests' own source files, read and parsed once for the tests about the source itself."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "notwice"
TESTS = ROOT / "tests"

type_of_function = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One file: its path, its dotted name (without the package's for modules of the package), its text and its tree."""

    path: Path
    name: str

    @property
    def shown(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=str(self.path))

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    def functions(self) -> Iterator[tuple[Function, bool]]:
        """Every function with a flag that says whether it is a method."""
        for parent in ast.walk(self.tree):
            for node in ast.iter_child_nodes(parent):
                if isinstance(node, type_of_function):
                    yield node, isinstance(parent, ast.ClassDef)


def dotted(path: Path, base: Path) -> str:
    """Name of the module in the file `path` below the folder `base`; the empty name is the folder's own package."""
    parts = list(path.relative_to(base).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def package_sources() -> dict[str, Source]:
    """The package's modules by name below `notwice`; the package itself is the empty name."""
    return {name: Source(path, name) for path in sorted(PACKAGE.rglob("*.py")) for name in [dotted(path, PACKAGE)]}


@cache
def sources_of_tests() -> list[Source]:
    """The files of the tests."""
    return [Source(path, "tests." + dotted(path, TESTS)) for path in sorted(TESTS.rglob("*.py"))]


def imported_modules(source: Source) -> set[str]:
    """The modules of the package that a module of the package imports anywhere in it, by name below `notwice`."""
    return {module for node in ast.walk(source.tree) for module in _targets(node, source)}


def _targets(node: ast.AST, source: Source) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name == "notwice" or alias.name.startswith("notwice."):
                yield alias.name.removeprefix("notwice").removeprefix(".")
    elif isinstance(node, ast.ImportFrom):
        base = absolute(node, source)
        if base is not None:
            yield from {_module_or_its_home(base, alias.name) for alias in node.names}


def absolute(node: ast.ImportFrom, source: Source) -> str | None:
    """The module below `notwice` that a from-import names, or None where it names another package's."""
    if node.level:
        here = ["notwice", *filter(None, source.name.split("."))]
        parents = here[: len(here) - node.level + source.is_package]
        full = ".".join([*parents, *filter(None, [node.module])])
    else:
        full = node.module or ""
    if full != "notwice" and not full.startswith("notwice."):
        return None
    return full.removeprefix("notwice").removeprefix(".")


def _module_or_its_home(base: str, name: str) -> str:
    inner = f"{base}.{name}" if base else name
    return inner if inner in package_sources() else base


def docstring_lines(node: Function) -> int:
    """How many lines of a function its docstring takes."""
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is None or first.end_lineno is None:
        return 0
    return first.end_lineno - first.lineno + 1


def length(node: Function) -> int:
    """How many lines a function has, docstring and decorators included."""
    start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return (node.end_lineno or node.lineno) - start + 1


def exported(source: Source) -> list[str]:
    """The names in a module's `__all__`."""
    for node in source.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            value = getattr(node, "value", None)
            return list(ast.literal_eval(value)) if value is not None else []
    return []
