"""All input and output: the API server, attached pods, the clock, the health endpoints."""
