"""What the command line asks of candidates' modules, asked in a process of its own.

Importing somebody's module may end the process, hang or crash it. So a child imports the catalog and answers; it says
what it is about to touch, and a module that takes it down, or takes too long, becomes one sentence: it is left alone
from then on (`Survey.broken`), here and in the worker. The command line itself imports no candidate, nor torch.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from harness.errors import UnfitError, UserError
from harness.processes import die_with_parent
from harness.schema.vocabulary import Contract, Kind

if TYPE_CHECKING:
    from harness.op import Candidate, Op

START_LIMIT_S = 180.0
"""Importing torch on a cold disk is slow."""
TOUCH_LIMIT_S = 60.0
"""For importing one module or asking one provider what it lacks."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Listed(_Message):
    """One candidate, as far as it can be told without running it."""

    id: str
    kind: Kind
    contract: Contract
    context: str | None
    missing: str | None
    """What its provider lacks here."""
    version: str | None


class OpSurvey(_Message):
    """What was found for one op."""

    kind: Literal["op"] = "op"
    op: str
    error: str = ""
    """Why there is nothing to say about the op; empty when there is."""
    candidates: tuple[Listed, ...] = ()
    problems: tuple[str, ...] = ()
    """Of its candidates, one sentence each."""
    manifest: tuple[str, ...] = ()
    """What the op finds impossible in its manifest, one sentence each."""


class Survey(_Message):
    """What was found for all ops asked about."""

    kind: Literal["survey"] = "survey"
    ops: tuple[OpSurvey, ...]
    problems: tuple[str, ...]
    """Of the modules and files named on the command line."""
    device_type: Literal["cuda", "cpu"]
    broken: dict[str, str] = Field(default_factory=dict)
    """What took the child down, with a sentence; for `catalog.load`."""

    def of(self, op: str) -> OpSurvey:
        """What was found for one op. Raises UserError when nothing could be."""
        found = next(one for one in self.ops if one.op == op)
        if found.error:
            raise UserError(found.error)
        return found


class _Touch(_Message):
    kind: Literal["touch"] = "touch"
    what: str
    output_bytes: int
    """What the child had written before: the parent may read this after the child has written more."""


class _Request(_Message):
    root: str
    ops: tuple[str, ...]
    extra: tuple[str, ...]
    broken: dict[str, str]
    thorough: bool


_answer: TypeAdapter[_Touch | Survey] = TypeAdapter(Annotated[_Touch | Survey, Field(discriminator="kind")])


def survey(root: Path, ops: Sequence[str], extra: Sequence[str] = (), *, thorough: bool = False) -> Survey:
    """Ask about the ops and their candidates, `extra` among them; `thorough` also watches the compilers' settings.

    Raises UserError for an extra that cannot be imported, UnfitError when torch itself cannot.
    """
    broken: dict[str, str] = {}
    while True:
        request = _Request(root=str(root), ops=tuple(ops), extra=tuple(extra), broken=broken, thorough=thorough)
        found = _ask(request)
        if isinstance(found, Survey):
            return found.model_copy(update={"broken": broken})
        what, how = found
        if not what or what in broken:
            raise UnfitError(f"the catalog cannot be read: its process {how}.")
        broken[what] = f"{what}: {_DOES[what.startswith('provider ')]} {how}; mend it or leave it out."
        if what.startswith("--candidates "):
            raise UserError(broken[what])


_DOES = {False: "importing it", True: "asking what it lacks"}


def _ask(request: _Request) -> Survey | tuple[str, str]:
    """The child's answer, or what it was touching and how it ended."""
    to_read, to_write = os.pipe()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "harness.survey", str(to_write)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(to_write,),
            start_new_session=True,  # Ctrl-C is the parent's to handle, and a hung child goes with its own children
        )
        os.close(to_write)
        touching, said_before, timed_out, deadline = "", 0, False, [monotonic() + START_LIMIT_S]
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
                stdin.write(request.model_dump_json().encode())
            for line in _lines(to_read, deadline):
                if line is None:
                    timed_out = True
                    break
                try:
                    message = _answer.validate_json(line)
                except ValidationError:
                    return touching, f"writes to the pipe of its process: {line[:60]!r}"
                if isinstance(message, Survey):
                    return message
                touching, deadline[0] = message.what, monotonic() + TOUCH_LIMIT_S
                said_before = message.output_bytes
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            os.close(to_read)
        return touching, _ended(timed_out, code, log.fileno(), said_before)


def _lines(descriptor: int, deadline: list[float]) -> Iterator[bytes | None]:
    """Lines as they come, until the end of file; None once the deadline, which the reader moves on, has passed."""
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            left = deadline[0] - monotonic()
            if left <= 0 or not selector.select(left):
                yield None
                return
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            yield from lines


def _ended(timed_out: bool, code: int, log: int, said_before: int) -> str:
    if timed_out:
        return f"takes longer than {TOUCH_LIMIT_S:g} s"
    start = max(said_before, os.fstat(log).st_size - 4000)
    tail = os.pread(log, 4000, start).decode(errors="replace").split("\n")
    said = next((line.strip()[:200] for line in reversed(tail) if line.strip()), "")
    how = f"is killed by {signal.Signals(-code).name}" if code < 0 else f"ends the process (exit code {code})"
    return f"{how} ({said})" if said else how


# -- the child ---------------------------------------------------------------------------------------------------------


def _answer_to(request: _Request, touch: Callable[[str], None]) -> Survey:
    from harness import catalog
    from harness.measure.environment import current_device_type
    from harness.measure.global_state import load_configs

    if request.thorough:
        load_configs()
    device_type = current_device_type()
    root = Path(request.root)
    idle: list[frozenset[str]] = []
    ops = []
    for op in request.ops:
        try:
            entry = catalog.load(op, root, request.extra, broken=request.broken, touch=touch)
        except UserError as error:
            ops.append(OpSurvey(op=op, error=str(error)))
            continue
        idle.append(entry.idle)
        listed = [_listed(candidate, touch) for candidate in entry.candidates]
        manifest = _manifest_problems(entry.op, root / "shapes" / f"{op}.yaml")
        ops.append(OpSurvey(op=op, candidates=tuple(listed), problems=entry.problems, manifest=manifest))
    for_none = sorted(frozenset.intersection(*idle)) if idle else []
    problems = tuple(catalog.for_other_ops(for_none, request.ops))
    return Survey(ops=tuple(ops), problems=problems, device_type="cuda" if device_type == "cuda" else "cpu")


def _listed(candidate: Candidate, touch: Callable[[str], None]) -> Listed:
    from harness.catalog import provider_key

    touch(provider_key(candidate))
    return Listed(
        id=candidate.id,
        kind=candidate.kind,
        contract=candidate.contract,
        context=candidate.context,
        missing=candidate.provider.missing(),
        version=candidate.provider.version(),
    )


def _manifest_problems(op: Op, file: Path) -> tuple[str, ...]:
    from harness.schema.manifest import read_manifest

    if not file.is_file():
        return (f"there is no manifest shapes/{file.name}; add it, or remove candidates/{op.id}/.",)
    try:
        draft = read_manifest(file)
    except UserError as error:
        return (str(error),)
    return tuple(draft.sentences(op))


def main() -> None:
    """The child: reads a request, says what it touches, answers."""
    die_with_parent()
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)  # a process that a candidate leaves behind must not keep the pipe open

    def say(message: _Message) -> None:
        os.write(descriptor, message.model_dump_json().encode() + b"\n")

    request = _Request.model_validate_json(sys.stdin.buffer.read())
    say(_answer_to(request, lambda what: say(_Touch(what=what, output_bytes=os.fstat(1).st_size))))
    # What a candidate started or registered must not keep the answer waiting.
    os._exit(0)


if __name__ == "__main__":
    main()
