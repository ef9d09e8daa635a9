"""Tidiness as an ordinary test: sizes, names, dead modules, leftovers, and nothing of one machine.

What is looked at is what git tracks, or would once added. Each rule is a function from the tree
to the places that break it, and is itself tried on a planted breach, so that a rule that sees
nothing is noticed.
"""

from __future__ import annotations

import ast
import re
import subprocess
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

from tools import vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60  # of body, the docstring not counted

# `path::Qualified.name`, each with its reason beside it. Empty is best.
LONG_FUNCTIONS_ALLOWED: frozenset[str] = frozenset()
LONG_FILES_ALLOWED: frozenset[str] = frozenset()

BANNED_WORDS = frozenset({"manager", "managers", "util", "utils", "helper", "helpers", "common", "misc"})
TERMS = ("common_name",)  # words of a standard: X.509
GENERATED = ("src/penstock/scale/proto/",)  # written by a compiler
FOUNDATION = ("penstock.model.", "penstock.wire.", "penstock.kafka.")
# Folders of tests/ that mirror no package, but a folder beside src/ or a separate concern.
TEST_FOLDERS_OF_THEIR_OWN = frozenset(
    {"anywhere", "bench", "docs", "examples", "harness", "paper", "plugins", "tools"}
)

VOCABULARY = "tools/vocabulary.py"  # the list itself
MODULE_LINE = re.compile(r"^  (\w+)  +\S", re.MULTILINE)

# Written in halves, so that this file is not among its own findings.
REMINDERS = tuple(a + b for a, b in (("TO", "DO"), ("FIX", "ME"), ("XX", "X"), ("HA", "CK")))
IGNORED = "# type: " + "ignore"
REGISTRY_HOSTS = tuple(
    a + b
    for a, b in (
        ("py", "pi.org"),
        ("python", "hosted.org"),
        ("repo", ".maven"),
        ("repo1", ".maven"),
        ("maven", "-central"),
        ("central.son", "atype"),
        ("registry", ".npmjs"),
        ("npm", "js.org"),
        ("registry", ".yarnpkg"),
        ("proxy", ".golang"),
        ("crates", ".io"),
        ("ghcr", ".io"),
        ("quay", ".io"),
        ("registry-1", ".docker"),
    )
)
HOME_FOLDERS = tuple("/" + name + "/" for name in ("home", "Users", "root"))
ARCHITECTURE = "docs/architecture.md"
SHARED_FOLDERS = frozenset({"/", "/tmp", "/var/tmp", "/opt", "/srv", "/usr/src", "/builds", "/mnt"})


@dataclass(frozen=True)
class Source:
    """One tracked text file."""

    path: str
    text: str

    @property
    def is_python(self) -> bool:
        return self.path.endswith(".py")

    @property
    def module(self) -> str:
        """The dotted name, for a file below src/; a package goes by its own name."""
        path = PurePosixPath(self.path).with_suffix("")
        parts = path.parts[1:] or path.parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    def within(self, *folders: str) -> bool:
        return self.path.startswith(tuple(folder + "/" for folder in folders))


Tree = tuple[Source, ...]


@cache
def tracked() -> Tree:
    # New files count before they are added, so that a rule speaks before the commit, not after.
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    sources = []
    for name in filter(None, listed.decode().split("\0")):
        path = ROOT / name
        if not path.is_file():  # removed in the working tree, not yet committed
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if "\0" not in text and not name.startswith(GENERATED):
            sources.append(Source(name, text))
    return tuple(sources)


def python(tree: Tree) -> Iterator[Source]:
    return (source for source in tree if source.is_python)


# --- size ----------------------------------------------------------------------------------------


def long_files(tree: Tree) -> Iterator[str]:
    for source in python(tree):
        lines = source.text.count("\n")
        if lines > FILE_LINES_MAX and not source.within("tests") and source.path not in LONG_FILES_ALLOWED:
            yield f"{source.path}: {lines} lines, at most {FILE_LINES_MAX}"


def functions(
    node: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{child.name}"
            if not isinstance(child, ast.ClassDef):
                yield name, child
            yield from functions(child, name + ".")
        else:
            yield from functions(child, prefix)


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    if not body:
        return 0
    return (body[-1].end_lineno or body[-1].lineno) - body[0].lineno + 1


def long_functions(tree: Tree) -> Iterator[str]:
    for source in python(tree):
        for name, function in functions(source.tree):
            lines = body_lines(function)
            if lines > FUNCTION_LINES_MAX and f"{source.path}::{name}" not in LONG_FUNCTIONS_ALLOWED:
                yield f"{source.path}:{function.lineno} {name}: {lines} lines, at most {FUNCTION_LINES_MAX}"


def exceptions_without_need(tree: Tree) -> Iterator[str]:
    """An exception that is no longer needed is struck off the list."""
    long = {
        f"{source.path}::{name}"
        for source in python(tree)
        for name, function in functions(source.tree)
        if body_lines(function) > FUNCTION_LINES_MAX
    } | {source.path for source in python(tree) if source.text.count("\n") > FILE_LINES_MAX}
    for allowed in sorted((LONG_FUNCTIONS_ALLOWED | LONG_FILES_ALLOWED) - long):
        yield f"{allowed}: is short enough now"


# --- names ---------------------------------------------------------------------------------------


def words(name: str) -> set[str]:
    for term in TERMS:
        name = name.replace(term, "")
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def banned_names(tree: Tree) -> Iterator[str]:
    for source in python(tree):
        for part in PurePosixPath(source.path).with_suffix("").parts:
            if words(part) & BANNED_WORDS:
                yield f"{source.path}: `{part}` does not name what is inside"
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for word in sorted(words(node.name) & BANNED_WORDS):
                    yield f"{source.path}:{node.lineno} {node.name}: `{word}` names nothing"


def undocumented_modules(tree: Tree) -> Iterator[str]:
    """Each module states what it is; a package also what it is not and what it promises."""
    for source in python(tree):
        if source.within("src", "bench", "tools") and not ast.get_docstring(source.tree):
            yield f"{source.path}: no docstring"


def words_to_replace(tree: Tree) -> Iterator[str]:
    """Identifiers and prose use the field's words: `tools/vocabulary.py` has the list."""
    for source in tree:
        if source.path.endswith((".py", ".md")) and source.path != VOCABULARY:
            yield from vocabulary.breaches(source.path, source.text)


def incomplete_contents(tree: Tree) -> Iterator[str]:
    """A package's docstring lists its modules and subpackages, each with a phrase."""
    packages = {source.module: source for source in python(tree) if source.path.endswith("/__init__.py")}
    children: dict[str, set[str]] = {}
    for source in python(tree):
        parent, _, name = source.module.rpartition(".")
        if source.within("src") and name != "__main__":
            children.setdefault(parent, set()).add(name)
    for generated in GENERATED:
        parent, _, name = Source(generated + "__init__.py", "").module.rpartition(".")
        children.setdefault(parent, set()).add(name)
    for module, source in packages.items():
        if not source.within("src"):
            continue
        listed = set(MODULE_LINE.findall((ast.get_docstring(source.tree) or "").partition("Modules:\n")[2]))
        for name in sorted(children.get(module, set()) - listed):
            yield f"{source.path}: `{name}` is not in its list of modules"
        for name in sorted(listed - children.get(module, set())):
            yield f"{source.path}: `{name}` is listed and does not exist"


# --- dead modules --------------------------------------------------------------------------------


def imported_names(source: Source) -> Iterator[str]:
    package = source.module if source.path.endswith("/__init__.py") else source.module.rpartition(".")[0]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Commands loaded when called, and processes started with `-m`, go by name.
            yield from re.findall(r"\bpenstock(?:\.\w+)+", node.value)


def is_entry_point(module: str) -> bool:
    """Modules that are reached without an import: by the command, by discovery, by users' tests."""
    return (
        module.endswith((".__main__", ".testing"))
        or module.startswith(("penstock.cli.", "penstock.model.errors."))
        or module in {"penstock", "penstock.cli"}
    )


def orphan_modules(tree: Tree) -> Iterator[str]:
    users: dict[str, set[str]] = {}
    for source in python(tree):
        for name in imported_names(source):
            users.setdefault(name, set()).add(source.path)
    scripts = " ".join(s.text for s in tree if s.path in {"pyproject.toml", "Makefile"})
    for source in python(tree):
        if not source.within("src") or source.path.endswith("/__init__.py") or is_entry_point(source.module):
            continue
        used_by = users.get(source.module, set()) - {source.path}
        # What later parts start from comes before them: there a test is a reader. Elsewhere code
        # that only its test calls is dead.
        if source.module.startswith(FOUNDATION):
            alive = bool(used_by)
        else:
            alive = any(not user.startswith("tests/") for user in used_by)
        if not alive and not re.search(rf"\b{re.escape(source.module)}\b", scripts):
            yield f"{source.path}: no module imports it"


# --- leftovers, and what belongs to one machine ---------------------------------------------------


def matches(tree: Tree, pattern: str, complaint: str) -> Iterator[str]:
    compiled = re.compile(pattern)
    for source in tree:
        for number, line in enumerate(source.text.splitlines(), 1):
            if match := compiled.search(line):
                yield f"{source.path}:{number} `{match.group()}` {complaint}"


def reminders(tree: Tree) -> Iterator[str]:
    return matches(tree, rf"\b(?:{'|'.join(REMINDERS)})\b", "is work put off: do it, or open an issue")


def unexplained_ignores(tree: Tree) -> Iterator[str]:
    """Every ignored type error has its code and its reason beside it."""
    return matches(tuple(python(tree)), rf"{IGNORED}(?!\[[\w,-]+\] +# \S)", "gives no reason")


def registry_hosts(tree: Tree) -> Iterator[str]:
    return matches(tree, "|".join(map(re.escape, REGISTRY_HOSTS)), "ties the project to one registry")


def machine_paths(tree: Tree) -> Iterator[str]:
    common_dir = subprocess.run(
        ["git", "rev-parse", "--path-format=absolute", "--git-common-dir"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    # A worktree stands elsewhere than the clone it belongs to: neither path may be written down.
    places = {str(place) + "/" for clone in (ROOT, Path(common_dir).parent) for place in own_folders(clone)}
    either = "|".join(re.escape(place) for place in sorted({*places, *HOME_FOLDERS}))
    return matches(tree, rf"(?<![\w./~$}}<>*-])(?:{either})", "is a path of one machine")


def own_folders(clone: Path) -> Iterable[Path]:
    return takewhile(lambda folder: str(folder) not in SHARED_FOLDERS, (clone, *clone.parents))


# --- tests mirror the source ----------------------------------------------------------------------


def unmirrored(tree: Tree) -> Iterator[str]:
    paths = [PurePosixPath(source.path).parts for source in python(tree)]
    areas = {parts[2] for parts in paths if parts[:2] == ("src", "penstock") and len(parts) > 3}
    tested = {p[1] for p in paths if p[0] == "tests" and len(p) > 2 and p[-1].startswith("test_")}
    folders = {parts[1] for parts in paths if parts[0] == "tests" and len(parts) > 2}
    for area in sorted(areas - tested):
        yield f"src/penstock/{area}: no tests/{area}/test_*.py"
    for folder in sorted(folders - areas - TEST_FOLDERS_OF_THEIR_OWN):
        yield f"tests/{folder}: mirrors no package of src/penstock"


def packages_without_a_row(tree: Tree) -> Iterator[str]:
    """The page of the architecture has every package in its table."""
    paths = [PurePosixPath(source.path).parts for source in python(tree)]
    page = "".join(source.text for source in tree if source.path == ARCHITECTURE)
    for area in sorted({parts[2] for parts in paths if parts[:2] == ("src", "penstock") and len(parts) > 3}):
        if f"`penstock.{area}`" not in page:
            yield f"{ARCHITECTURE}: no row for `penstock.{area}`"


# --- errors that no test has seen ------------------------------------------------------------------


def untested_errors(tree: Tree) -> Iterator[str]:
    """An error that the product raises is raised by a test too, and named there by class or code."""
    tested = mentioned(source for source in python(tree) if source.within("tests"))
    used = mentioned(source for source in python(tree) if source.within("src") and not is_catalogue(source))
    for source in filter(is_catalogue, python(tree)):
        for node in source.tree.body:
            if not isinstance(node, ast.ClassDef) or node.name not in used:
                continue
            codes = {inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant)}
            if not tested & {node.name, *codes}:
                yield f"{source.path}:{node.lineno} {node.name}: no test raises it"


def is_catalogue(source: Source) -> bool:
    return source.within("src/penstock/model/errors") and not source.path.endswith("/__init__.py")


def mentioned(sources: Iterable[Source]) -> set[str]:
    return {word for source in sources for word in re.findall(r"PEN-\d+|\w+", source.text)}


# --- the rules, and a breach of each --------------------------------------------------------------

BODY = "\n".join(f"    x{n} = {n}" for n in range(FUNCTION_LINES_MAX + 1))


IDENTIFIER, PHRASE = next(iter(vocabulary.IDENTIFIERS)), next(iter(vocabulary.PROSE))


def planted(path: str, text: str) -> Tree:
    return (Source(path, text),)


RULES: dict[str, tuple[Callable[[Tree], Iterable[str]], tuple[Tree, ...]]] = {
    "files are short": (
        long_files,
        (planted("src/penstock/a/b.py", "x = 1\n" * (FILE_LINES_MAX + 1)),),
    ),
    "functions are short": (
        long_functions,
        (planted("src/penstock/a/b.py", f'def f():\n    """D."""\n{BODY}\n'),),
    ),
    "names mean something": (
        banned_names,
        (
            planted("src/penstock/a/b.py", "class LinkManager:\n    pass\n"),
            planted("src/penstock/a/string_utils.py", ""),
        ),
    ),
    "modules state what they are": (
        undocumented_modules,
        (planted("src/penstock/a/__init__.py", "x = 1\n"),),
    ),
    "words are the field's": (
        words_to_replace,
        (
            planted("src/penstock/a/b.py", f"def is_{IDENTIFIER}() -> bool: ...\n"),
            planted("src/penstock/a/b.py", f"x = 1  # {PHRASE} reads it\n"),
            planted("src/penstock/a/b.py", f'TEXT = "the file that {PHRASE} reads"\n'),
            planted("docs/a.md", f"A page that {PHRASE} reads.\n"),
            planted(f"src/penstock/a/{IDENTIFIER}.py", ""),
        ),
    ),
    "packages list their modules": (
        incomplete_contents,
        (
            planted("src/penstock/a/__init__.py", '"""A."""\n') + planted("src/penstock/a/b.py", ""),
            planted("src/penstock/a/__init__.py", '"""A.\n\nModules:\n  gone  what it was\n"""\n'),
        ),
    ),
    "no module is dead": (
        orphan_modules,
        (planted("src/penstock/a/b.py", '"""Unused."""\n'),),
    ),
    "nothing is put off": (
        reminders,
        (planted("src/penstock/a/b.py", f"# {REMINDERS[0]}: later\n"),),
    ),
    "what is overlooked has a reason": (
        unexplained_ignores,
        (
            planted("tests/a/test_b.py", f"x = y  {IGNORED}[attr-defined]\n"),
            planted("tests/a/test_b.py", f"x = y  {IGNORED}  # because\n"),
        ),
    ),
    "no registry is named": (
        registry_hosts,
        (planted("x.lock", f"https://{REGISTRY_HOSTS[0]}/simple\n"),),
    ),
    "no machine is named": (
        machine_paths,
        (
            planted("docs/a.md", f"cd {ROOT}/src\n"),
            planted("docs/a.md", f"cd {HOME_FOLDERS[0]}ada\n"),
        ),
    ),
    "tests mirror the source": (
        unmirrored,
        (
            planted("src/penstock/a/b.py", ""),
            planted("tests/a/test_b.py", ""),
        ),
    ),
    "the architecture has every package": (
        packages_without_a_row,
        (planted("src/penstock/a/b.py", "") + planted("docs/architecture.md", "| `penstock.b` | it |\n"),),
    ),
    "errors are tested": (
        untested_errors,
        (
            planted("src/penstock/model/errors/a.py", "class Gone(PenstockError):\n    pass\n")
            + planted("src/penstock/a/b.py", "raise Gone\n"),
        ),
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_tree_is_tidy(rule: str) -> None:
    check, _ = RULES[rule]

    breaches = list(check(tracked()))

    assert not breaches, "\n" + "\n".join(breaches)


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_finds_its_breaches(rule: str) -> None:
    check, breaches = RULES[rule]

    reported = [list(check(breach)) for breach in breaches]

    assert [len(lines) for lines in reported] == [1] * len(breaches)


def test_no_exception_outlives_its_need() -> None:
    assert not list(exceptions_without_need(tracked()))


@pytest.mark.parametrize(
    "user",
    [
        Source("src/penstock/a/c.py", "from penstock.a import b\n"),
        Source("src/penstock/a/c.py", "from .b import thing\n"),
        Source("src/penstock/a/__init__.py", "from . import b\n"),
        Source("bench/a.py", "import penstock.a.b\n"),
        Source("src/penstock/a/c.py", 'COMMAND = "penstock.a.b:app"\n'),
    ],
    ids=["from package", "relative", "from own package", "bench", "by name"],
)
def test_a_module_with_a_user_is_no_orphan(user: Source) -> None:
    module = Source("src/penstock/a/b.py", "")

    breaches = [line for line in orphan_modules((module, user)) if line.startswith(module.path)]

    assert not breaches


def test_code_that_only_its_test_calls_is_an_orphan() -> None:
    module = Source("src/penstock/a/b.py", "")
    test = Source("tests/a/test_b.py", "from penstock.a import b\n")

    assert list(orphan_modules((module, test))) == ["src/penstock/a/b.py: no module imports it"]
