"""A graph that waits for a person, for as long as it takes: start it, come back, and answer.

python graph_approval.py            asks, draws approval.svg, and ends; the run waits in approval.db
python graph_approval.py yes        answers, and has the letter written
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from perdure import Engine, step
from perdure.graph import Graph, TokensView, artifact, assign, human


class Refund(msgspec.Struct):
    order: str
    total: int


class Decision(msgspec.Struct):
    ok: bool
    remark: str = ""


@step
async def pay_back(order: str, total: int) -> str:
    print("paying back", total, "for", order)  # has a side effect, so it is in a step
    return f"{total} for {order}"


refund = Graph("refund", input=Refund)
refund.node("ask", human("refunds", title="Refund {{ order }}?", schema=Decision), input={"order": "input.order"})
refund.node("pay", pay_back)
refund.node("keep", assign({"output.said": "'no: ' + nodes.ask.remark"}))
refund.node("letter", artifact("letter-{{ input.order }}", template="Dear customer, we paid {{ nodes.pay }}.\n"))
refund.node("done", assign({"output.said": "'paid'"}))
refund.edge("ask", "pay", when="nodes.ask.ok")
refund.edge("ask", "keep", priority=1)
refund.edge("pay", "letter")
refund.edge("letter", "done")


def draw(tokens: TokensView) -> None:
    Path("approval.svg").write_text(refund.to_svg(tokens), encoding="utf-8")


async def main(answer: str | None) -> None:
    async with Engine("sqlite:///approval.db") as engine:
        run = await engine.start(refund(Refund(order="o-17", total=100)), id="o-17")
        while (seen := await engine.handle(run.id).tokens()).nodes["ask"].completed == 0:
            forms = await engine.tasks.list(run=run.id, status="open")
            if forms and answer is None:
                print("to be answered:", forms[0].title)
                draw(seen)
                return
            for form in forms:
                await engine.tasks.answer(form.id, Decision(ok=answer == "yes", remark=answer or ""), actor="ann")
            await asyncio.sleep(0.02)
        print(await run.result())
        for kept in await engine.artifacts.list(run=run.id):
            print(kept.name, await engine.artifacts.read(id=kept.id), end="")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
