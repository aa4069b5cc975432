"""The error of wrong input: an option, a setting, a file, or a service that does not answer.

Its text is for the user, without a traceback. Any other exception of a command is a defect of the program.
"""

from __future__ import annotations


class InputError(ValueError):
    """The input or the environment cannot be used; the text has a line for each fault."""
