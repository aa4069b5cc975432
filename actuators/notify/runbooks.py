"""Title of each kind of alert, and the next step that a notification proposes; see docs/runbooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schemas.records import AlertKind

DOCUMENTATION: Final = "file:///usr/share/doc/fabrictime"
"""Where packages and image of a release install these pages. An operator sets the address of a copy."""


@dataclass(frozen=True, slots=True)
class Runbook:
    """The title of a kind of alert, and the next step proposed to an operator."""

    title: str
    next_step: str
    past_title: str = ""
    """The title once the trouble is over; empty if it is the same."""


RUNBOOKS: Final[dict[AlertKind, Runbook]] = {
    AlertKind.LINK_DOWN: Runbook(
        "Link down",
        "Check both transceivers and the cable; drain the hosts if no other path is left.",
        "Link was down",
    ),
    AlertKind.LINK_GREY: Runbook(
        "Link loses packets",
        "Clean or replace the optics; take the link out of service until then.",
        "Link lost packets",
    ),
    AlertKind.LINK_FLAPPING: Runbook(
        "Link flaps",
        "Take the link out of service, then replace the cable or the transceiver.",
        "Link flapped",
    ),
    AlertKind.NIC_DOWN: Runbook(
        "NIC down", "Check the NIC's port and driver; drain the host.", "NIC was down"
    ),
    AlertKind.HOST_DOWN: Runbook(
        "Host down", "Check the host's power and console; drain it.", "Host was down"
    ),
    AlertKind.CONTENTION: Runbook(
        "Queue persists",
        "See which flows share the link: fabrictime links, then the page's Contention tab.",
        "Queue persisted",
    ),
    AlertKind.LATENCY: Runbook(
        "Latency objective missed", "Look at contention and link alerts between the two groups first."
    ),
    AlertKind.CLOCKS: Runbook(
        "Clocks not synchronised",
        "Run fabrictime clock, and check the map worker.",
        "Clocks were not synchronised",
    ),
    AlertKind.MISWIRED: Runbook(
        "Wired differently from the plan",
        "Correct the cables or the topology file.",
        "Was wired differently from the plan",
    ),
    AlertKind.AGENT: Runbook(
        "Prober in trouble",
        "Check processor time and memory of the agent on the host; no link is at fault.",
        "Prober was in trouble",
    ),
    AlertKind.PROBE_STORM: Runbook(
        "Prober sends too much",
        "Compare the agent's settings with those of other hosts.",
        "Prober sent too much",
    ),
    AlertKind.JOB_HANG: Runbook(
        "Job hangs", "Run fabrictime explain JOB, then look at the rank that it names.", "Job hung"
    ),
    AlertKind.JOB_SLOW: Runbook(
        "Job slowed by the network", "Run fabrictime explain JOB.", "Job was slowed by the network"
    ),
    AlertKind.JOB_STRAGGLER: Runbook(
        "Job has a straggler",
        "Run fabrictime audit on the host that the verdict names.",
        "Job had a straggler",
    ),
    AlertKind.UNEXPLAINED_LOSS: Runbook(
        "Loss without a located cause", "Check that traces are complete: fabrictime topology."
    ),
    AlertKind.TRACING_BLIND: Runbook(
        "Paths cannot be traced",
        "Allow ICMP time exceeded from the switches, or use a topology file.",
        "Paths could not be traced",
    ),
    AlertKind.CLASS_REWRITTEN: Runbook(
        "Traffic class rewritten",
        "Compare the DSCP maps of the switches on the path.",
        "Traffic class was rewritten",
    ),
    AlertKind.SIMULATION: Runbook(
        "Simulation slower than its clock",
        "Simulate fewer NICs or a lower rate.",
        "Simulation was slower than its clock",
    ),
    AlertKind.DUPLICATE_NAME: Runbook(
        "Two hosts have one name",
        "Rename one of them: their records replace each other.",
        "Two hosts had one name",
    ),
    AlertKind.UNMEASURED: Runbook(
        "NICs not measured",
        "Start the agent on the hosts, and check their fleet file.",
        "NICs were not measured",
    ),
    AlertKind.UNKNOWN: Runbook(
        "Alert of an unknown kind", "Upgrade the notifier: a newer version raised this alert."
    ),
}


def runbook_of(kind: AlertKind) -> Runbook:
    """Return the runbook of a kind of alert; for a kind of a newer version, the step to upgrade."""
    return RUNBOOKS.get(kind, RUNBOOKS[AlertKind.UNKNOWN])


def title_of(kind: AlertKind, is_over: bool = False) -> str:
    """Return the title of a kind of alert, in the past tense if the alert is over."""
    runbook = runbook_of(kind)
    return (runbook.past_title if is_over else "") or runbook.title


def page_of(kind: AlertKind, base: str) -> str:
    """Return the URL of the runbook page about a kind of alert; `base`: URL of the documentation."""
    return f"{base.rstrip('/')}/{str(kind).lower().replace('_', '-')}.md"
