"""Everything that touches a clock: inputs, gate, clock, sampler, telemetry. Runs in a worker; decides nothing."""
