"""How fast notwice is, next to the least that the same work could cost on the same machine at the same time."""
