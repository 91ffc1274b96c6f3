"""What every record shares: a schema version, strict fields, and finite JSON."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

SCHEMA_VERSION = 1


def _this_version(value: int) -> int:
    if value != SCHEMA_VERSION:
        raise ValueError(f"schema {value}, this version reads schema {SCHEMA_VERSION}")
    return value


SchemaVersion = Annotated[int, AfterValidator(_this_version)]


class Record(BaseModel):
    """Frozen and closed: an unknown key is an error, never ignored. Infinity is written as a string.

    The string under a field describes it, and stands in ``docs/records.md``.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        ser_json_inf_nan="strings",
        populate_by_name=True,
        serialize_by_alias=True,
        use_attribute_docstrings=True,
    )
