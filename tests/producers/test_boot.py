"""The boot's id."""

import uuid

from producers.boot import boot_id


def test_the_boot_has_one_id():
    assert boot_id() == str(uuid.UUID(boot_id()))
