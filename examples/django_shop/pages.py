"""The shop's pages. They start runs and speak to them; what runs them is engine.py."""

import json

from django.conf import settings
from django.http import Http404, HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.http import require_GET, require_POST
from orders import Paid, checkout

from perdure import Blocking, Client
from perdure.errors import RunNotFound

client = Client(settings.PERDURE_STORE)
wait = Blocking(client)  # opens with the first request, so each process that the server forks has its own


@require_POST
def place(request: HttpRequest, order: str) -> JsonResponse:
    run = wait(client.start(checkout(order), id=order))
    return JsonResponse({"order": run.id}, status=202)


@require_POST
def pay(request: HttpRequest, order: str) -> JsonResponse:
    amount = json.loads(request.body)["amount"]
    try:
        wait(client.send(Paid(amount=amount), to=order, key=f"payment of {order}"))
    except RunNotFound as error:
        raise Http404 from error
    return JsonResponse({"order": order}, status=202)


@require_GET
def show(request: HttpRequest, order: str) -> JsonResponse:
    run = wait(client.runs.get(order))
    if run is None:
        raise Http404
    return JsonResponse({"order": order, "status": run.status})


@require_GET
def receipt(request: HttpRequest, order: str) -> JsonResponse:
    try:
        return JsonResponse({"receipt": wait(client.handle(order).result(), timeout=20)})
    except TimeoutError:
        return JsonResponse({"receipt": None}, status=202)


urlpatterns = [
    path("orders/<order>", show),
    path("orders/<order>/place", place),
    path("orders/<order>/pay", pay),
    path("orders/<order>/receipt", receipt),
]
