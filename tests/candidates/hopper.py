"""Compiles captured kernel launches for sm_90 where there is no GPU, and reads what the assembler says of them."""

import json
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

_TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}
_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def _compile(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As Triton's launcher specialises: 1 becomes a constant, multiples of 16 are marked, tensors are aligned."""
    bound = dict(zip(function.arg_names, args, strict=False))
    options: dict[str, Any] = {}
    for name, value in kwargs.items():
        (bound if name in function.arg_names else options)[name] = value
    signature, constants, attributes = {}, {}, {}
    for i, (name, parameter) in enumerate(zip(function.arg_names, function.params, strict=True)):
        value = bound[name]
        specialised = not parameter.do_not_specialize
        if parameter.is_constexpr or (specialised and isinstance(value, int) and value == 1):
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name], attributes[(i,)] = _TYPES[value.dtype], [["tt.divisibility", 16]]
        elif isinstance(value, int):
            signature[name] = "i32" if abs(value) < 2**31 else "i64"
            if specialised and value % 16 == 0:
                attributes[(i,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32"
    source = ASTSource(function, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def print_facts(launches: dict[str, Callable[[], object]], meets: bool = False) -> None:
    """Each launch's kernels: local memory in bytes per thread, widest global load in bits, as JSON.

    `meets` adds the registers of a thread, and how often it releases to and acquires from the whole system.
    """
    captured: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def capture(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        captured.append((self, args, kwargs))

    JITFunction.run = capture
    facts: dict[str, dict[str, int]] = {}
    for label, launch in launches.items():
        captured.clear()
        launch()
        for function, args, kwargs in captured:
            kernel = _compile(function, args, kwargs)
            with tempfile.NamedTemporaryFile(suffix=".cubin") as binary:
                binary.write(kernel.asm["cubin"])
                binary.flush()
                usage, code = (
                    subprocess.run([_CUOBJDUMP, option, binary.name], capture_output=True, text=True, check=True).stdout
                    for option in ("--dump-resource-usage", "--dump-sass")
                )
            found = re.search(r"STACK:(\d+)", usage)
            assert found
            widths = [int(width) for width in re.findall(r"LDG\.E\.(?:\w+\.)*?(64|128)", code)]
            facts[f"{function.__name__} {label}"] = {
                "local_bytes": int(found[1]),
                "load_bits": max(widths, default=32),
            }
            if meets:
                registers = re.search(r"REG:(\d+)", usage)
                assert registers
                facts[f"{function.__name__} {label}"] |= {
                    "registers": int(registers[1]),
                    "releases": len(re.findall(r"\.sys\.release", kernel.asm["ptx"])),
                    "acquires": len(re.findall(r"\.sys\.acquire", kernel.asm["ptx"])),
                }
    print(json.dumps(facts))
