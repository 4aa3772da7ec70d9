"""The floors of the house: which room may import which, what stays light, what is never used."""

import ast
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

Figure = Callable[..., None]
PACKAGE = Path(__file__).parent.parent / "nmt"

# Imports run downward only; a room may import itself, and the rooms of the ground floor may import one another.
FLOORS = [
    {"cli"},
    {"diagnosis"},
    {"training"},
    {"decoding", "evaluation", "alignment", "interop"},
    {"bundle", "pictures"},
    {"model"},
    {"data"},
    {"text"},
    {"storage", "config", "config_mistakes", "errors", "version"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
GROUND = len(FLOORS) - 1
FACADE = {"__init__", "__main__"}  # nmt/__init__.py names Bundle and Translator lazily, __main__ calls the command line


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@cache
def modules() -> dict[str, ast.Module]:
    return {module_of(path): ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def imports(tree: ast.Module, known: frozenset[str]) -> set[str]:
    """Modules imported anywhere in `tree`, in functions too; `from nmt.cli import app` means the module nmt.cli.app."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the room"
            assert node.module is not None
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.add(submodule if submodule in known else node.module)
    return found


def edges() -> list[tuple[str, str]]:
    known = frozenset(modules())
    return [(name, target) for name, tree in modules().items() for target in sorted(imports(tree, known))]


def goes_up(importer: str, imported: str) -> bool:
    """Whether an import breaks the floors."""
    above, below = room_of(importer), room_of(imported)
    if above == below or importer == "nmt" or above in FACADE:
        return False
    if below in FACADE:  # `import nmt` for its version: the top of the house
        return above != "cli"
    if FLOOR[above] == FLOOR[below]:
        return FLOOR[above] != GROUND
    return FLOOR[above] > FLOOR[below]


INTERNAL = [(a, b) for a, b in edges() if b == "nmt" or b.startswith("nmt.")]


def test_every_room_has_a_floor() -> None:
    assert {room_of(name) for name in modules()} - FACADE <= set(FLOOR)
    assert len(INTERNAL) > 50


def test_imports_run_downward(figure: Figure) -> None:
    assert goes_up("nmt.text.lines", "nmt.data.sources")  # negative controls
    assert goes_up("nmt.decoding.translator", "nmt.evaluation.metrics")
    assert goes_up("nmt.bundle", "nmt.decoding.search")
    assert goes_up("nmt.config", "nmt")
    assert not goes_up("nmt.decoding.translator", "nmt.data.batching")
    broken = [f"{a} imports {b}" for a, b in INTERNAL if goes_up(a, b)]
    figure("floors", f"{len(broken)} of {len(INTERNAL)} imports go up {broken or ''}".strip(), "0", not broken)


def test_model_knows_neither_text_nor_data_nor_files() -> None:
    below = {room_of(b) for a, b in INTERNAL if room_of(a) == "model"}
    assert below <= {"model", "config", "errors"}


def test_search_sees_ids_only() -> None:
    assert [b for a, b in INTERNAL if a == "nmt.decoding.search" and room_of(b) in ("text", "data", "bundle")] == []


def test_errors_and_storage_stand_alone() -> None:
    assert [edge for edge in INTERNAL if room_of(edge[0]) == "errors"] == []
    assert {room_of(b) for a, b in INTERNAL if room_of(a) == "storage"} <= {"storage", "errors"}
    outside = {b.split(".")[0] for a, b in edges() if room_of(a) in ("storage", "errors")} - {"nmt"}
    assert outside <= sys.stdlib_module_names


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Modules on a circle: those left when modules that import nothing left are taken off, again and again."""
    left = {name: set(targets) for name, targets in graph.items()}
    while free := [name for name, targets in left.items() if not targets & left.keys()]:
        for name in free:
            del left[name]
    return sorted(left)


def test_no_circles() -> None:
    assert circles({"a": {"b"}, "b": {"a"}, "c": {"a"}, "d": set()}) == ["a", "b", "c"]  # negative control
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for a, b in INTERNAL:
        if a != "nmt":  # its imports are lazy names for the library's users
            graph[a].add(b)
    assert circles(graph) == []


@pytest.mark.parametrize("room", sorted({"data", "text", *FLOORS[-1]}))
def test_low_rooms_name_no_torch(room: str) -> None:
    heavy = {"torch", "safetensors", "matplotlib"}
    assert [edge for edge in edges() if room_of(edge[0]) == room and edge[1].split(".")[0] in heavy] == []


HEAVY = ("torch", "matplotlib", "datasets", "pydantic", "numpy", "pyarrow", "sacrebleu")


def loaded_by(code: str) -> list[str]:
    """Heavy packages in memory after `code` ran in a fresh interpreter."""
    script = f"{code}\nimport sys\nprint('LOADED', *[m for m in {HEAVY!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()[-1].split()[1:]


def test_data_text_and_config_load_no_torch() -> None:
    names = [name for name in modules() if room_of(name) in {"data", "text", *FLOORS[-1]}]
    loaded = loaded_by("\n".join(f"import {name}" for name in names))
    assert "numpy" in loaded  # negative control: the list is really read
    assert {"torch", "matplotlib", "datasets"} & set(loaded) == set()


def test_importing_the_command_line_is_light() -> None:
    assert loaded_by("import nmt.cli") == []


@pytest.mark.parametrize("arguments", ["--help", "--version", "train --help", "translate --help", "eval --help"])
def test_help_is_light(arguments: str) -> None:
    code = f"import sys\nfrom nmt.cli import main\nsys.argv = 'nmt {arguments}'.split()\n"
    loaded = loaded_by(f"{code}try:\n    main()\nexcept SystemExit as e:\n    assert not e.code")
    # Typer itself imports pydantic once a command has options of its own; nmt adds nothing to that.
    assert set(loaded) <= ({"pydantic"} if len(arguments.split()) > 1 else set())


FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec", "torch.load", "yaml.load",
    "yaml.unsafe_load", "pd.read_pickle", "os.system", "os.popen",
}  # fmt: skip
FORBIDDEN_METHODS = {"extractall", "extract", "unpack_archive"}  # of archives, whose names may lead anywhere
FORBIDDEN_KEYWORDS = {"allow_pickle", "trust_remote_code", "shell"}


def unsafe(tree: ast.Module) -> list[str]:
    """What in `tree` could run code hidden in data."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [n for n in names if n.split(".")[0] in FORBIDDEN_MODULES or n in FORBIDDEN_CALLS]
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            method = called.rpartition(".")[2]
            found += [called] if called in FORBIDDEN_CALLS or method in FORBIDDEN_METHODS else []
            for keyword in node.keywords:
                safe = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                found += [str(keyword.arg)] if keyword.arg in FORBIDDEN_KEYWORDS and not safe else []
    return found


@pytest.mark.parametrize(
    ("code", "dangerous"),
    [
        ("import pickle", True),
        ("def f():\n    from pickle import loads", True),
        ("torch.load(path)", True),
        ("from torch import load", True),
        ("eval('1')", True),
        ("exec(text)", True),
        ("yaml.load(text)", True),
        ("np.load(p, allow_pickle=True)", True),
        ("load_dataset(p, trust_remote_code=flag)", True),
        ("archive.extractall(folder)", True),
        ("shutil.unpack_archive(path)", True),
        ("subprocess.run(line, shell=True)", True),
        ("os.system(line)", True),
        ("compile(text, name, 'exec')", True),
        ("subprocess.run([program], shell=False)", False),
        ("re.compile(text)", False),
        ("model.eval()", False),
        ("np.load(p, allow_pickle=False)", False),
        ("json.loads(text)", False),
        ("'torch.load(path)'", False),
    ],
)
def test_the_search_for_unsafe_code_finds_it(code: str, dangerous: bool) -> None:
    assert bool(unsafe(ast.parse(code))) == dangerous


def test_nothing_in_nmt_can_run_code_from_data(figure: Figure) -> None:
    found = [f"{name}: {what}" for name, tree in modules().items() for what in unsafe(tree)]
    figure("unsafe_calls", f"{len(found)} in {len(modules())} modules {found or ''}".strip(), "0", not found)
