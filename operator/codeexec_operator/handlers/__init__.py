"""kopf handlers: they pass events on, and decide nothing."""
