"""notwice at the HTTP edge."""
