"""Path status reports, as a prober sends them to the actuator of its host."""

from schemas import codec

MS = 1_000_000


def path(links, loss_streak=0, answered_ms=None, lost_ms=None, first_ms=None, peer="h2/eth1", port=9320):
    def age_ns(ms):
        return None if ms is None else round(ms * MS)

    first_ms = lost_ms if first_ms is None else first_ms
    return {
        "peer": peer,
        "path": port,
        "dead": loss_streak >= 3,
        "loss_streak": loss_streak,
        "answered_age_ns": age_ns(answered_ms),
        "first_lost_age_ns": age_ns(first_ms),
        "last_lost_age_ns": age_ns(lost_ms),
        "links": links,
        "back_links": [],
    }


def status_report(*paths, nic="h1/eth1", at_ns=0):
    record = {"nic": nic, "run": 1, "monotonic_ns": at_ns, "paths": list(paths)}
    return codec.decode(codec.encode("PathStatusReport", record), "PathStatusReport")
