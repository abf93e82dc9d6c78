"""``make mutate ARGS=core``: change a module in every small way, in a copy, and say which changes no test notices.

mutmut makes the changes, `forks` runs the tests. What survives has to stand in ``survivors.md`` with a reason, or a
better test has to be written. Constants and tables outside of functions are not changed: tests of what they stand for
are. Of a class's face for event loops only those methods are tried that may differ from the other face's: a change of
any other is noticed by `tests.test_parity`, which compares the texts.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from tests.mutation.forks import Earlier, hashes
from tests.mutation.modules import MODULES, Module
from tests.sources import package_sources, type_of_function
from tests.test_parity import PAIRS, sync_name

ROOT = Path(__file__).parent.parent.parent
COPIED = ("src", "tests", "bench", "docs", "README.md", "CHANGELOG.md", "Makefile", "constraints.txt")
SURVIVED, UNTESTED, WORDS = "survived", "untested", "survived in words alone"
HELD, NOT_RUN = "held by its twin", "not run"

# Left out are tests that start a process of their own, where a changed module does not know which change is on.
APART = ("for_what_the_bytes_say", "the_end_of_the_interpreter", "depend_on_the_hash_seed")
_CAST = re.compile(r"""cast\((None|"[^"]*"), """)
SETTINGS = """
[tool.mutmut]
source_paths = ["src"]
only_mutate = {files}
also_copy = {copied}
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "timeout=0", "-k", "{kept}"]
"""


class Mutant(NamedTuple):
    """One change: where, the lines as they were and as they became, and what came of it."""

    place: str
    was: str
    became: str
    ending: str


def main() -> int:
    """Mutate, print what survived and the counts, and give 1 if a survivor is not explained."""
    asked = argparse.ArgumentParser(prog="make mutate", description="Change a module; some test has to notice.")
    asked.add_argument("modules", nargs="*", metavar="MODULE", help=f"some of {', '.join(MODULES)}; all by default")
    asked.add_argument(
        "--again", action="store_true", help="try only what survived last time, and what has changed since"
    )
    given = asked.parse_args()
    unknown = [name for name in given.modules if name not in MODULES]
    if unknown:
        asked.error(f"there is no module {unknown[0]}; the known ones are {', '.join(MODULES)}")
    explained = explanations((Path(__file__).parent / "survivors.md").read_text(encoding="utf-8"))
    found = [_mutated(name, explained, again=given.again) for name in given.modules or MODULES]
    return int(any(found))


def _mutated(name: str, explained: Mapping[str, list[str]], *, again: bool) -> int:
    """Mutate one module, tell what came of it, and give how many survivors nobody has explained."""
    folder = _workspace(name, MODULES[name], again=again)
    command = [sys.executable, "-m", "tests.mutation.forks"]
    with (folder / "run.log").open("w") as log:
        ended = subprocess.run(["nice", "-n", "10", *command], cwd=folder, check=False, stdout=log, stderr=log)
    mutants = list(_mutants(folder)) if not ended.returncode else []
    if not mutants or any(mutant.ending == NOT_RUN for mutant in mutants):
        sys.exit(f"{name} was not mutated, or not to the end; see {folder / 'run.log'}")
    open_ones = [mutant for mutant in mutants if mutant.ending in (SURVIVED, UNTESTED)]
    left = [mutant for mutant in open_ones if not is_explained(mutant, explained)]
    for mutant in left:
        print(f"\n{mutant.place} ({mutant.ending})\n{mutant.was}\n{mutant.became}")
    counts = Counter(mutant.ending for mutant in mutants)
    told = ", ".join(f"{count} {ending}" for ending, count in counts.most_common())
    print(
        f"{name}: {len(mutants)} made, {told}; {len(open_ones) - len(left)} of {len(open_ones)} explained", flush=True
    )
    return len(left)


def _workspace(name: str, module: Module, *, again: bool) -> Path:
    """A copy of what the tests need, with settings of its own, and with the endings of the last time, to go on from."""
    folder = ROOT / "build" / "mutation" / name
    endings = folder / "endings.json"
    known = json.loads(endings.read_text()) if again and endings.exists() else {}
    earlier = Earlier(known, hashes(folder) if known else {})
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for part in COPIED:
        whole = ROOT / part
        if whole.is_dir():
            shutil.copytree(whole, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        elif whole.exists():
            shutil.copy(whole, folder / part)
    tests = [str(path.relative_to(ROOT)) for each in module.tests for path in sorted((ROOT / "tests").glob(each))]
    files = [f"src/notwice/{each}" for each in module.files]
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8").replace('"-ra", ', "")
    parts = {"files": files, "copied": [part for part in COPIED if part != "tests"], "tests": tests}
    kept = " and ".join(f"not {name}" for name in APART)
    settings += SETTINGS.format(kept=kept, **{key: json.dumps(value) for key, value in parts.items()})
    (folder / "pyproject.toml").write_text(settings, encoding="utf-8")
    (folder / "earlier.json").write_text(json.dumps(earlier))
    (folder / "held.json").write_text(json.dumps(sorted(_held())))
    return folder


def _held() -> Iterator[str]:
    """The methods of the faces for event loops that are one text with their twins, as mutmut names them."""
    for pair in PAIRS:
        module, _, name = pair.asynchronous.partition(":")
        [face] = [
            node for node in package_sources()[module].tree.body if isinstance(node, ast.ClassDef) and node.name == name
        ]
        for method in face.body:
            if isinstance(method, type_of_function) and sync_name(method.name) not in pair.apart:
                yield f"notwice.{module}.xǁ{name}ǁ{method.name}"


def _mutants(folder: Path) -> Iterator[Mutant]:
    """All mutants that were made in a workspace, with their endings."""
    diff_of = import_module("mutmut.mutation.diff_apply").get_diff_for_mutant  # it is installed for this alone
    endings: dict[str, list[str]] = json.loads((folder / "endings.json").read_text())
    held = set(_held())
    before = Path.cwd()
    os.chdir(folder)  # it looks for everything from there
    try:
        for meta in sorted(Path("mutants").rglob("*.meta")):
            for name in json.loads(meta.read_text())["exit_code_by_key"]:
                function = name.rpartition("__mutmut_")[0]
                ending = HELD if function in held else endings.get(name, [NOT_RUN])[0]
                wanted = ending in (SURVIVED, UNTESTED)
                diff = diff_of(name, path=meta.relative_to("mutants").with_suffix("")) if wanted else ""
                place = re.sub(r"\.x_(?=[^.]*$)", ".", function.replace("notwice.", "", 1))
                was, became = _lines(diff, "-"), _lines(diff, "+") or "+(nothing)"
                yield Mutant(place, was, became, WORDS if wanted and is_in_words(was, became) else ending)
    finally:
        os.chdir(before)


def _lines(diff: str, sign: str) -> str:
    return "\n".join(line for line in diff.split("\n") if line.startswith(sign) and not line.startswith(sign * 3))


def _plain(text: str) -> str:
    """The lines of a change, without signs and blanks."""
    return " ".join(line.removeprefix("+").strip() for line in text.split("\n")).strip()


def is_in_words(was: str, became: str) -> bool:
    """Whether nothing but a sentence for people, or the name of a type in a cast, is spelled otherwise."""
    before, after = (_CAST.sub("cast(", _plain(text)) for text in (was.replace("\n-", "\n+").removeprefix("-"), became))
    if before == after:
        return True
    before, after = (text.replace("XX", "").lower() for text in (before, after))
    return before == after and re.search(r"""["'][^"']*[a-z,;]+ [^"']* [^"']*["']""", before) is not None


def explanations(page: str) -> dict[str, list[str]]:
    """The changes in the tables of the page, by their places: rows of | place | `change` | reason |."""
    found: dict[str, list[str]] = {}
    for place, change in re.findall(r"^\| `([^`]+)` \| `` (.+?) `` \| .+ \|$", page, re.MULTILINE):
        found.setdefault(place, []).append(change.replace("\\|", "|"))
    return found


def is_explained(mutant: Mutant, explained: Mapping[str, list[str]]) -> bool:
    """Whether a row of the page stands for it; an ellipsis in a row stands for any text."""
    patterns = (".*".join(map(re.escape, change.split("\u2026"))) for change in explained.get(mutant.place, ()))
    return any(re.fullmatch(pattern, _plain(mutant.became)) for pattern in patterns)


if __name__ == "__main__":
    sys.exit(main())
