"""Faulty candidates that the harness must catch. Each says what it does wrong; tests say how it is caught."""
