"""Where records are kept: the port, the engines, and what shares their commits."""
