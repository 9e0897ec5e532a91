"""Mail between engines. It has ops for runs that another engine owns, and the replies, as JSON.

A reply has the value that the owner would return to a caller of its own, or an error that the sender raises.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec

from perdure import errors
from perdure.errors import EngineBug, PerdureError, RunNotFound
from perdure.kernel import ops
from perdure.kernel.rows import Mail
from perdure.kernel.rules.delivery import Delivered, Queued, TargetFinished, TargetNotFound
from perdure.kernel.runs import Run

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
    | ops.Notify
    | ops.NotifyMembers
)
_REPLIES: Final[dict[str, type]] = {
    kind.__name__: kind for kind in (bool, int, str, Run, Delivered, Queued, TargetFinished, TargetNotFound)
}


@cache
def _ops() -> msgspec.json.Decoder[_Deliverable]:
    """Return the decoder of ops. It reads the annotations of all ops when it is made, so an import does not make it."""
    return msgspec.json.Decoder[_Deliverable](_Deliverable)


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reply with the name of its type. For an error, it has the name of the class, the message and the attributes."""

    reply: msgspec.Raw = msgspec.Raw(b"null")
    type: str = ""
    error: str = ""
    message: str = ""
    attributes: dict[str, Any] = {}


_decode_answer = msgspec.json.Decoder(Answer).decode


def mail_of(op: ops.Op, sender: str, slot: str = "") -> Mail:
    """Return mail with an op. It is for the engine that owns the run when the mail is read. With a `slot`, the reply
    goes into this slot.
    """
    return Mail(run_id=op.run_id, sender=sender, slot=slot, op=msgspec.json.encode(op).decode(), at=op.at)


def wake_mail(run_id: str, sender: str, at: int) -> Mail:
    """Return mail that makes the owner of a run read the store, because another transaction has matched something to
    the run.
    """
    return mail_of(ops.Wake(run_id=run_id, at=at), sender)


def request(mail: Mail) -> ops.Op:
    """Return the op of a mail. Raises EngineBug if this version of Perdure does not know the op."""
    try:
        op: ops.Op = _ops().decode(mail.op)
        return op
    except msgspec.DecodeError as error:
        raise EngineBug(f"mail {mail.id} for run {mail.run_id!r} cannot be read ({error}): {mail.op[:200]}") from error


def answer(reply: Any) -> str:
    """Return the JSON of a reply, or of an error, for the slot of a mail."""
    if isinstance(reply, PerdureError):
        attributes = {name: value for name, value in vars(reply).items() if isinstance(value, (str, int, type(None)))}
        found = Answer(error=type(reply).__name__, message=str(reply), attributes=attributes)
    else:
        found = Answer(reply=msgspec.Raw(msgspec.json.encode(reply)), type=type(reply).__name__)
    return msgspec.json.encode(found).decode()


def reply_of(text: str) -> Any:
    """Return the reply in an answer. If the answer has an error, raise it."""
    found = _decode_answer(text)
    if not found.error:
        return msgspec.json.decode(found.reply, type=_REPLIES.get(found.type, Any))
    if found.error == "RunNotFound":
        raise RunNotFound(str(found.attributes.get("run_id")))
    kind = getattr(errors, found.error, PerdureError)
    raise kind(found.message, **found.attributes)
