"""The rules of the house that depend on the list of areas, or that no linter knows."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

from tenfold import __version__
from tenfold.areas import AREAS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tenfold"
ROOMS = [area.name for area in AREAS]
SERVING = ["claims", "console", "datasets", "files", "numerics", "runtime", "training"]
LAYERS = {
    "__init__",
    "data",
    "model_folder",
    "training",
    "pictures",
    "cli",
    "claims",
    "measurements",
    "ray_engine",
    "ray_parquet",
    "recommendations",
    "published",
    "tuning",
    "command_options",
    "command_inputs",
    "comparison",
    "augmentation",
    "model",
    "advice",
    "batch_size_measurements",
    "diagnosis_table",
    "model_files",
    "study",
    "study_folder",
    "study_pictures",
    "study_table",
}  # a room's modules around its method
SECTIONS = ["What it is", "When to use it, and when not", "How", "Claims", "Benchmark"]
TEXT = {"", ".cfg", ".cff", ".css", ".html", ".j2", ".json", ".md", ".py", ".toml", ".txt", ".yml"}
LONG = 420  # lines; past 400 a file usually holds a second story
LONG_FOR_A_REASON: dict[str, str] = {}  # path: why


def repository_files():
    """Text files that belong to the project: its folders, without what tools leave there."""
    skipped = {"__pycache__", "node_modules"}
    tops = [ROOT / name for name in (".ci", "benchmarks", "docs", "examples", "src", "tests")]
    found = [
        path for top in tops for path in sorted(top.rglob("*")) if path.is_file() and not skipped & set(path.parts)
    ]
    singles = [
        path
        for path in sorted(ROOT.iterdir())
        if path.is_file() and path.suffix in {".md", ".toml", ".cff", ".yml", ".txt"}
    ]
    return [path for path in found + singles if path.suffix in TEXT and "egg-info" not in str(path)]


def modules(*packages):
    """Python files of packages of ``tenfold``."""
    return [path for package in packages for path in sorted((SOURCE / package).rglob("*.py"))]


def named(path):
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph(
        "tenfold", include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )


def method_modules(graph, room):
    return [name for name in sorted(graph.find_descendants(f"tenfold.{room}")) if name.split(".")[2] not in LAYERS]


# --- rooms ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize(
    "path",
    [
        "src/tenfold/{room}/__init__.py",
        "src/tenfold/{room}/data.py",
        "src/tenfold/{room}/training.py",
        "src/tenfold/{room}/cli.py",
        "src/tenfold/{room}/claims.py",
        "tests/{room}",
        "benchmarks/{room}.py",
        "docs/areas/{room}.md",
        "docs/api/{room}.md",
    ],
)
def test_every_room_has_its_parts(room, path):
    assert (ROOT / path.format(room=room)).exists()


def test_every_package_is_a_room_or_serves_all_rooms():
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages == {*ROOMS, *SERVING}


@pytest.mark.parametrize("room", ROOMS)
def test_docs_page_of_a_room_has_its_sections(room):
    page = (ROOT / "docs" / "areas" / f"{room}.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == SECTIONS


@pytest.mark.parametrize("room", ROOMS)
def test_room_is_in_readme_docs_and_import_contracts(room):
    assert f"[`{room}`](docs/areas/{room}.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"areas/{room}.md" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert f"areas/{room}.md" in navigation
    assert f"api/{room}.md" in navigation
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    assert room in contracts[0]["layers"][0].split(" | ")


@pytest.mark.parametrize("room", ROOMS)
def test_claims_of_a_room_are_named_after_it(room):
    claims = next(area for area in AREAS if area.name == room).claims()
    assert claims
    assert all(claim.area == room and claim.id.startswith(f"{room}.") for claim in claims)
    page = (ROOT / "docs" / "areas" / f"{room}.md").read_text(encoding="utf-8")
    assert re.findall(rf"^\| `({room}\.[a-z0-9-]+)` \|", page, re.MULTILINE) == [claim.id for claim in claims]


# --- imports -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", ROOMS)
def test_method_imports_only_mathematics(room, graph):
    allowed = {
        "torch",
        "numpy",
        "scipy",
        "numba",
        "llvmlite",
        "sklearn",
        "jaxtyping",
        "safetensors",
        "huggingface_hub",
        "typing_extensions",
        "rapidfuzz",
        "sacrebleu",  # and transformers: inside functions, of an extra or of the user's own
        "transformers",
    }
    ours = ("tenfold.errors", "tenfold.numerics", "tenfold.runtime", "tenfold.training", f"tenfold.{room}.")
    for module in method_modules(graph, room):
        for imported in graph.find_modules_directly_imported_by(module):
            if imported.startswith("tenfold"):
                assert imported.startswith(ours), f"{module} imports {imported}"
                assert imported.split(".")[2:3] not in [["data"], ["cli"], ["claims"]], f"{module} imports {imported}"
            else:
                assert imported in allowed | sys.stdlib_module_names, f"{module} imports {imported}"


@pytest.mark.parametrize("room", ROOMS)
def test_data_flows_one_way(room, graph):
    def imports(importer, imported):
        return graph.direct_import_exists(importer=importer, imported=imported)

    names = graph.find_descendants(f"tenfold.{room}")
    if f"tenfold.{room}.cli" in names:
        assert not graph.find_modules_that_directly_import(f"tenfold.{room}.cli")
    for layer in ("training", "cli", "claims"):
        if f"tenfold.{room}.data" in names and f"tenfold.{room}.{layer}" in names:
            assert not imports(f"tenfold.{room}.data", f"tenfold.{room}.{layer}")


def test_compiled_modules_import_no_torch(graph):
    for module in graph.modules:
        if module.endswith(".kernels") or module.startswith("tenfold.numerics"):
            assert "torch" not in graph.find_modules_directly_imported_by(module), module


@pytest.mark.parametrize("path", modules(""), ids=named)
def test_commands_import_only_light_modules_at_the_top(path):
    if path.name != "cli.py":
        return
    heavy = {"torch", "numpy", "scipy", "numba", "lightning", "matplotlib", "polars", "sklearn", "PIL", "pandas"}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            assert not heavy & {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in heavy


# --- what code does ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", ROOMS)
def test_method_never_prints_or_opens_a_file(room):
    for path in modules(room):
        if path.stem in LAYERS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"print", "open", "input"}, f"{named(path)}:{node.lineno}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                assert node.func.attr not in {"read_text", "write_text", "read_bytes", "write_bytes"}, (
                    f"{named(path)}:{node.lineno}"
                )


@pytest.mark.parametrize("path", [path for path in modules("") if path.name == "__init__.py"], ids=named)
def test_package_file_only_gives_names(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if path.parent.name == "tenfold" or isinstance(
            node, ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign | ast.If
        ):
            continue
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        lazily = isinstance(node, ast.FunctionDef) and node.name in {"__getattr__", "__dir__"}
        assert is_docstring or lazily, f"{named(path)}:{node.lineno}"


def test_models_are_never_pickled():
    banned = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    for path in modules(""):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not banned & {alias.name.partition(".")[0] for alias in node.names}, named(path)
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").partition(".")[0] not in banned, named(path)
            elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), named(path)
                assert node.value.value is False, named(path)


# --- files ---------------------------------------------------------------------------------------------------------


def test_no_file_is_so_long_that_it_tells_two_stories():
    lengths = {named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in modules("")}
    long = {name: length for name, length in lengths.items() if length > LONG and name not in LONG_FOR_A_REASON}
    assert not long


def test_no_file_is_named_for_nothing():
    nothing = {"utils", "helpers", "misc", "common", "base", "util", "helper", "stuff"}
    assert not [named(path) for path in repository_files() if path.stem in nothing]


def test_repository_names_no_workplace_host_or_tracker():
    # Split, so that this file does not contain what it forbids.
    forbidden = {
        "a folder of one machine": "/" + r"(work|root|home)/\w",
        "a package host": r"(files\.)?python"
        + r"hosted\.org|\bpypi"
        + r"\.org|deb\.deb"
        + r"ian\.org|registry\.npm"
        + r"js\.org",
        "a numbered task": r"(?i)\bissue" + r" #?\d+",
    }
    found = []
    for path in repository_files():
        text = path.read_text(encoding="utf-8")
        for what, pattern in forbidden.items():
            found += [f"{named(path)}: {what}: {match.group()}" for match in re.finditer(pattern, text)]
    assert not found


def test_version_is_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in citation


def test_citation_names_the_paper_of_every_area():
    citation = " ".join((ROOT / "CITATION.cff").read_text(encoding="utf-8").split())
    for area in AREAS:
        for paper in area.paper.split("; "):
            assert re.split(r" \d{4}, ", paper)[1] in citation


def test_tested_set_pins_every_dependency_by_version_alone():
    pins = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([0-9][A-Za-z0-9.]*)", line)
            assert match, line
            pins[canonical(match[1])] = match[2]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + [
        name for extra in ("test", "docs", "loggers", "bench") for name in extras[extra]
    ]
    names = {canonical(re.match(r"[A-Za-z0-9._-]+", requirement)[0]) for requirement in wanted}
    assert names <= set(pins)
    assert not {name for name in pins if name.startswith("nvidia")}
    assert "torchvision" not in pins


def test_dependencies_have_lower_bounds_and_no_upper_ones():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = project["dependencies"] + [
        name for extra in project["optional-dependencies"].values() for name in extra
    ]
    for requirement in requirements:
        assert "<" not in requirement
        assert "==" not in requirement
        assert ">=" in requirement or requirement.startswith("tenfold[")


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()
