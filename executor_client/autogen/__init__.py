"""AutoGen's face of the client."""
