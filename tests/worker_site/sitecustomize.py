"""On the PYTHONPATH of processes that tests start: switches a defence off, quietens the probe, spares compilers.

Python imports it at start-up. Without these variables it does nothing, so that a start stays cheap.
"""

import os
import sys

_cell = "harness.e2e.worker" in sys.orig_argv
_worker = _cell or "harness.worker" in sys.orig_argv

if _name := os.environ.get("HARNESS_TEST_OFF"):
    from tests.switches import switch_off

    switch_off(_name)

if os.environ.get("HARNESS_TEST_QUIET"):
    # Others keep this machine busy while tests run; whether blocks are void for that is tested with stub probes.
    from harness.measure import telemetry

    class _Quiet(telemetry.Probe):
        available = False

        def poll(self, worker_pid: int) -> telemetry.Poll:
            return telemetry.Poll(at_s=telemetry.monotonic())

    telemetry.probe_for = lambda device_type, uuid: _Quiet()

if not _worker and (_folder := os.environ.get("HARNESS_TEST_LOCKS")):
    from pathlib import Path

    from harness import device_lock

    device_lock._FOLDER = Path(_folder)

if _worker and os.environ.get("HARNESS_TEST_NO_INDUCTOR"):
    # Dynamo's graphs run eagerly: what is tested is the command line, not a compiler.
    from harness.measure.arms import GraphCounter

    def _run_eagerly(self, graph_module, example_inputs):
        self.graphs += 1
        return graph_module.forward

    GraphCounter.__call__ = _run_eagerly
    if _cell:  # its opaque arm compiles without a counter
        import torch._inductor.compile_fx

        torch._inductor.compile_fx.compile_fx = lambda graph_module, inputs, **_: graph_module.forward

if _cell and (_sample_s := os.environ.get("HARNESS_TEST_SAMPLE_S")):
    from harness.e2e import timing

    timing.MIN_SAMPLE_S = float(_sample_s)
    timing.WARM_UP_BLOCKS = 2

if _worker and (_limit_s := os.environ.get("HARNESS_TEST_LIMIT_S")):
    from harness.measure.link import Phase

    Phase.SAMPLE.limit_s = float(_limit_s)

if _worker and (_limit_s := os.environ.get("HARNESS_TEST_GATE_LIMIT_S")):
    from harness.measure.link import Phase

    Phase.GATE.limit_s = float(_limit_s)
