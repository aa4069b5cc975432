"""Files for a site without internet; tests/test_release.py installs from them."""

from tools.release import offline


def test_the_images_of_the_guide_are_named_with_their_version():
    names = offline.images()
    assert any(name.startswith("apache/kafka:") for name in names)
    assert any(name.startswith("python:") for name in names)
    assert all(":" in name and not name.endswith(":latest") for name in names)
