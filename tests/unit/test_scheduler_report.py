from types import SimpleNamespace

import pytest

from sglang_draft_ext.carried import Carried
from sglang_draft_ext.launch import Plan
from sglang_draft_ext.patches import scheduler
from sglang_draft_ext.selection import ROLES, Selection

pytestmark = pytest.mark.unit

PLAN = Plan(
    selection=Selection(prefill="triton", extend="triton", decode="accel"),
    sources=dict.fromkeys(ROLES, "the test"),
)


def a_scheduler(plan):
    arguments = SimpleNamespace(device="cpu", _draft_ext=Carried(entries=(), registered={}, plan=plan))
    return SimpleNamespace(server_args=arguments)


@pytest.mark.parametrize("plan", [PLAN, None])
def test_the_state_says_the_roles_and_not_what_is_attached_to_the_arguments(plan):
    its = a_scheduler(plan)

    def stock(request):
        return SimpleNamespace(internal_state=vars(its.server_args))

    answer = scheduler.internal_state(stock, its, ("request",), {})
    expected = {"draft_attention_backends": plan.describe()} if plan else {}
    assert answer.internal_state == {"device": "cpu", **expected}
    assert its.server_args._draft_ext.plan is plan, "stock gives the arguments' own dict"


@pytest.mark.parametrize("plan", [PLAN, None])
def test_the_report_says_the_roles(plan):
    info = scheduler.init_info(lambda: {"status": "ready"}, a_scheduler(plan), (), {})
    expected = {"draft_attention_backends": plan.describe()} if plan else {}
    assert info == {"status": "ready", **expected}
