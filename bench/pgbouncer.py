"""What PgBouncer costs: W1 and W2 on one server, directly, without prepared statements, and through PgBouncer.

`python -m bench.pgbouncer`; not a part of `make bench`, since it needs PgBouncer.
"""

from __future__ import annotations

import argparse
from urllib.parse import quote

from bench import loop, steps
from bench.figures import Figures, medians
from tests.storage.postgres.bouncer import PgBouncer
from tests.storage.postgres.server import PostgresServer


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pgbouncer", description="What PgBouncer costs.")
    parser.add_argument("--rounds", type=int, default=3, help="how many rounds the medians are of (3)")
    parser.add_argument("--runs", type=int, default=1000, help="runs of ten steps in a round (1000)")
    options = parser.parse_args()
    rounds: int = options.rounds
    server = PostgresServer(18)
    bouncer = PgBouncer(server, pool=20)
    direct = quote(server.url, safe="")
    ways = {
        "directly": f"{server.url}?",
        "directly, nothing prepared": f"{server.url}?pgbouncer=true&",
        "PgBouncer, direct=": f"{bouncer.url}?direct={direct}&",
        "PgBouncer alone": f"{bouncer.url}?pgbouncer=true&",
    }
    found: dict[str, list[Figures]] = {name: [] for name in ways}
    try:
        for number in range(rounds):
            for index, (name, url) in enumerate(ways.items()):
                own_url = f"{url}schema=s{number}_{index}"
                found[name].append(
                    loop.run(steps.measure_on(own_url, runs=options.runs, steps=10, in_flight=100, singles=100))
                )
    finally:
        bouncer.end()
        server.end()
    for name, figures in found.items():
        middle = medians(figures)
        print(f"{name:28}", ", ".join(f"{key} {value:,.1f}" for key, value in middle.items()))


if __name__ == "__main__":
    main()
