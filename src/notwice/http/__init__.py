"""notwice at the HTTP edge: `notwice.http.asgi` and `notwice.http.wsgi` guard requests as an `HttpPolicy` says."""

from notwice.http.exchange import KEPT_HEADERS, SHARED, Dialect, Ending, HttpPolicy, RequestHeaders, RequestView

__all__ = ["KEPT_HEADERS", "SHARED", "Dialect", "Ending", "HttpPolicy", "RequestHeaders", "RequestView"]
