"""Objectives of policy: each proposes moves or rates."""
