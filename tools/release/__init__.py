"""Builds the files of a release: wheels, packages of the agent, and folders for sites without internet."""
