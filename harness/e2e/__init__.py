"""Stage 2, end to end: reads the store's ranking, wires leaders into real models. Not built yet; its words are in the vocabulary."""
