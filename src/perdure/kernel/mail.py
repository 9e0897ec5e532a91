"""What engines leave for each other: ops for runs that another one owns, and the answers, as JSON.

An answer is what the owner would have given a caller of its own: a reply, or an error to be raised there.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from perdure import errors
from perdure.errors import EngineBug, PerdureError, RunNotFound
from perdure.kernel import ops
from perdure.kernel.records import Mail, Run
from perdure.kernel.rules.delivery import Delivered, Queued, TargetFinished, TargetNotFound

_Deliverable = (
    ops.Send
    | ops.Answer
    | ops.Wake
    | ops.Cancel
    | ops.Expire
    | ops.Retry
    | ops.Update
    | ops.SetHold
    | ops.Resume
    | ops.Tell
    | ops.TellMembers
)
_REPLIES: Final[dict[str, type]] = {
    kind.__name__: kind for kind in (bool, int, str, Run, Delivered, Queued, TargetFinished, TargetNotFound)
}
_decode_op = msgspec.json.Decoder[_Deliverable](_Deliverable).decode


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reply with the name of its type, or an error with the name of its class, its message and its attributes."""

    reply: msgspec.Raw = msgspec.Raw(b"null")
    type: str = ""
    error: str = ""
    message: str = ""
    attributes: dict[str, Any] = {}


_decode_answer = msgspec.json.Decoder(Answer).decode


def letter(op: ops.Op, sender: str, slot: str = "") -> Mail:
    """An op for the run's owner, whoever that is by the time it is read. With a `slot`, an answer is wanted there."""
    return Mail(run_id=op.run_id, sender=sender, slot=slot, op=msgspec.json.encode(op).decode(), at=op.at)


def wake_mail(run_id: str, sender: str, at: int) -> Mail:
    """Word for a run's owner that the run has been given something in somebody else's transaction."""
    return letter(ops.Wake(run_id=run_id, at=at), sender)


def request(mail: Mail) -> ops.Op:
    """The op that a mail brings. Raises EngineBug if this version of Perdure does not know it."""
    try:
        op: ops.Op = _decode_op(mail.op)
        return op
    except msgspec.DecodeError as error:
        raise EngineBug(f"mail {mail.id} for run {mail.run_id!r} cannot be read ({error}): {mail.op[:200]}") from error


def answer(reply: Any) -> str:
    """A reply, or an error, for the slot of a mail."""
    if isinstance(reply, PerdureError):
        attributes = {name: value for name, value in vars(reply).items() if isinstance(value, (str, int, type(None)))}
        found = Answer(error=type(reply).__name__, message=str(reply), attributes=attributes)
    else:
        found = Answer(reply=msgspec.Raw(msgspec.json.encode(reply)), type=type(reply).__name__)
    return msgspec.json.encode(found).decode()


def reply_of(text: str) -> Any:
    """What an answer says. Raises the error that it tells of."""
    found = _decode_answer(text)
    if not found.error:
        return msgspec.json.decode(found.reply, type=_REPLIES.get(found.type, Any))
    if found.error == "RunNotFound":
        raise RunNotFound(str(found.attributes.get("run_id")))
    kind = getattr(errors, found.error, PerdureError)
    raise kind(found.message, **found.attributes)
