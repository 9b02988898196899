"""Readers beside the owner leave no trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.backends import DirectoryBackend, skip_unless
from tests.conformance.helpers import numbered, stored

if TYPE_CHECKING:
    from tests.conformance.backends import Backend


def test_looking_changes_no_file(shared: Backend) -> None:
    """A reader lists, reads, counts: every file stays as it is, and none is added."""
    skip_unless(isinstance(shared, DirectoryBackend), "looks at the store's files")
    assert isinstance(shared, DirectoryBackend)
    owner = shared.open()
    owner.publish_many("t", numbered(10))
    owner.subscribe("t", "g").close()
    owner.close()

    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(shared.folder.rglob("*")) if path.is_file()}

    before = content()
    reader = shared.reader()
    assert stored(reader, "t") == numbered(10)
    reader.topics()
    reader.topic("t")
    reader.close()
    assert content() == before
