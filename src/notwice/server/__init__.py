"""`notwice serve`: a guard in front of any HTTP service, in any language."""
