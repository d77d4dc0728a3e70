"""The layers import only along the arrows of the architecture, and no module imports itself.

Every import counts: at the top, inside functions, and for typing alone.
"""

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "streamveil"
# importable by all, import nothing of ours
BASE = {"compiled", "errors", "json_text", "kept", "kinds", "types"}
HELPERS = {"minimum", "compiled", "errors", "kept", "types"}  # of the core
METADATA = "release_metadata"  # what releases say: importable by all but the core
DISPLAY = "display"  # tables of answers as people see them: importable by all but the core
BATCH = "batch"  # what sources hand over and jobs hand out: importable by all but the core
CALENDARS = "calendars"  # divisions of time
DISK = "disk"  # how files are written
TERMINAL = "terminal"  # the only way to one

# where a fault is one of ours, no wrong argument of a caller: parts of a mechanism, what is kept
OWN_FAULTS = {
    "batch.py", "core/accounting/coin_table.py", "core/accounting/sequel.py",
    "core/counters/restarting_trees.py", "core/mechanism.py", "core/noisy.py", "core/release.py",
    "core/selection/coins.py", "core/selection/gaussian.py", "core/selection/rounds.py",
    "core/selection/total_test.py", "core/sensitivity.py", "dataflow/grouping.py",
    "dataflow/windows.py", "dynamic/pack.py", "kept.py", "runtime/formats.py",
}  # fmt: skip
# from the ground up; a room below another is never above it
ARROWS = {
    CALENDARS: set(),
    "minimum": set(),
    "core": set(),
    METADATA: set(),
    DISPLAY: set(),
    BATCH: {"core", DISPLAY},  # a release is made of what the core drew
    "calibrate": {"core"},  # a budget to a noise scale: what core then charges
    "counters": {"core", "calibrate"},
    "linear": {"core", "calibrate"},
    "dynamic": {"linear", "core"},
    "expressions": {CALENDARS},
    "plan": {"expressions", "core", "calibrate", CALENDARS},
    "sql": {"plan", "expressions", "core", CALENDARS},
    "dataflow": {"counters", "core", CALENDARS},
    "sketches": {"dataflow", "core", "calibrate", CALENDARS},
    "changing_tables": {"dataflow", "dynamic", "linear", "core"},
    "results": {"dataflow", "counters", "plan", "expressions", "core", CALENDARS},  # of releases
    TERMINAL: set(),
    DISK: set(),
    "connectors": {DISK, TERMINAL, CALENDARS, "core"},  # of the core: the type of what may leave
    "accounts": {DISK, "connectors", "core"},  # a ledger may lie in a database
    "compiler": {DISK, "changing_tables", "sketches", "dataflow", "dynamic", "linear", "counters",
                 "core", "calibrate", "connectors", "sql", "plan", "expressions", CALENDARS},
    "engines": {DISK, "changing_tables", "sketches", "dataflow", "core", "connectors", "plan",
                "expressions", CALENDARS},
    "runtime": {DISK, "accounts", "engines", "compiler", "connectors", "dataflow", "results",
                "core", "calibrate", "sql", "plan", "expressions", CALENDARS},
    "advise": {"engines", "compiler", "changing_tables", "sketches", "dataflow", "core", "plan",
               "expressions", CALENDARS},  # reads plans
    "audit": {"compiler", "dataflow", "linear", "core", "plan", "sketches", CALENDARS},
    "api": {DISK, "advise", "runtime", "results", "compiler", "core", "sql", "plan", CALENDARS},
}  # fmt: skip
INSIDE_CORE = {  # its own rooms, in the order in which to read them
    "accounting": set(),
    "noise": {"accounting"},
    "reference": set(),
    "noisy": set(),
    "sensitivity": {"accounting"},
    "counters": {"accounting", "noise", "noisy", "sensitivity"},
    "measure": {"noise", "noisy"},
    "release": {"accounting", "noise", "noisy", "sensitivity", "counters"},
    "selection": {
        "accounting",
        "noise",
        "noisy",
        "sensitivity",
        "counters",
        "release",
    },
    "mechanism": {"accounting", "sensitivity", "counters", "release", "selection"},
}
TOP = {"__init__", "__main__", "cli", "commands", "demo", "dashboard"}  # may import everything


def layer(path):
    part = path.relative_to(ROOT).parts[0]
    return part.removesuffix(".py")


def imports(path):
    """Layers that a module imports anywhere."""
    for module, names in every_import(path):
        for name in [f"{module}.{one}" for one in names] or [module]:
            if name.startswith("streamveil."):
                yield name.split(".")[1]


@cache
def nodes_in(text):
    """Every node of a module's tree; a text is parsed once for all tests."""
    return list(ast.walk(ast.parse(text)))


@cache
def imports_in(text):
    found = []
    for node in nodes_in(text):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.module, [alias.name for alias in node.names]))
        elif isinstance(node, ast.Import):
            found += [(alias.name, []) for alias in node.names]
    return found


def every_import(path):
    """(module, names) of every import of a module, also inside functions and for typing alone."""
    return imports_in(path.read_text())


def undrawn(path):
    """Layers that a module imports against the arrows."""
    own = layer(path)
    if own in TOP:
        return set()
    base = HELPERS if own == "core" else BASE
    allowed = (set() if own in BASE else ARROWS[own] | base) | {own}
    allowed |= set() if own in BASE | {"core", METADATA} else {METADATA}
    allowed |= set() if own in BASE | {"core", METADATA, DISPLAY} else {BATCH, DISPLAY}
    return set(imports(path)) - allowed


def faults(check, paths):
    """What a check finds, by the modules where it finds something."""
    found = {path.relative_to(ROOT).as_posix(): check(path) for path in paths}
    return {name: wrong for name, wrong in found.items() if wrong}


MODULES = sorted(ROOT.rglob("*.py"))


def test_imports_follow_the_arrows():
    assert len(MODULES) > 300
    assert faults(undrawn, MODULES) == {}


CORE = sorted((ROOT / "core").rglob("*.py"))


def read_later(path):
    """Rooms of the core that one of its modules imports before a reader has met them."""
    own = path.relative_to(ROOT / "core").parts[0].removesuffix(".py")
    if own == "__init__":
        return set()
    found = {
        name.split(".")[2]
        for module, names in every_import(path)
        for name in [f"{module}.{one}" for one in names] or [module]
        if name.startswith("streamveil.core.")
    }
    return found - INSIDE_CORE[own] - {own}


def test_rooms_of_the_core_import_those_read_before():
    assert faults(read_later, CORE) == {}


MOST_LINES = 5_000  # of code in the core, so that one person can read it in a day


def code_lines(text):
    """Lines of code: without blanks, comments and docstrings."""
    tree, said = ast.parse(text), set()
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if documented and ast.get_docstring(node):
            said |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    found = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped | {tokenize.ENDMARKER}:
            found |= set(range(token.start[0], token.end[0] + 1))
    return len(found - said)


def test_the_core_is_a_days_reading():
    assert sum(code_lines(path.read_text()) for path in CORE) <= MOST_LINES
    assert code_lines('"""A.\n\nB."""\n\nx = 1  # c\n# d\ny = (\n    2\n)\n') == 4


def test_the_page_of_the_core_names_every_file_of_it():
    page = (ROOT.parents[1] / "docs" / "core.md").read_text()
    named = re.findall(r"^\| `core/([\w/]+\.py)` \|", page, re.MULTILINE)
    own = [
        path.relative_to(ROOT / "core").as_posix() for path in CORE if code_lines(path.read_text())
    ]
    assert sorted(named) == sorted(own)
    parts = [name.split("/")[0].removesuffix(".py") for name in named]
    assert list(dict.fromkeys(parts)) == list(INSIDE_CORE)  # in the order in which to read them


PLANTED = {
    "at the top": "from streamveil.runtime.job import run\n",
    "whole": "import streamveil.runtime.job\n",
    "in a function": "def f():\n    from streamveil.runtime.job import run\n",
    "in a method": "class A:\n    def f(self):\n        from streamveil import runtime\n",
    "for typing": "if TYPE_CHECKING:\n    from streamveil.runtime.job import Job\n",
}


@pytest.mark.parametrize("text", PLANTED.values(), ids=PLANTED)
def test_the_check_sees_a_forbidden_arrow(text, tmp_path):
    module = tmp_path / "x.py"
    module.write_text("from streamveil.plan import Plan\n" + text)
    assert set(imports(module)) == {"runtime", "plan"}


def test_no_module_needs_itself():
    """Modules alone, not the packages above them: what a reader must know before each."""
    assert circle(needs(packages_in(ROOT, "streamveil"))) == []


def needs(packages):
    """The modules that each module imports anywhere."""
    return {name: set(wanted_by(path, packages)) - {name} for name, path in packages.items()}


def wanted_by(path, packages):
    for module, names in every_import(path):
        for name in [f"{module}.{one}" for one in names] or [module]:
            found = name if name in packages else module
            if found in packages:
                yield found


@pytest.mark.parametrize("back", [
    "def f():\n    from pack.one import a\n",
    "if TYPE_CHECKING:\n    from pack.one import a\n",
    "def f():\n    import pack.one\n",
])  # fmt: skip
def test_the_check_sees_a_circle_in_a_function_or_for_typing(back, tmp_path):
    (tmp_path / "one.py").write_text("from pack.two import b\n")
    (tmp_path / "two.py").write_text(back)
    assert set(circle(needs(packages_in(tmp_path, "pack")))) == {"pack.one", "pack.two"}
    (tmp_path / "two.py").write_text("b = 1\n")
    assert circle(needs(packages_in(tmp_path, "pack"))) == []


def loads(name, packages):
    """Modules that must be whole before `name` is: those it imports and the packages above them.

    The packages above `name` itself are under way whenever it is imported, so they do not count.
    """
    path, above = packages[name], set(ancestors(name))
    for module, names in from_imports(path):
        inside = {f"{module}.{one}" for one in names} & packages.keys()
        if module in above and len(inside) < len(names):  # something that the package defines
            yield module
        wanted = {module, *inside} & packages.keys()
        for one in wanted:
            yield from {one, *ancestors(one)} & packages.keys() - above - {name}


def from_imports(path):
    """(module, names) of every import that runs when a module is loaded."""
    todo = list(ast.parse(path.read_text()).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If | ast.Try | ast.With) and not (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        ):
            todo += node.body + getattr(node, "orelse", []) + getattr(node, "handlers", [])
        elif isinstance(node, ast.ExceptHandler | ast.ClassDef):
            todo += node.body
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)


def ancestors(name):
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def circle(graph):
    """The modules of one circle of imports, or []."""
    done, under_way = set(), []

    def visit(name):
        if name in under_way:
            return under_way[under_way.index(name) :]
        if name in done:
            return []
        under_way.append(name)
        for following in sorted(graph[name]):
            if found := visit(following):
                return found
        done.add(under_way.pop())
        return []

    return next(filter(None, map(visit, sorted(graph))), [])


def packages_in(root, name):
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join((name, *parts)).removesuffix(".__init__")] = path
    return found


def test_every_module_can_be_imported_first():
    """Without circles of imports, no module is ever seen half loaded, whichever comes first."""
    packages = packages_in(ROOT, "streamveil")
    assert circle({name: set(loads(name, packages)) for name in packages}) == []


def test_the_check_sees_a_circle_through_a_package(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "inner" / "__init__.py").write_text("from pack.inner.user import a\n")
    (tmp_path / "inner" / "user.py").write_text("from pack.lone import b\n")
    (tmp_path / "inner" / "tools.py").write_text("c = 1\n")
    (tmp_path / "lone.py").write_text("from pack.inner.tools import c\n")
    packages = packages_in(tmp_path, "pack")
    found = circle({name: set(loads(name, packages)) for name in packages})
    assert set(found) == {"pack.inner", "pack.inner.user", "pack.lone"}
    (tmp_path / "lone.py").write_text("def b():\n    from pack.inner.tools import c\n")
    assert circle({name: set(loads(name, packages)) for name in packages}) == []


def shared_names(root):
    """Names of public classes that more than one module defines."""
    homes = {}
    for path in root.rglob("*.py"):
        for node in nodes_in(path.read_text()):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(root)))
    return {name: sorted(places) for name, places in homes.items() if len(places) > 1}


def test_no_two_public_classes_share_a_name():
    assert shared_names(ROOT) == {}


def test_the_check_sees_a_shared_name(tmp_path):
    (tmp_path / "one.py").write_text("class Schedule: ...\nclass _Own: ...\n")
    (tmp_path / "two.py").write_text("class Schedule: ...\nclass _Own: ...\n")
    assert shared_names(tmp_path) == {"Schedule": ["one.py", "two.py"]}


def taken_compiled(root):
    """Named tuples that compiled functions take."""
    nodes = [node for path in root.rglob("*.py") for node in nodes_in(path.read_text())]
    tuples = {
        node.name
        for node in nodes
        if isinstance(node, ast.ClassDef) and "NamedTuple" in map(ast.unparse, node.bases)
    }
    compiled = (
        node
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and any("njit" in ast.unparse(one) for one in node.decorator_list)
    )
    return {
        name.id
        for node in compiled
        for argument in node.args.args
        if argument.annotation is not None
        for name in ast.walk(argument.annotation)
        if isinstance(name, ast.Name) and name.id in tuples
    }


def test_named_tuples_of_compiled_functions_keep_their_names():
    """Numba reads the caches of an earlier version before it sees that they are old.

    A class that it does not find there by name stops the import of an upgraded package.
    """
    assert taken_compiled(ROOT) == {"Flat", "Law", "Scratch", "Tables"}


# who makes values that may leave; everybody else post-processes them
MAKERS = {
    "drawn": {
        "core/release.py",  # totals of counters
        "core/selection/gaussian.py",  # counts of units
        "core/counters/restarting_trees.py",  # of the preset
        "core/counters/cell_kernels.py",  # of sketches
        "core/measure.py",  # one release each
    },
    "public": {
        "dataflow/release.py",  # variances of noise; keys, which a selection has published
        "dataflow/dp_sqlp.py",  # variances of noise
        "sketches/table.py", "sketches/operator.py",  # their own settings
        "changing_tables/operator.py", "linear/additive.py",
        "dynamic/signed_counter.py",  # the same
    },
    "restored": {
        "dataflow/release.py",  # weights and monotone outputs: in the state
        "dataflow/dp_sqlp.py",  # what a key released last
        "engines/spark/tasks.py",  # releases of tasks
        "linear/protocol.py",  # sums of released answers
        # what was fitted to measurements, step by step
        "linear/mwem.py", "dynamic/continual_mwem.py",
        "dynamic/pmwg.py", "changing_tables/questions.py",
        "dynamic/signed_counter.py", "dynamic/pack.py",  # from the state
        "results/releases.py",  # files of a sink
        "runtime/archive.py", "runtime/checkpoint.py", "runtime/published.py",
    },
    "values": {
        "batch.py",  # rows of a release
        "audit/laid_open.py",  # what both of two runs are told
        "audit/laid_open_measures.py",  # likewise
        "results/releases.py",
        "core/selection/rounds.py",  # estimates, against their thresholds
        "dataflow/release.py", "dataflow/dp_sqlp.py",  # into the state
        "sketches/levels.py",  # what they show their user
        "runtime/tables.py", "runtime/published.py",
        "linear/protocol.py",  # answers
        "changing_tables/operator.py", "changing_tables/questions.py", "runtime/survey.py",
        # public parts of a mechanism's course: sizes, comparisons, choices, models
        "linear/mwem.py", "linear/sparse_vector.py", "dynamic/pmwg.py",
        "dynamic/buckets.py", "dynamic/signed_counter.py", "dynamic/erm.py",
    },
}  # fmt: skip
NOISY = "streamveil.core.noisy"


def uses(root):
    """By function of `core.noisy`: the modules that import it; the module as a whole by 'all'."""
    found = {}
    for path in root.rglob("*.py"):
        for module, names in every_import(path):
            if module == NOISY or (module, "noisy") in [(NOISY[:-6], name) for name in names]:
                for name in names if names and module == NOISY else ["all"]:
                    found.setdefault(name, set()).add(path.relative_to(root).as_posix())
    return found


def called(root):
    """Modules that call the class of values that may leave, or name what only its module has."""
    return {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in nodes_in(path.read_text())
        if (isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "Noisy")
        or (isinstance(node, ast.Attribute) and node.attr == "_may_leave")
    }


def test_few_modules_make_values_that_may_leave():
    found = uses(ROOT)
    assert {name: found.pop(name) for name in MAKERS} == MAKERS
    assert set(found) <= {"Noisy", "post_process", "require_noisy"}
    assert all(name.startswith("core/") for name in MAKERS["drawn"])
    assert called(ROOT) == {"core/noisy.py"}


@pytest.mark.parametrize(("text", "name"), [
    ("def f():\n    from streamveil.core.noisy import drawn\n", "drawn"),
    ("import streamveil.core.noisy\n", "all"),
    ("from streamveil.core import noisy\n", "all"),
])  # fmt: skip
def test_the_check_sees_who_makes_values_that_may_leave(text, name, tmp_path):
    (tmp_path / "x.py").write_text(text)
    assert uses(tmp_path) == {name: {"x.py"}}
    (tmp_path / "x.py").write_text("y = noisy.Noisy(exact, noisy._KEY)\n")
    assert called(tmp_path) == {"x.py"}


# outside the core, who draws: steps of counters, which `core.release.count` alone makes noisy
DRAWERS = {
    "counters/kary.py",
}  # fmt: skip


def drawers(root):
    """Modules outside the core that import a sampler."""
    return {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for module, names in every_import(path)
        if path.relative_to(root).parts[0] != "core"
        and any(
            name.startswith(("streamveil.core.noise.samplers", "streamveil.core.noise.bulk.gauss"))
            for name in [module, *(f"{module}.{one}" for one in names)]
        )
    }


def test_the_core_alone_draws():
    found = drawers(ROOT) - DRAWERS
    assert found == {
        "sketches/table.py",  # room for draws of `core.counters.cell_kernels`
        "sketches/privacy.py",  # how far draws are from their law
    }
    assert drawers(ROOT) >= DRAWERS


@pytest.mark.parametrize("text", [
    "def f():\n    from streamveil.core.noise.samplers import rounded_gaussian\n",
    "from streamveil.core.noise import samplers\n",
    "import streamveil.core.noise.bulk.gaussian\n",
])  # fmt: skip
def test_the_check_sees_who_draws(text, tmp_path):
    (tmp_path / "x.py").write_text(text)
    assert drawers(tmp_path) == {"x.py"}


NOT_OURS = {"_exit", "_replace", "_asdict", "_fields", "_gateway", "_memo", "_engine",
            "_PARTITION_EOF"}  # of packages  # fmt: skip
OF_THE_PROTOCOL = {"_advance", "_skipped"}  # of counters within counters, which own their noise


def private_uses(path):
    """Names with an underscore that a module takes from another one."""
    nodes = nodes_in(path.read_text())
    own = {
        name
        for node in nodes
        for name in (
            [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef)
            else [node.attr] if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            else [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            else []
        )
    }  # fmt: skip
    for node in nodes:
        names = []
        if isinstance(node, ast.Attribute):
            of_itself = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            names = [] if of_itself or node.attr in own else [node.attr]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streamveil"):
            names = [alias.name for alias in node.names]
        yield from (name for name in names if name.startswith("_") and not name.endswith("__"))


def beyond_own(path):
    """Private names that a module takes and nobody allows."""
    allowed = NOT_OURS | (OF_THE_PROTOCOL if "counters" in path.parts else set())
    return set(private_uses(path)) - allowed


def test_nothing_private_is_used_by_another_module():
    assert faults(beyond_own, MODULES) == {}


@pytest.mark.parametrize("text", ["operator._bound(rows)\n", "from streamveil.batch import _x\n",
                                  "f(lambda: state._key)\n"])  # fmt: skip
def test_the_check_sees_a_private_use(text, tmp_path):
    module = tmp_path / "x.py"
    module.write_text("class A:\n    def f(self):\n        return self._mine\n" + text)
    assert len(set(private_uses(module))) == 1


PAGE = ROOT.parents[1] / "docs" / "architecture.md"


def test_the_architecture_page_names_what_there_is():
    page, ours = PAGE.read_text(), ROOT.parents[1]
    named = re.findall(r"`((?:tests/|tools/)?[\w/]+\.py)`(?:: `(\w+)(?:\.(\w+))?`)?", page)
    assert len(named) > 30
    for path, *names in named:
        text = (ours / path if path.startswith(("tests/", "tools/")) else ROOT / path).read_text()
        for name in filter(None, names):
            assert re.search(rf"(class|def) {name}\b", text), (path, name)


def test_the_architecture_page_draws_every_room():
    small = {DISK, DISPLAY, BATCH, METADATA, TERMINAL}  # single modules beside the rooms
    drawn = set(re.findall(r"[a-z_]+", PAGE.read_text().split("```")[1]))
    assert (set(ARROWS) | TOP) - small - {"__init__", "__main__"} <= drawn


def test_a_wrong_argument_is_refused_by_one_class():
    """One mistake raised ValueError here, TypeError there and PlanError elsewhere."""
    raised = re.compile(r"raise (ValueError|TypeError)\(")
    found = {str(p.relative_to(ROOT)) for p in ROOT.rglob("*.py") if raised.search(p.read_text())}
    assert found == OWN_FAULTS


NOT_NAMED_HERE = {  # of other programs, or for any name
    "NAME_sd", "Status", "kafka_header_NAME", "nohup", "setuptools", "synchronous_standby_names",
}  # fmt: skip


def said_names(texts):
    """Names that stand between single backticks, with who says them."""
    for path, text in texts.items():
        for name in re.findall(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)", text):
            yield path, name


def code_names(texts):
    """Every name that code defines, uses, or has as a short text."""
    found = set(NOT_NAMED_HERE)
    for path, text in texts.items():
        found.update(path.with_suffix("").parts)
        for node in ast.walk(ast.parse(text)):
            own = [getattr(node, part, None) for part in ("id", "attr", "arg", "asname", "module")]
            own += [node.name] if hasattr(node, "name") else []
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                own += [node.value] if len(node.value) < 60 and "`" not in node.value else []
            for one in filter(None, own):
                found.update(re.findall(r"\w+", one))
    return found


def unknown_names(texts):
    """What is said to be somewhere and is nowhere."""
    known = code_names(texts)
    return sorted((str(path), name) for path, name in said_names(texts)
                  if not known.issuperset(name.split(".")))  # fmt: skip


def test_docstrings_and_comments_name_what_there_is():
    assert unknown_names({path: path.read_text() for path in MODULES}) == []


def test_the_check_sees_a_name_that_is_gone():
    text = '"""See `gone` and `f`."""\n\n\ndef f():\n    pass  # as `f.away`\n'
    assert unknown_names({Path("m.py"): text}) == [("m.py", "f.away"), ("m.py", "gone")]
