"""XML that strangers wrote: no entities, no depth that exhausts the stack."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from topologies.errors import TopologyError

DEEPEST = 100
_ENTITY = re.compile(r"<!ENTITY", re.IGNORECASE)


def parse_xml(text: str) -> ET.Element:
    """Parse XML; raises `TopologyError` for what is not XML, declares entities or is nested too deep."""
    if _ENTITY.search(text):
        raise TopologyError("expected XML without entities of its own, found <!ENTITY")
    try:
        root = ET.fromstring(text)
    except (ET.ParseError, ValueError) as error:
        raise TopologyError(f"expected XML, found {error}") from error
    level, depth = [root], 0
    while level:
        level, depth = [child for element in level for child in element], depth + 1
        if depth > DEEPEST:
            raise TopologyError(f"expected XML at most {DEEPEST} elements deep, found more")
    return root


def number(element: ET.Element, key: str, default: str, least: int, most: int) -> int:
    """Return a whole number among an element's attributes, written decimally or as 0x...; raises `TopologyError`."""
    text = element.get(key) or default
    try:
        value = int(text, 16 if text.lower().startswith("0x") else 10)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise TopologyError(f"<{element.tag}> {key}: expected a number from {least} to {most}, found {text!r}")
    return value
