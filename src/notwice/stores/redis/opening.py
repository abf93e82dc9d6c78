"""From a URL to a store whose callers share trips."""

from __future__ import annotations

from notwice.stores.async_batching import SharedTrips
from notwice.stores.batching import Batching
from notwice.stores.port import AsyncStore, Store
from notwice.stores.redis.lanes import AsyncLanes, Lanes
from notwice.stores.redis.settings import settings_of
from notwice.stores.redis.store import AsyncRedisStore, Plan, RedisStore
from notwice.stores.urls import StoreUrl


def opened(url: StoreUrl) -> Store:
    """The store of a URL; threads share its trips."""
    return _shared(Plan(settings_of(url)))


def opened_async(url: StoreUrl) -> AsyncStore:
    """The same for event loops, whose tasks share its trips."""
    plan = Plan(settings_of(url))
    store = AsyncRedisStore(plan, _shared(plan))
    timeout = plan.settings.login.timeout
    return AsyncLanes(store, timeout) if plan.settings.cluster else SharedTrips(store, timeout=timeout)


def _shared(plan: Plan) -> Batching | Lanes:
    store = RedisStore(plan)
    timeout = plan.settings.login.timeout
    return Lanes(store, timeout) if plan.settings.cluster else Batching(store, timeout=timeout)
