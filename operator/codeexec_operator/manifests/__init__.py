"""Builders of Kubernetes objects: typed values in, plain dicts out."""
