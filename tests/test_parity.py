"""The sync and the async face of a class do the same: their syntax trees are equal but for the waiting."""

import ast
import difflib
import re
from dataclasses import dataclass, field

import pytest

from tests.sources import Function, package_sources, type_of_function


@dataclass(frozen=True)
class Pair:
    """Two classes, by module and name; `apart` names the methods that may differ, each with its reason."""

    sync: str
    asynchronous: str
    apart: dict[str, str] = field(default_factory=dict)


PAIRS = [
    Pair(
        "stores.port:Store",
        "stores.port:AsyncStore",
        apart={"blocking": "threads that have no loop, as the heartbeat's, need the sync face of an async store"},
    ),
    Pair(
        "operation:Operation",
        "operation:AsyncOperation",
        apart={
            "_lane": "threads run the handlers of one, tasks those of the other",
            "_store": "each has its own face of the store",
            "_turn": "an event of threads, and one of a loop that other threads must wake",
        },
    ),
    Pair(
        "purging:Purger",
        "purging:AsyncPurger",
        apart={"__init__": "a thread, and a task", "stop": "a thread is joined, a task awaited"},
    ),
    Pair(
        "guard:Guard",
        "async_guard:AsyncGuard",
        apart={
            "__init__": "only the async one has to find the face of a store for event loops",
            "_store": "each has its own face of the store",
            "_wait": "an event of threads, and one of a loop that other threads must wake",
        },
    ),
]

# Where the language or the standard library names the same thing differently in its two faces.
TWIN_NAMES = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
    "StopAsyncIteration": "StopIteration",
    "asynccontextmanager": "contextmanager",
}
AWAITED_TYPES = {"Awaitable", "Coroutine"}


def sync_name(name: str) -> str:
    """The sync face's name for a name of the async face."""
    if name in TWIN_NAMES:
        return TWIN_NAMES[name]
    name = re.sub(r"\bAsync(?=[A-Z])", "", name)
    return re.sub(r"(?<![a-z])async_|_async(?![a-z])", "", name)


class Waitless(ast.NodeTransformer):
    """Takes the waiting, the docstrings and the async names out of a syntax tree."""

    def seen(self, node: ast.AST) -> ast.AST:
        result: ast.AST = self.visit(node)
        return result

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.decorator_list = [each for each in node.decorator_list if ast.unparse(each) != "awaited"]
        fields = {name: value for name, value in ast.iter_fields(node) if name != "name"}
        return self.seen(ast.FunctionDef(name=node.name, **fields))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = sync_name(node.name)
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AST:
        return self.seen(ast.With(items=node.items, body=node.body))

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        return self.seen(ast.For(target=node.target, iter=node.iter, body=node.body, orelse=node.orelse))

    def visit_For(self, node: ast.For) -> ast.AST:
        match node:
            case ast.For(target=ast.Name(id=item), body=[ast.Expr(value=ast.Yield(value=ast.Name(id=given)))]) if (
                item == given
            ):
                return self.seen(ast.Expr(value=ast.YieldFrom(value=node.iter)))
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | None:
        match node:
            case ast.If(
                test=ast.Call(func=ast.Name(id="isawaitable")), body=[ast.Assign(value=ast.Await())], orelse=[]
            ):
                return None  # a function of the caller's may wait, too
            case _:
                return self.generic_visit(node)

    def visit_Await(self, node: ast.Await) -> ast.AST:
        return self.seen(node.value)

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        node.is_async = 0
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id in AWAITED_TYPES:
            inner = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) else node.slice
            return self.seen(inner)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = sync_name(node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        node.attr = sync_name(node.attr)
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            node.value = sync_name(node.value)
        return node


def normal_form(methods: list[Function]) -> list[str]:
    """The lines that a method has without its waiting; overloads of one name stand together."""
    trees = [Waitless().visit(ast.parse(ast.unparse(method))) for method in methods]
    return "\n".join(ast.unparse(ast.fix_missing_locations(tree)) for tree in trees).splitlines()


def methods_of(place: str) -> dict[str, list[str]]:
    """A class's methods by the sync face's name, each in its normal form."""
    module, _, name = place.partition(":")
    body = package_sources()[module].tree.body
    [node] = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
    found: dict[str, list[Function]] = {}
    for member in node.body:
        if isinstance(member, type_of_function):
            found.setdefault(sync_name(member.name), []).append(member)
    return {method: normal_form(definitions) for method, definitions in found.items()}


def shown(pair: Pair) -> str:
    return pair.sync


@pytest.mark.parametrize("pair", PAIRS, ids=shown)
def test_both_faces_say_the_same(pair: Pair) -> None:
    """Method by method, the sync and the async class are one text once the waiting is taken out."""
    sync, asynchronous = methods_of(pair.sync), methods_of(pair.asynchronous)
    shared = (sync.keys() | asynchronous.keys()) - pair.apart.keys()
    differences = [
        line
        for name in sorted(shared)
        for line in difflib.unified_diff(sync.get(name, []), asynchronous.get(name, []), lineterm="", fromfile=name)
    ]
    assert not differences, "\n" + "\n".join(differences)


@pytest.mark.parametrize("pair", PAIRS, ids=shown)
def test_what_may_differ_does_differ(pair: Pair) -> None:
    """An exception from parity that is no longer needed is taken out of the table."""
    sync, asynchronous = methods_of(pair.sync), methods_of(pair.asynchronous)
    assert [name for name in pair.apart if sync.get(name) == asynchronous.get(name)] == []


SAMPLE = '''
class Guard:
    def begin(self, scope):
        """Begins."""
        with self.turn() as turn:
            reply = self._store.apply([scope])
        return [self.see(each) for each in reply]

class AsyncGuard:
    async def begin(self, scope):
        """Begins, and waits."""
        async with self.turn() as turn:
            reply = await self._store.apply([scope])
        return [await self.see(each) async for each in reply]
'''


@pytest.mark.parametrize(
    ("written", "equal"),
    [(SAMPLE, True), (SAMPLE.replace("await self._store.apply([scope])", "await self._store.apply([])"), False)],
    ids=["equal", "different"],
)
def test_the_comparison_itself(written: str, equal: bool) -> None:
    """Waiting alone makes no difference; another argument does."""
    sync, asynchronous = (node.body[0] for node in ast.parse(written).body if isinstance(node, ast.ClassDef))
    assert isinstance(sync, type_of_function)
    assert isinstance(asynchronous, type_of_function)
    assert (normal_form([sync]) == normal_form([asynchronous])) is equal
