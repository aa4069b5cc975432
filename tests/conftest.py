"""For all tests: the programs that they start end by SIGINT, in a shell's background too."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # what a shell starts with `&` inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)
