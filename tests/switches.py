"""How to switch off each defence of the harness, one at a time; only `python -m tests.defences` does.

A test that is marked `defence(name)` must fail once `OFF[name]` has run. Switches replace functions and constants from
outside: the harness itself knows nothing of them. Each imports what it replaces, so that nothing else is loaded.
"""

import sys
from collections.abc import Callable
from typing import Any

OFF_VARIABLE = "HARNESS_TEST_OFF"
"""Environment variable with the name of the defence that is off; workers that tests start inherit it."""

OFF: dict[str, Callable[[], None]] = {}


def switch_off(name: str) -> None:
    """Switch one defence off in this process, for good. Raises KeyError for a name without a switch."""
    OFF[name]()


def _off(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(switch: Callable[[], None]) -> Callable[[], None]:
        assert name not in OFF, name
        OFF[name] = switch
        return switch

    return add


def _everywhere(original: Any, replacement: Any) -> None:
    """Replace an object under whatever name the harness's loaded modules know it."""
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == "harness":
            for attribute, value in list(vars(module).items()):
                if value is original:
                    setattr(module, attribute, replacement)


def _says_nothing(*args: Any, **kwargs: Any) -> str:
    """In place of a check that returns a reason."""
    return ""
