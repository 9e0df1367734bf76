"""The verb `harness inventory`."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.errors import ExitCode
from harness.paths import project_root

FILE = "inventory.md"
"""Below `reports/`."""


def inventory(
    check: Annotated[bool, typer.Option("--check", help="compare with reports/inventory.md, write nothing")] = False,
) -> None:
    """Write reports/inventory.md: every op and candidate by domain, contract, model and provider."""
    from harness.inventory.facts import collect
    from harness.inventory.page import render

    root = project_root()
    file = root / "reports" / FILE
    page = render(collect(root))
    if not check:
        file.write_text(page, encoding="utf-8")
        print(file.relative_to(root))
    elif not file.exists() or file.read_text(encoding="utf-8") != page:
        print(f"reports/{FILE} is not what the declarations say; run `harness inventory`.")
        raise typer.Exit(ExitCode.SOME_FAILED)
