"""The API contract: the kinds of the API group codeexec.dev as frozen pydantic models.

`schema.py` generates the structural schemas of the CRDs from these models. Each constraint is written once: as a
pydantic constraint if JSON schema can express it, else as a CEL rule in `json_schema_extra`. Models of a spec reject
unknown fields. Models of a status ignore them, so an older client can read the status that a newer operator wrote.

Docstrings of models and descriptions of fields go into the CRDs, and `kubectl explain` prints them. They follow the
Kubernetes API conventions: the description of a field begins with its name in the API.
"""
