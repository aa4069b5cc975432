from streams.delays.windows import LogClock
from streams.runtime.steady_time import SteadyTime
