"""For all tests: the programs that they start end by SIGINT, in a shell's background too; no example of a
property test has a deadline, because the machine may be busy."""

import signal

from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # what a shell starts with `&` inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
