"""Imports candidates' modules one after another: each watched, and each failure one sentence with its line."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

from harness.errors import UserError
from harness.schema.strict_yaml import shown

ENTRY_POINT_GROUP = "harness.candidates"

_changed: dict[str, str] = {}
"""Modules whose import changed settings of this process, with what; a module is imported only once."""


class Imports:
    """Imports one module after another, and keeps what is wrong with each."""

    def __init__(self, root: Path, broken: Mapping[str, str], touch: Callable[[str], None]) -> None:
        self.root = root
        self.broken = broken
        self.touch = touch
        self.problems: list[str] = []

    def named(self, name: str) -> ModuleType:
        """A module of the project or of an installed package. Raises UserError when it does not import."""
        file = self.root.joinpath(*name.split("."))
        file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        what = file.relative_to(self.root).as_posix()
        return self._watched(what, file, lambda: importlib.import_module(name))

    def package(self, name: str) -> Iterator[ModuleType]:
        """The modules of an op's folder; those that do not import are problems."""
        package = importlib.import_module(name)
        for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
            try:
                yield self.named(f"{package.__name__}.{info.name}")
            except UserError as error:
                self.problems.append(str(error))

    def entry_points(self) -> Iterator[ModuleType]:
        """Modules that installed packages advertise."""
        for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
            what = f"entry point {point.name} ({point.value})"
            try:
                loaded = self._watched(what, None, point.load)
            except UserError as error:
                self.problems.append(str(error))
                continue
            if isinstance(loaded, ModuleType):
                yield loaded
            else:
                self.problems.append(f"{what} must name a module.")

    def extra(self, name: str) -> ModuleType:
        """A module by dotted name or file path. Raises UserError when it is not there or does not import."""
        what = f"--candidates {name}"
        if not name.endswith(".py"):
            if Path(name).exists():
                raise UserError(f"{what}: is neither a .py file nor a module's dotted name.")
            return self._watched(what, None, lambda: importlib.import_module(name))
        path = Path(name).resolve()
        if not path.is_file():
            raise UserError(f"{what}: no such file.")
        return self._watched(what, path, lambda: loaded_extra(name) or _from_file(path))

    def _watched(self, what: str, file: Path | None, load: Callable[[], ModuleType]) -> ModuleType:
        """Import; put back the settings of the process that it changes, and remember that it did."""
        if what in self.broken:
            raise UserError(self.broken[what])
        self.touch(what)
        from harness.measure.global_state import watched  # imports torch, which every op does

        known = dict(sys.modules)
        try:
            with watched() as settings:
                module = load()
        except (Exception, SystemExit) as error:
            raise UserError(_not_imported(error, what, file, self.root)) from error
        for new in [name for name, loaded in sys.modules.items() if known.get(name) is not loaded]:
            # The module, and those it brought along: one of them did it.
            _changed.pop(new, None)
            if settings.changed:
                _changed[new] = f"its import {settings.changed}"
        if (changed := self.changed(module)) is not None:
            self.problems.append(f"{what}: {changed}; leave them as they are.")
        return module

    def changed(self, module: ModuleType) -> str | None:
        """What the module's import changed of the process, or None."""
        return _changed.get(getattr(module, "__name__", ""))


def _extra_name(path: Path) -> str:
    return f"harness_extra_{path.stem}"


def loaded_extra(name: str) -> ModuleType | None:
    """An extra that this process has imported already."""
    if not name.endswith(".py"):
        return sys.modules.get(name)
    path = Path(name).resolve()
    module = sys.modules.get(_extra_name(path))
    return module if module is not None and module.__file__ == str(path) else None


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_extra_name(path), path)
    assert spec is not None
    assert spec.loader is not None
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # its own helpers lie beside it
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def _not_imported(error: BaseException, subject: str, file: Path | None, root: Path) -> str:
    """One sentence with the line that raised, where it lies in the project or beside the file."""
    message = " ".join(str(error).split()).rstrip(".")
    place: tuple[Path, int] | None = None
    if isinstance(error, SyntaxError) and (error.filename or file):
        place, message = (Path(error.filename or str(file)), error.lineno or 1), error.msg
    near = {(root / "candidates").resolve(), *([file.parent.resolve()] if file is not None else [])}
    for frame in traceback.extract_tb(error.__traceback__) if place is None else ():
        path = Path(frame.filename).resolve()
        if frame.lineno and not frame.filename.startswith("<") and near & set(path.parents):
            place = path, frame.lineno
    where = f" ({shown(place[0])}:{place[1]})" if place else ""
    return f"{subject} does not import: {type(error).__name__}: {message}{where}."
