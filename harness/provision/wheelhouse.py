"""`make wheelhouse`: collect, on a connected machine, the wheels that an offline GPU host with its own torch lacks.

On the host, with the folder copied there: `python3 -m pip install --no-index --find-links .wheelhouse NAME...`. pip
then leaves alone what the host already has.
"""

import argparse
import re
import sys
from pathlib import Path

from harness.errors import ExitCode, UserError
from harness.provision.pip import Target, download
from harness.provision.providers import REPOSITORY

ROOTS = ("pydantic", "typer", "rich", "jinja2", "filelock", "pyyaml", "nvidia-ml-py")
"""What the harness imports, without torch, triton and the numerical stack, which a host with its own torch has."""
FOR_PROVIDERS = ("apache-tvm-ffi", "msgspec", "ninja", "packaging", "tqdm", "requests")
"""What sglang's and flashinfer's kernels import, and ninja, which builds those compiled on first use."""
NEEDED_BY_THESE = (
    "pydantic-core",
    "annotated-types",
    "typing-inspection",
    "typing-extensions",
    "shellingham",
    "annotated-doc",
    "markdown-it-py",
    "mdurl",
    "pygments",
    "markupsafe",
    "urllib3",
    "certifi",
    "idna",
    "charset-normalizer",
)
DEFAULT = (*ROOTS, *FOR_PROVIDERS, *NEEDED_BY_THESE)


def normalised(name: str) -> str:
    """PEP 503 form of a distribution name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(constraints: Path) -> dict[str, str]:
    """Normalised name to version of the `name==version` lines.

    Raises UserError for a line of any other form.
    """
    pins = {}
    for number, line in enumerate(constraints.read_text().splitlines(), 1):
        requirement = line.split("#")[0].strip()
        if not requirement:
            continue
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s;]+)(\s*;.*)?", requirement)
        if not match:
            raise UserError(f"{constraints}:{number}: {requirement!r} is not of the form name==version")
        pins[normalised(match[1])] = match[2]
    return pins


def requirements(names: tuple[str, ...], pins: dict[str, str]) -> list[str]:
    """`name==version` for each name; a name that brings its own version keeps it.

    Raises UserError for a name that has no version.
    """
    found = []
    for name in names:
        if "==" in name:
            found.append(name)
        elif normalised(name) in pins:
            found.append(f"{name}=={pins[normalised(name)]}")
        else:
            raise UserError(f"{name} is not pinned in the constraints file; give PACKAGES='{name}==VERSION'")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Entry point of `python -m harness.provision.wheelhouse`."""
    parser = argparse.ArgumentParser(prog="make wheelhouse", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME[==VERSION]", help="instead of the default packages")
    parser.add_argument("--python", required=True, help="Python of the host, e.g. 3.12")
    parser.add_argument("--platform", required=True, help="newest platform tag it takes, e.g. manylinux_2_28_x86_64")
    parser.add_argument("--into", type=Path, default=REPOSITORY / ".wheelhouse", help="(default: %(default)s)")
    parser.add_argument("--constraints", type=Path, default=REPOSITORY / "constraints-gpu.txt")
    options = parser.parse_args(arguments)
    try:
        target = Target(options.python, options.platform)
        wanted = requirements(tuple(options.names) or DEFAULT, read_pins(options.constraints))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.BAD_INPUT
    failures = []
    for number, requirement in enumerate(wanted, 1):
        print(f"[{number}/{len(wanted)}] {requirement}", flush=True)
        try:
            download(requirement, target, options.into, extra=("--quiet",))
        except UserError as error:
            failures.append(requirement)
            print(f"  error: {error}", file=sys.stderr, flush=True)
    wheels = list(options.into.glob("*.whl"))
    size_mib = sum(wheel.stat().st_size for wheel in wheels) / 2**20
    print(f"{options.into}: {len(wheels)} wheels, {size_mib:.1f} MiB. On the host, beside a copy of the folder:")
    names = " ".join(options.names or (*ROOTS, *FOR_PROVIDERS))
    print(f"  python3 -m pip install --no-index --find-links {options.into.name} {names}")
    if failures:
        print(f"not collected: {', '.join(failures)}", file=sys.stderr)
    return ExitCode.SOME_FAILED if failures else ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
