"""Which values can be stored."""

from types import MappingProxyType

import pytest

from gendurable.errors import InvalidValueError
from gendurable.model.codec import encode_object
from gendurable.model.insert import InsertOptions


def test_read_only_mappings_can_be_stored():
    """A step that hands its own metadata on to another instance passes ``ctx.metadata``, which is read-only."""
    nested = {"tenant": "a", "more": MappingProxyType({"n": 1})}

    assert InsertOptions.of({"metadata": MappingProxyType({"tenant": "a"})}).metadata == '{"tenant":"a"}'
    assert encode_object(MappingProxyType(nested), name="result") == '{"tenant":"a","more":{"n":1}}'


def test_unknown_types_are_still_refused_by_name():
    """Whoever stores something odd must be told what it was."""
    with pytest.raises(InvalidValueError, match="of type object"):
        encode_object({"odd": object()}, name="result")
