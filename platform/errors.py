"""The one error that a user is meant to see."""


class UserError(Exception):
    """A mistake in what the user asked for, told in one sentence that names the place and the mend.

    The command line prints it without a traceback and ends with exit code 2.
    """
