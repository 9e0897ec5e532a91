import asyncio

import msgspec

from perdure import Engine, step
from perdure.graph import Graph, all_of, append


class Question(msgspec.Struct):
    topic: str


class Report(msgspec.Struct):
    text: str


@step
async def make_plan(topic: str) -> dict[str, list[str]]:
    return {"queries": [f"what are {topic}", f"who studies {topic}", f"when do {topic} turn"]}


@step
async def find(query: str) -> str:
    print("looking up:", query)  # has a side effect, so it is in a step
    return f"a note on {query!r}"


@step
async def compose(topic: str, notes: list[str]) -> Report:
    return Report(text=f"{topic}: {'; '.join(notes)}")


research = Graph("research", input=Question, output=Report)
plan = research.node("plan", make_plan)
search = research.node("search", find, input={"query": "branch.item"})
write = research.node("write", compose, input={"notes": "state.notes"})
research.edge(plan, search, foreach="nodes.plan.queries")  # one branch per query
research.edge(search, write, join=all_of(), merge=append("state.notes"))  # which meet here
research.output({"text": "nodes.write.text"})


async def main() -> None:
    async with Engine("sqlite:///research.db") as engine:
        report = await engine.run(research(Question(topic="tides")), id="tides")
        print(report.text)


if __name__ == "__main__":
    asyncio.run(main())
