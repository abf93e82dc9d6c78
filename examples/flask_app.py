"""A refund endpoint that is safe to retry, under WSGI: flask --app examples/flask_app.py run."""

from pathlib import Path

from flask import Flask, request
from flask.typing import ResponseReturnValue

from notwice import Guard, NotApplied, current_operation
from notwice.http.wsgi import IdempotencyMiddleware

guard = Guard.open("sqlite:///refunds.db")
app = Flask(__name__)
app.wsgi_app = IdempotencyMiddleware(  # type: ignore[method-assign]  # as Flask's own documentation does it
    app.wsgi_app,
    guard=guard,
    principal=lambda view: view.headers["x-account-id"],
    required=True,
)


@app.errorhandler(NotApplied)
def nothing_happened(_: NotApplied) -> ResponseReturnValue:
    """Say so in a header, for Flask turns exceptions into answers: it frees the key, and is not sent on."""
    return {"error": "the bank is closed"}, 503, {"Idempotency-Outcome": "not-applied", "Retry-After": "60"}


@app.post("/refunds")
def refund() -> ResponseReturnValue:
    """Pay an order back, unless the bank is closed."""
    wanted = request.get_json()
    if Path("bank-is-closed").exists():
        raise NotApplied
    key = current_operation().downstream_key("refund")
    with Path("ledger.txt").open("a") as ledger:
        ledger.write(f"{key} {wanted['order']} {wanted['amount']}\n")
    return {"refunded": wanted["amount"], "order": wanted["order"]}, 201
