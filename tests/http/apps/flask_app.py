"""The service in Flask."""

from __future__ import annotations

from typing import Any

import flask

import notwice
from notwice.http.wsgi import IdempotencyMiddleware
from tests.http.apps import shared


def make(guard: Any = None, **fields: Any) -> flask.Flask:
    app = flask.Flask(__name__)
    routes(app)
    app.wsgi_app = IdempotencyMiddleware(  # type: ignore[method-assign]  # as Flask documents it
        app.wsgi_app, guard=guard or shared.guard(), **{**shared.options(), **fields}
    )
    return app


def routes(app: flask.Flask) -> None:
    @app.post("/pay")
    def pay() -> Any:
        notwice.current_operation().downstream_key()
        return {"run": shared.ran(flask.request.get_json()["order"])}, 201

    @app.post("/upload")
    def upload() -> Any:
        return {"size": len(flask.request.get_data()), "run": shared.ran(flask.request.args["order"])}

    @app.post("/slow")
    def slow() -> Any:
        shared.ran(flask.request.args["order"])
        shared.pass_gate(flask.request.args["order"])
        return flask.Response("done", mimetype="text/plain")

    @app.route("/stream", methods=["GET", "POST"])
    def stream() -> Any:
        order = flask.request.args["order"]
        shared.ran(order)
        parts = shared.gated_parts(order) if "gate" in flask.request.args else iter(shared.PARTS)
        return flask.Response(parts, mimetype="text/plain")

    @app.route("/events", methods=["GET", "POST"])
    def events() -> Any:
        shared.ran(flask.request.args["order"])
        return flask.Response(shared.events(int(flask.request.args.get("count", "0"))), mimetype="text/event-stream")

    @app.route("/file", methods=["GET", "POST"])
    def file() -> Any:
        shared.ran(flask.request.args["order"])
        return flask.send_file(shared.path_of_file(int(flask.request.args["size"])).resolve(), mimetype="text/plain")

    @app.post("/answer/<int:status>")
    def answer(status: int) -> Any:
        shared.ran(flask.request.args["order"])
        body = b"" if status in (204, 304) else b"body"
        return flask.Response(body, status, headers={"location": "/7", "set-cookie": "session=secret"})


app = make()
