"""Rates: leases of slices are published, renewed, changed, suppressed and ended."""

from __future__ import annotations

import pytest

from schemas.records import ActionOutcome, ActionReport, FlowAction, ReasonKind, TenantSlice
from streams.policy.rates.leases import RateRules, Rates, WantedRate
from streams.runtime.flow_table import LiveFlow
from tests.records import make

S = 1_000_000_000
LINK_BPS = 10_000_000_000
RULES = RateRules()


def flow(name: str) -> LiveFlow:
    hops = ("h1:a>l1:1", "l1:2>h2:a")
    return LiveFlow(name, "h1/a", "h2/a", "train", "blue", 4e9, False, False, hops, 100, None, can=("PACE",))


@pytest.fixture
def rates() -> Rates:
    made = Rates(lambda link: LINK_BPS)
    made.take_slices([TenantSlice(tenant="blue", guarantee_bps=10**9, ceiling_bps=10**9)])
    return made


def decided(rates: Rates, at_ns: int, *names: str) -> list[WantedRate]:
    return rates.decide(at_ns, [flow(name) for name in names or ("f",)])


def test_a_ceiling_is_a_lease_that_is_renewed_in_time(rates: Rates) -> None:
    [wanted] = decided(rates, 0)
    assert (wanted.flow_id, wanted.action, wanted.kind) == ("f", FlowAction.SLICE, ReasonKind.SLICE)
    assert 0 < wanted.rate_bps <= 10**9
    assert wanted.expires_at_ns == RULES.lease_ns
    assert decided(rates, RULES.renew_ns - 1) == []
    [renewed] = decided(rates, RULES.renew_ns)
    assert renewed.expires_at_ns == RULES.renew_ns + RULES.lease_ns
    assert rates.in_force() == {"f": (FlowAction.SLICE, renewed.rate_bps)}


def test_flows_share_a_ceiling(rates: Rates) -> None:
    wanted = decided(rates, 0, "f", "g")
    assert [each.flow_id for each in wanted] == ["f", "g"]
    assert sum(each.rate_bps for each in wanted) <= 10**9


def test_a_removed_slice_ends_the_lease(rates: Rates) -> None:
    decided(rates, 0)
    rates.take_slices([])
    [wanted] = decided(rates, S // 10)
    assert (wanted.action, wanted.rate_bps) == (FlowAction.UNPACE, 0)
    assert rates.in_force() == {}


def test_a_flow_that_ended_needs_no_end_of_its_lease(rates: Rates) -> None:
    decided(rates, 0)
    assert rates.decide(S // 10, []) == []
    assert rates.in_force() == {}


def test_a_refused_rate_is_wanted_again_later(rates: Rates) -> None:
    [wanted] = decided(rates, 0)
    rates.refuse(wanted, 0)
    assert decided(rates, RULES.retry_ns - 1) == []
    assert [each.flow_id for each in decided(rates, RULES.retry_ns)] == ["f"]


@pytest.mark.parametrize(
    ("outcome", "again_ns"),
    [
        (ActionOutcome.APPLIED, RULES.renew_ns),
        (ActionOutcome.FAILED, RULES.retry_ns),
        (ActionOutcome.ENDED, 1),
        (ActionOutcome.NOT_ALLOWED, RULES.renew_ns),
    ],
)
def test_an_outcome_decides_when_a_lease_is_published_again(
    rates: Rates, outcome: ActionOutcome, again_ns: int
) -> None:
    decided(rates, 0)
    rates.take_action(make(ActionReport, flow_id="f", action=FlowAction.SLICE, outcome=outcome, at_ns=1))
    assert decided(rates, again_ns - 1) == []
    assert [each.flow_id for each in decided(rates, again_ns + 1)] == ["f"]
