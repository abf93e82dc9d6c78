"""The service in Django, in one file."""

from __future__ import annotations

import json
from typing import Any

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import FileResponse, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path

import notwice
from notwice.http.wsgi import IdempotencyMiddleware
from tests.http.apps import shared

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATA_UPLOAD_MAX_MEMORY_SIZE=None,
        ROOT_URLCONF=__name__,
        SECRET_KEY="for tests",
        USE_TZ=True,
    )
    django.setup(set_prefix=False)


def pay(request: HttpRequest) -> Any:
    notwice.current_operation().downstream_key()
    return JsonResponse({"run": shared.ran(json.loads(request.body)["order"])}, status=201)


def upload(request: HttpRequest) -> Any:
    return JsonResponse({"size": len(request.body), "run": shared.ran(request.GET["order"])})


def slow(request: HttpRequest) -> Any:
    shared.ran(request.GET["order"])
    shared.pass_gate(request.GET["order"])
    return HttpResponse("done", content_type="text/plain")


def stream(request: HttpRequest) -> Any:
    order = request.GET["order"]
    shared.ran(order)
    parts = shared.gated_parts(order) if "gate" in request.GET else iter(shared.PARTS)
    return StreamingHttpResponse(parts, content_type="text/plain")


def events(request: HttpRequest) -> Any:
    shared.ran(request.GET["order"])
    return StreamingHttpResponse(shared.events(int(request.GET.get("count", "0"))), content_type="text/event-stream")


def file(request: HttpRequest) -> Any:
    shared.ran(request.GET["order"])
    return FileResponse(shared.path_of_file(int(request.GET["size"])).open("rb"), content_type="text/plain")


def answer(request: HttpRequest, status: int) -> Any:
    shared.ran(request.GET["order"])
    body = b"" if status in (204, 304) else b"body"
    response = HttpResponse(body, status=status, headers={"location": "/7"})
    response.set_cookie("session", "secret")
    return response


urlpatterns = [
    path("pay", pay),
    path("upload", upload),
    path("slow", slow),
    path("stream", stream),
    path("events", events),
    path("file", file),
    path("answer/<int:status>", answer),
]


def make(guard: Any = None, **fields: Any) -> Any:
    return IdempotencyMiddleware(
        get_wsgi_application(), guard=guard or shared.guard(), **{**shared.options(), **fields}
    )


app = make()
