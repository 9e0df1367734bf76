"""Stage 2, end to end: takes the leaders that the store ranks and wires them into real models. Not built yet."""
