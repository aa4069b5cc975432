"""Wheels of a release; tests/test_release.py builds them."""

from tools.release import wheels


def test_the_platform_tag_names_glibc_and_processor():
    assert wheels.platform_tag("aarch64") == "manylinux_2_28_aarch64"
