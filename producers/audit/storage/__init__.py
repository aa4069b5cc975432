"""Checks of file systems, drives, and the provisioning of volumes."""
