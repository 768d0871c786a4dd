"""JSON Schema: a draft-07 schema from a Spark type, and the plan to write a column as JSON text that fits a schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from exactly_once.errors import InvalidSchema
from exactly_once.formats import spark_type as spark
from exactly_once.framing import Node, SparkType

#: The names that a schema's ``type`` may have for each Spark type, the usual one first.
_TYPES = {
    **dict.fromkeys(spark.WHOLE, ("integer", "number")),
    **dict.fromkeys(("float", "double", "decimal"), ("number",)),
    **dict.fromkeys(("string", "binary", "date", "timestamp", "timestamp_ntz"), ("string",)),
    "boolean": ("boolean",),
    "array": ("array",),
    "map": ("object",),
    "struct": ("object",),
}

_MORE = {
    "binary": {"contentEncoding": "base64"},
    "date": {"format": "date"},
    "timestamp": {"format": "date-time"},  # one without a zone is not what this format means
}


def full_name(text: str) -> str:
    """Return the title of the schema."""
    root = _parsed(text)
    for schema in (root if isinstance(root, dict) else {}, *_choices(root, root)):
        if isinstance(title := schema.get("title"), str) and title:
            return title
    raise InvalidSchema("the JSON Schema has no title", "Add a title to the JSON Schema: the name of what it describes")


def _parsed(text: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError as e:
        raise InvalidSchema(f"the text is no JSON Schema ({e})", "Correct the JSON Schema") from None
    if not isinstance(found, dict | bool):
        raise InvalidSchema(
            f"the text is no JSON Schema: it is a JSON {type(found).__name__}", "Use a JSON object as the schema"
        )
    return found


# -- plan -------------------------------------------------------------------------------------------------------------


def plan(type: SparkType, text: str, column: str) -> Node:
    """See :func:`exactly_once.formats.plan`; formats, ranges and patterns of values are not checked."""
    root = _parsed(text)
    return _node(type, root, root, column)


def _node(type: SparkType, schema: Any, root: Any, path: str) -> Node:
    refused: list[InvalidSchema] = []
    spark.kind(type, path)  # no choice fits a type that this sink does not encode
    for choice in _choices(schema, root):
        try:
            return _one(type, choice, root, path)
        except InvalidSchema as e:
            refused.append(e)
    deeper = [e for e in refused if not e.what.startswith(f"{path} ")]
    if len(deeper) == 1:  # of an optional object, the refusal that names the field inside
        raise deeper[0]
    raise refused[0] if len({e.what for e in refused}) == 1 else spark.misfit(path, type, "nothing that fits")


def _choices(schema: Any, root: Any, followed: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    """Yield the schemas without ``$ref``, ``oneOf`` and ``anyOf`` of which one is to fit; false yields none."""
    if not isinstance(schema, dict):
        if schema is not False:
            yield {}
        return
    if "allOf" in schema:
        raise InvalidSchema(
            "the JSON Schema uses allOf, which this sink does not read", "Write the parts of allOf as one schema"
        )
    ref = schema.get("$ref")
    if isinstance(ref, str):
        if ref not in followed:  # one that leads to itself says nothing
            rest = {k: v for k, v in schema.items() if k != "$ref"}
            for found in _choices(_pointed(ref, root), root, (*followed, ref)):
                yield from _choices(_both(rest, found), root, (*followed, ref))
        return
    word = next((w for w in ("oneOf", "anyOf") if isinstance(schema.get(w), list)), None)
    if word is None:
        yield schema
        return
    rest = {k: v for k, v in schema.items() if k != word}
    for branch in schema[word]:
        for found in _choices(branch, root, followed):
            yield from _choices(_both(rest, found), root, followed)


def _both(outer: dict[str, Any], inner: dict[str, Any]) -> dict[str, Any]:
    """Return one schema for a schema and its branch."""
    found = {**outer, **inner}
    if "properties" in outer:
        found["properties"] = {**_properties(outer), **_properties(inner)}
    if "required" in outer:
        found["required"] = [*_required(outer), *_required(inner)]
    return found


def _pointed(ref: str, root: Any) -> Any:
    target = root
    try:
        if ref != "#" and not ref.startswith("#/"):
            raise LookupError(ref)
        for part in unquote(ref[1:]).split("/")[1:]:
            target = target[part.replace("~1", "/").replace("~0", "~")]
    except (LookupError, TypeError):
        raise InvalidSchema(
            f"the JSON Schema refers to {ref!r}, which is not in its own text",
            "Put the definition into the schema itself, under #/definitions or #/$defs",
        ) from None
    return target


def _one(type: SparkType, schema: dict[str, Any], root: Any, path: str) -> Node:
    kind = spark.kind(type, path)
    allowed, names = _allowed(schema), _TYPES[kind]
    if kind == "decimal" and spark.decimal(type)[1] <= 0:
        names = ("number", "integer")
    if allowed is not None and not any(n in allowed for n in names):
        takes = [t for t, n in _TYPES.items() if any(a in n for a in allowed)]
        raise spark.misfit(path, type, " or ".join(allowed) or "no type", takes)
    if kind == "struct":
        return _object(type, schema, root, path)
    if kind == "array":
        assert isinstance(type, dict)
        items = schema.get("items", True)
        items = True if isinstance(items, list) else items  # one for each position: an array of Spark has none
        node = _node(type["elementType"], items, root, f"{path}.element")
        return {"write": "list", "items": node, "null": _takes_null(items, root)}
    if kind == "map":
        return _entries(type, schema, root, path)
    return _simple(type, kind)


def _simple(type: SparkType, kind: str) -> Node:
    if kind == "boolean":
        return {"write": "boolean"}
    if kind == "decimal":
        return {"write": "number", "read": kind, "from": list(spark.decimal(type))}
    return {"write": "text" if _TYPES[kind] == ("string",) else "number", "read": kind}


def _object(type: SparkType, schema: dict[str, Any], root: Any, path: str) -> Node:
    properties, more = _properties(schema), _others(schema)
    required, columns = _required(schema), spark.fields(type, path)
    if lacking := [n for n in required if n not in {c.name for c in columns}]:
        raise spark.missing(path, lacking[0], "the JSON Schema")
    made: list[Node] = []
    for c in columns:
        if c.name not in properties and more is False:
            raise spark.unknown(path, c.name, properties, "the JSON Schema, which allows no others,")
        inner = properties.get(c.name, more)
        node = _node(c.type, inner, root, f"{path}.{c.name}")
        demanded = c.name in required
        null = demanded and _takes_null(inner, root)
        made.append({"name": c.name, "at": c.at, "required": demanded, "null": null, "node": node})
    return {"write": "object", "width": len(columns), "fields": made}


def _entries(type: SparkType, schema: dict[str, Any], root: Any, path: str) -> Node:
    assert isinstance(type, dict)
    spark.string_keys(type, path)
    if required := _required(schema):
        raise InvalidSchema(
            f"{path} is a map, but the JSON Schema demands the property {required[0]!r} there, which a map may lack",
            f"Make {path} a struct with a field {required[0]!r}",
        )
    if _properties(schema):
        raise spark.misfit(path, type, "an object with properties of its own", ["a struct"])
    values = _others(schema)
    if values is False:
        raise spark.misfit(path, type, "an object without additionalProperties", ["a struct"])
    node = _node(type["valueType"], values, root, f"{path}.value")
    return {"write": "entries", "values": node, "null": _takes_null(values, root)}


def _others(schema: dict[str, Any]) -> Any:
    """Return the schema of the properties that ``properties`` does not name; false: there are none."""
    more = schema.get("additionalProperties", True)
    return True if more is False and schema.get("patternProperties") else more


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _required(schema: dict[str, Any]) -> list[str]:
    found = schema.get("required")
    return [str(n) for n in found] if isinstance(found, list) else []


def _allowed(schema: dict[str, Any]) -> list[str] | None:
    """Return the names in ``type``; None: every type."""
    found = schema.get("type")
    return [found] if isinstance(found, str) else [str(n) for n in found] if isinstance(found, list) else None


def _takes_null(schema: Any, root: Any) -> bool:
    return any((names := _allowed(c)) is None or "null" in names for c in _choices(schema, root))


def lenient(type: SparkType, path: str) -> Node:
    """Return a plan that takes each row of this type: for those that their schema refuses, on their way to the dead
    letter topic. Nulls are allowed everywhere, a number that is none, such as NaN, is a text, bytes that are no UTF-8
    are replaced, and keys of maps are texts.
    """
    kind = spark.kind(type, path)
    if isinstance(type, str) or kind == "decimal":
        return _simple(type, kind) | {"lenient": True}
    if kind == "array":
        return {"write": "list", "items": lenient(type["elementType"], f"{path}.element"), "null": True}
    if kind == "map":
        key = spark.kind(type["keyType"], f"{path}.key")
        values = lenient(type["valueType"], f"{path}.value")
        return {"write": "entries", "key": key, "values": values, "null": True, "lenient": True}
    fields: list[Node] = [
        {"name": f.name, "at": f.at, "required": False, "node": lenient(f.type, f"{path}.{f.name}")}
        for f in spark.fields(type, path)
    ]
    return {"write": "object", "width": len(fields), "fields": fields}


# -- derive -----------------------------------------------------------------------------------------------------------


def derive(type: SparkType, name: str) -> str:
    """Return a schema for a type, with the title ``name``. Objects are closed: under the registry's rule BACKWARD, an
    open one could never get a new property.
    """
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": name}
    return json.dumps(head | _derived(type, False, name.rpartition(".")[2]))


def _derived(type: SparkType, nullable: bool, path: str) -> dict[str, Any]:
    first = _TYPES[kind := spark.kind(type, path)][0]
    made: dict[str, Any] = {"type": [first, "null"] if nullable else first}
    if isinstance(type, str):
        return made | _MORE.get(kind, {})
    if kind == "array":
        return made | {"items": _derived(type["elementType"], type["containsNull"], f"{path}.element")}
    if kind == "map":
        spark.string_keys(type, path)
        values = _derived(type["valueType"], type["valueContainsNull"], f"{path}.value")
        return made | {"additionalProperties": values}
    fields = spark.fields(type, path)
    made["properties"] = {f.name: _derived(f.type, f.nullable, f"{path}.{f.name}") for f in fields}
    if required := [f.name for f in fields if not f.nullable]:
        made["required"] = required
    return made | {"additionalProperties": False}
