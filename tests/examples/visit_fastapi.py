"""A visitor of the FastAPI shop, by its own test client. Run with the shop's folder on the path."""

from __future__ import annotations

from importlib import import_module

from fastapi.testclient import TestClient

with TestClient(import_module("app").app) as visitor:
    assert visitor.get("/orders/o-17").status_code == 404
    assert visitor.post("/orders/o-17/payment", params={"amount": 5}).status_code == 404
    for _ in range(2):
        placed = visitor.post("/orders/o-17")
        assert (placed.status_code, placed.json()) == (202, "o-17")
    assert visitor.get("/orders/o-17").json() in ("created", "running", "suspended")
    assert visitor.post("/orders/o-17/payment", params={"amount": 100}).status_code == 202
    assert visitor.get("/orders/o-17/receipt").json() == "parcel of o-17, paid 100"
    assert visitor.get("/orders/o-17").json() == "succeeded"
