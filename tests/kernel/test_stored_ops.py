"""Ops lie in stores, as mail: under which name, and that what earlier versions left there is still read."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from perdure.kernel import mail, ops
from perdure.kernel.rows import Mail

# What a store has as the type of each op. Whatever the class is called, this never changes.
TAGS = {
    "Advance": ops.Advance,
    "Answer": ops.Answer,
    "Append": ops.Append,
    "Cancel": ops.Cancel,
    "CancelScope": ops.CancelScope,
    "CheckFence": ops.CheckFence,
    "Cooperate": ops.Cooperate,
    "Count": ops.Count,
    "Deposit": ops.Deposit,
    "Due": ops.Due,
    "Emit": ops.Emit,
    "Expire": ops.Expire,
    "Forget": ops.Forget,
    "EndSession": ops.EndSession,
    "PutRecord": ops.PutRecord,
    "PutSession": ops.PutSession,
    "PutToken": ops.PutToken,
    "RegisterHandlers": ops.RegisterHandlers,
    "Release": ops.Release,
    "ReleaseTask": ops.ReleaseTask,
    "RetireHandlers": ops.RetireHandlers,
    "Resume": ops.Resume,
    "Retry": ops.Retry,
    "Send": ops.Send,
    "SetHold": ops.SetHold,
    "Settle": ops.Settle,
    "Spread": ops.Spread,
    "Start": ops.Start,
    "Take": ops.Take,
    "Tell": ops.Notify,
    "TellMembers": ops.NotifyMembers,
    "UndoScope": ops.UndoScope,
    "Update": ops.Update,
    "Wake": ops.Wake,
}


def test_every_op_keeps_the_name_under_which_it_is_stored() -> None:
    kinds = {
        kind for _, kind in inspect.getmembers(ops, inspect.isclass) if issubclass(kind, ops.Op) and kind is not ops.Op
    }
    assert {kind.__struct_config__.tag: kind for kind in kinds} == TAGS


@pytest.mark.parametrize(
    ("stored", "op"),
    [
        (
            {"type": "Tell", "run_id": "a", "at": 5, "actor": "engine", "kind": "news", "about": "{}"},
            ops.Notify(run_id="a", at=5, kind="news", about="{}"),
        ),
        (
            {"type": "TellMembers", "run_id": "t", "at": 5, "token": "n", "after": None, "tells": [], "rest": [1, "r"]},
            ops.NotifyMembers(run_id="t", at=5, token="n", rest=(1, "r")),
        ),
    ],
)
def test_mail_of_an_earlier_version_is_read(stored: dict[str, object], op: ops.Op) -> None:
    text = msgspec.json.encode(stored).decode()
    assert mail.request(Mail(run_id="a", sender="e-2", slot="", op=text, at=5)) == op


def test_an_earlier_version_reads_the_mail_of_this_one() -> None:
    """It knows these fields, and passes over others."""
    notice = ops.Notify(run_id="a", at=5, kind="news", about="{}", child="c")
    members = ops.NotifyMembers(run_id="t", at=5, token="n", notices=(notice,))
    told = msgspec.json.decode(mail.mail_of(notice, "e-1").op)
    assert told.items() >= {"type": "Tell", "run_id": "a", "at": 5, "kind": "news", "about": "{}"}.items()
    (below,) = msgspec.json.decode(mail.mail_of(members, "e-1").op)["tells"]
    assert below["type"] == "Tell"
