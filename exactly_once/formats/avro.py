"""Avro: a schema from a Spark type, and the plan to write a column by a schema."""

from __future__ import annotations

import io
import json
import math
from typing import Any

from exactly_once.errors import ExtraMissing, InvalidSchema
from exactly_once.formats import spark_type as spark
from exactly_once.framing import Node, SparkType

#: The Spark types that each Avro type takes, whatever its logical type: numbers and bytes pass as they are.
_TAKES = {
    "boolean": ("boolean",),
    "int": ("byte", "short", "integer"),
    "long": spark.WHOLE,
    "float": ("byte", "short", "float"),
    "double": ("byte", "short", "integer", "float", "double"),
    "string": ("string",),
    "bytes": ("binary",),
    "fixed": ("binary",),
    "enum": ("string",),
    "array": ("array",),
    "map": ("map",),
    "record": ("struct",),
    "error": ("struct",),
}

#: The Avro type of a number or a text where a union offers more than one that takes it.
_OWN = {**dict.fromkeys(("byte", "short", "integer"), "int"), "long": "long", "float": "float", "double": "double"}
_OWN |= {"string": "string"}

#: Spark's microseconds in one unit of the logical type.
_PER = {
    ("timestamp", "timestamp-millis"): 1000,
    ("timestamp", "timestamp-micros"): 1,
    ("timestamp_ntz", "local-timestamp-millis"): 1000,
    ("timestamp_ntz", "local-timestamp-micros"): 1,
}

_PRIMITIVE = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")

_DERIVED: dict[str, Any] = {
    "byte": "int",
    "short": "int",
    "integer": "int",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}


def full_name(text: str) -> str:
    """Return the full name of a record, enum or fixed."""
    schema, _ = _parsed(text)
    if isinstance(schema, dict) and "name" in schema:
        return str(schema["name"])
    raise InvalidSchema(
        f"the Avro schema is {_said(schema)}, which has no name", "Use a schema that is a record, and so has a name"
    )


def _parsed(text: str) -> tuple[Any, dict[str, Any]]:
    """Return a schema in which every name is a full name, and what the names stand for."""
    try:
        from fastavro.schema import parse_schema
    except ImportError as e:
        raise ExtraMissing.of("the format AVRO", "fastavro", "formats", e, "on the driver") from e
    named: dict[str, Any] = {}
    try:
        return parse_schema(json.loads(text), named), named
    except Exception as e:  # fastavro raises whatever a text without sense leads to, such as KeyError
        said = f"{type(e).__name__}: {e}"[:400]
        raise InvalidSchema(f"the text is no Avro schema ({said})", "Correct the Avro schema") from None


# -- plan -------------------------------------------------------------------------------------------------------------


def plan(type: SparkType, text: str, column: str) -> Node:
    """See :func:`exactly_once.formats.plan`."""
    schema, named = _parsed(text)
    return _node(type, schema, named, column)


def _node(type: SparkType, schema: Any, named: dict[str, Any], path: str) -> Node:
    kind = spark.kind(type, path)
    if isinstance(schema, list):
        return _union(type, schema, named, path)
    schema = _full(schema, named)
    if kind not in _TAKES.get(schema["type"], ()):
        return _logical(type, kind, schema, path)
    if kind == "array":
        assert isinstance(type, dict)
        return {"write": "array", "items": _node(type["elementType"], schema["items"], named, f"{path}.element")}
    if kind == "map":
        assert isinstance(type, dict)
        spark.string_keys(type, path)
        return {"write": "map", "values": _node(type["valueType"], schema["values"], named, f"{path}.value")}
    if kind == "struct":
        return _record(type, schema, named, path)
    return _scalar(kind, schema)


def _scalar(kind: str, schema: dict[str, Any]) -> Node:
    write = schema["type"]
    if write == "boolean":
        return {"write": "boolean"}
    if write == "enum":
        return {"write": "enum", "symbols": list(schema["symbols"])}
    if write == "fixed":
        return {"write": "fixed", "size": schema["size"], "read": kind}
    if write == "long":
        return {"write": "long", "read": kind, "per": 1}
    return {"write": "bytes" if write == "string" else write, "read": kind}


def _logical(type: SparkType, kind: str, schema: dict[str, Any], path: str) -> Node:
    write, logical = schema["type"], schema.get("logicalType")
    if kind == "date" and write == "int" and logical == "date":
        return {"write": "int", "read": "date"}
    if write == "long" and (per := _PER.get((kind, str(logical)))):
        return {"write": "long", "read": kind, "per": per}
    if write == "long" and kind.startswith("timestamp") and logical is None:
        prefix = "local-" if kind == "timestamp_ntz" else ""
        raise InvalidSchema(
            f"{path} is of type {kind}, but the schema has a plain long there, which does not say in which unit",
            f"Give {path} the logicalType {prefix}timestamp-micros in the schema, or turn it into a number with "
            "unix_micros or unix_millis",
        )
    if kind == "decimal" and write in ("bytes", "fixed") and logical == "decimal" and schema.get("precision"):
        return _decimal(type, schema, path)
    takes = list(_TAKES.get(write, ()))
    takes += [t for (t, name) in _PER if name == logical] + (["date"] if logical == "date" else [])
    raise spark.misfit(path, type, _said(schema), takes)


def _decimal(type: SparkType, schema: dict[str, Any], path: str) -> Node:
    given, scale_given = spark.decimal(type)
    precision, scale = int(schema["precision"]), int(schema.get("scale") or 0)
    if scale_given > scale or given - scale_given > precision - scale:
        fits = f"decimal({precision},{scale})"
        raise spark.misfit(path, type, fits, [fits])
    return {
        "write": "decimal",
        "read": "decimal",
        "precision": precision,
        "scale": scale,
        "from": [given, scale_given],
        "size": schema.get("size") if schema["type"] == "fixed" else None,
    }


def _record(type: SparkType, schema: dict[str, Any], named: dict[str, Any], path: str) -> Node:
    columns = {f.name: f for f in spark.fields(type, path)}
    names, of = [f["name"] for f in schema["fields"]], f"the Avro record {schema['name']}"
    if more := [n for n in columns if n not in names]:
        raise spark.unknown(path, more[0], names, of)
    made: list[Node] = []
    for field in schema["fields"]:
        name = field["name"]
        if name in columns:
            column = columns[name]
            node = _node(column.type, field["type"], named, f"{path}.{name}")
            made.append({"name": name, "at": column.at, "node": node})
        elif "default" in field:
            default = _encoded(field["default"], field["type"], named, f"{path}.{name}")
            made.append({"name": name, "default": default.hex()})
        else:
            raise spark.missing(path, name, of)
    return {"write": "record", "width": len(columns), "fields": made}


def _union(type: SparkType, branches: list[Any], named: dict[str, Any], path: str) -> Node:
    """Return the node of the branch that fits: the type's own wins over one that also takes it, as long wins over
    double. Beside it stands the branch that a null takes.
    """
    nulls = [i for i, b in enumerate(branches) if b == "null" or (isinstance(b, dict) and b["type"] == "null")]
    refused: list[InvalidSchema] = []
    own = _OWN.get(spark.kind(type, path))
    for i, branch in sorted(enumerate(branches), key=lambda found: found[1] != own):
        if i in nulls:
            continue
        try:
            node = _node(type, branch, named, path)
        except InvalidSchema as e:
            refused.append(e)
        else:
            return {"write": "union", "branch": i, "null": nulls[0] if nulls else None, "node": node}
    if len(refused) == 1:  # the usual optional field: its own refusal names the field inside
        raise refused[0]
    raise spark.misfit(path, type, _said(branches))


def _said(schema: Any) -> str:
    if isinstance(schema, list):
        return f"a union of {', '.join(map(_said, schema)) or 'nothing'}"
    if isinstance(schema, str):
        return schema
    name = f" {schema['name']}" if "name" in schema else ""
    logical = f" with logicalType {schema['logicalType']}" if "logicalType" in schema else ""
    return f"{schema['type']}{name}{logical}"


def _encoded(default: Any, schema: Any, named: dict[str, Any], path: str) -> bytes:
    """Return the Avro encoding of a default, which is written in JSON: bytes as a string, a union as its first match.
    fastavro does not take such a text: it writes values of Python. Raise InvalidSchema when it does not fit.
    """
    try:
        return _bytes(default, schema, named)
    except (TypeError, ValueError, LookupError, OverflowError, ArithmeticError):
        raise InvalidSchema(
            f"the default of {path} in the Avro schema does not fit its type: {default!r}"[:400],
            f"Correct the default in the schema, or add {path} to the struct",
        ) from None


def _bytes(default: Any, schema: Any, named: dict[str, Any]) -> bytes:
    if isinstance(schema, list):
        branch = [_matches(default, _full(b, named)) for b in schema].index(True)
        return _leaf("long", branch) + _bytes(default, schema[branch], named)
    schema = _full(schema, named)
    if not _matches(default, schema):
        raise ValueError(default)
    write = schema["type"]
    if write in ("record", "error"):
        values = [default[f["name"]] if f["name"] in default else f["default"] for f in schema["fields"]]
        return b"".join(_bytes(v, f["type"], named) for v, f in zip(values, schema["fields"], strict=True))
    if write == "array":
        return _block([_bytes(v, schema["items"], named) for v in default])
    if write == "map":
        return _block([_leaf("string", k) + _bytes(v, schema["values"], named) for k, v in default.items()])
    if write == "enum":
        return _leaf("int", schema["symbols"].index(default))
    if write == "fixed":
        raw = default.encode("latin-1")
        if len(raw) != schema["size"]:
            raise ValueError(default)
        return bytes(raw)
    return _leaf(write, default.encode("latin-1") if write == "bytes" else default)


def _full(schema: Any, named: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = named.get(schema, {"type": schema}) if isinstance(schema, str) else schema
    return found


def _block(items: list[bytes]) -> bytes:
    return (_leaf("long", len(items)) + b"".join(items) if items else b"") + b"\0"


def _leaf(write: str, value: Any) -> bytes:
    from fastavro import schemaless_writer

    out = io.BytesIO()
    schemaless_writer(out, write, value)
    return out.getvalue()


def _matches(default: Any, schema: dict[str, Any]) -> bool:
    """Return whether a JSON value can be a default of this schema, which is no union."""
    from fastavro import validate

    write = schema["type"]
    if write in ("bytes", "fixed", "array", "map", "record", "error"):
        return isinstance(default, {"bytes": str, "fixed": str, "array": list}.get(write, dict))
    finite = not isinstance(default, float) or math.isfinite(default)
    return finite and bool(validate(default, schema, raise_errors=False))


# -- derive ------------------------------------------------------------------------------------------------------------


def derive(type: SparkType, name: str) -> str:
    """Return a schema for a type; ``name`` is that of the record. What is nullable becomes a union with null."""
    for part in name.split("."):
        spark.check_name(part, f"the schema {name}", "Avro")
    if name in _PRIMITIVE:
        raise InvalidSchema(
            f"the schema {name} has the name of a type of Avro", "Choose another name in the option *.schema.name"
        )
    return json.dumps(_derived(type, name, set(), name.rpartition(".")[2]))


def _derived(type: SparkType, name: str, taken: set[str], path: str) -> Any:
    """Return the schema of a type; ``name`` is the full name of a record in it, unless it is ``taken``."""
    kind = spark.kind(type, path)
    if kind == "decimal":
        precision, scale = spark.decimal(type)
        if scale < 0:
            raise InvalidSchema(
                f"{path} is of type {type}, and Avro has no negative scale",
                f"Cast {path} to decimal({precision - scale},0)",
            )
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    if isinstance(type, str):
        return _DERIVED.get(kind, kind)
    if kind == "array":
        items = _derived(type["elementType"], name, taken, f"{path}.element")
        return {"type": "array", "items": _nullable(items, type["containsNull"])}
    if kind == "map":
        spark.string_keys(type, path)
        values = _derived(type["valueType"], name, taken, f"{path}.value")
        return {"type": "map", "values": _nullable(values, type["valueContainsNull"])}
    own = spark.unique(name, taken)
    made = []
    for field in spark.fields(type, path):
        inner = f"{path}.{field.name}"
        spark.check_name(field.name, inner, "Avro")
        schema = _nullable(_derived(field.type, f"{own}_{field.name}", taken, inner), field.nullable)
        made.append({"name": field.name, "type": schema} | ({"default": None} if field.nullable else {}))
    return {"type": "record", "name": own, "fields": made}


def _nullable(schema: Any, nullable: bool) -> Any:
    return ["null", schema] if nullable else schema
