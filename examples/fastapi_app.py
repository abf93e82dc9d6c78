"""A refund endpoint that is safe to retry: uvicorn --app-dir examples fastapi_app:app."""

import time
from pathlib import Path

from fastapi import FastAPI
from pydantic import BaseModel

from notwice import AsyncGuard, Policy, current_operation
from notwice.http.asgi import IdempotencyMiddleware

guard = AsyncGuard.open("sqlite:///refunds.db", policy=Policy(lease=3))  # short, to try a crash; the default is 300 s
app = FastAPI()
app.add_middleware(
    IdempotencyMiddleware,
    guard=guard,
    principal=lambda request: request.headers["x-account-id"],  # whose key it is: ask your authentication
    required=True,  # a POST without a key is refused
)


class Refund(BaseModel):
    """What a caller asks for."""

    order: str
    amount: int


def pay_back(wanted: Refund, key: str) -> None:
    """Stand in for a payment provider: the money moves at once, its answer takes two seconds."""
    with Path("ledger.txt").open("a") as ledger:
        ledger.write(f"{key} {wanted.order} {wanted.amount}\n")
    time.sleep(2)


@app.post("/refunds", status_code=201)
def refund(wanted: Refund) -> dict[str, object]:
    """Pay an order back."""
    key = current_operation().downstream_key("refund")  # the same at every attempt: hand it to the provider
    pay_back(wanted, key)
    return {"refunded": wanted.amount, "order": wanted.order}
