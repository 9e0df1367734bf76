"""Where things lie below the project's root."""

from pathlib import Path


def project_root() -> Path:
    """The folder that holds `shapes/`: the working folder where it does, else the checkout this package is in."""
    here = Path.cwd()
    return here if any((here / "shapes").glob("*.yaml")) else package_root()


def package_root() -> Path:
    """The folder that holds the `harness` package that is running."""
    return Path(__file__).resolve().parent.parent
