"""A visitor of the Django shop, by Django's own test client. Run in the shop's folder, while its engine runs."""

from __future__ import annotations

import os
from typing import Any

import django
from django.test import Client

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
django.setup()

visitor: Any = Client(headers={"host": "localhost"})
assert visitor.get("/orders/o-17").status_code == 404
assert visitor.post("/orders/o-17/pay", {"amount": 5}, "application/json").status_code == 404
for _ in range(2):
    placed = visitor.post("/orders/o-17/place")
    assert (placed.status_code, placed.json()) == (202, {"order": "o-17"})
assert visitor.get("/orders/o-17").json()["status"] in ("created", "running", "suspended")
assert visitor.post("/orders/o-17/pay", {"amount": 100}, "application/json").status_code == 202
assert visitor.get("/orders/o-17/receipt").json() == {"receipt": "parcel of o-17, paid 100"}
assert visitor.get("/orders/o-17").json()["status"] == "succeeded"
