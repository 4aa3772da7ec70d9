"""What is wrong with a config, in words: the key, the nearest valid one, what is allowed."""

import difflib
from collections.abc import Sequence
from typing import get_args

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

Model = type[BaseModel]

AUTO_OR_NUMBER, AUTO_OR_FLAG = "'auto' or a number", "'auto', true or false"  # tags of keys that allow these


def explain(problem: ErrorDetails, root: Model) -> str:
    """One mistake in the tables of `root` as `[section] key = value: what is allowed`."""
    location = [part for part in problem["loc"] if isinstance(part, str)]
    if location[:1] == ["training"]:  # whose keys are no tables: what follows is a tag
        location = location[:2]
    section, key = (location[0] if location else ""), ".".join(location[1:])
    if problem["type"] == "extra_forbidden":
        valid = _fields_at(location[:-1], root)
        near = difflib.get_close_matches(location[-1], valid, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"valid here: {', '.join(valid)}."
        name = f"[{section}] {key}" if key else f"[{section}]"
        return f"{name}: unknown {'key' if key else 'section'}; {hint}"
    if problem["type"] == "missing":
        return f"[{section}] {key}: missing; it has no default." if key else f"[{section}]: this section is missing."
    message = problem["msg"].removeprefix("Value error, ")
    if problem["loc"] and problem["loc"][-1] in (AUTO_OR_NUMBER, AUTO_OR_FLAG):
        message = f"Input should be {problem['loc'][-1]}"
    if not key:
        return f"[{section}]: {message}" if section else message
    return f"[{section}] {key} = {problem['input']!r}: {message}{allowed_range(location, root)}"


def _fields_at(location: Sequence[str], root: Model) -> list[str]:
    """The valid keys of the table at `location`."""
    model = root
    for part in location:
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *get_args(annotation)]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), model)
    return list(model.model_fields)


def allowed_range(location: Sequence[str], root: Model) -> str:
    """` (allowed: 1 ≤ key ≤ 128)` for a bounded key, else an empty string."""
    if len(location) != 2:
        return ""
    annotation = root.model_fields[location[0]].annotation
    if annotation is None or location[1] not in annotation.model_fields:
        return ""
    low = high = ""
    for bound in _bounds(annotation.model_fields[location[1]]):
        match bound:
            case Ge(ge=value):
                low = f"{value} ≤ "
            case Gt(gt=value):
                low = f"{value} < "
            case Le(le=value):
                high = f" ≤ {value}"
            case Lt(lt=value):
                high = f" < {value}"
    return f" (allowed: {low}{location[1]}{high})" if low or high else ""


def _bounds(field: FieldInfo) -> list[object]:
    """What pydantic knows of a key's range, of the number among several types too."""
    found = list(field.metadata)
    for member in get_args(field.annotation):
        infos = [info for info in getattr(member, "__metadata__", ()) if isinstance(info, FieldInfo)]
        found += [bound for info in infos for bound in info.metadata]
    return found
