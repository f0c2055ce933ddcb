"""Handlers that register themselves, and caches that are filled on the way."""

import functools

from oncemore import checkpoint_scope, checkpointed

HANDLERS = {}
memo = {}
settings = None
RATES = {"gold": 0.5, "iron": 2.0}


def handles(kind):
    def register(cls):
        HANDLERS[kind] = cls()
        return cls

    return register


class Handler:
    made = []

    def __init__(self):
        Handler.made.append(type(self).__name__)
        self.calls = 0


@handles("gold")
class Gold(Handler):
    def price(self, weight):
        self.calls += 1
        return weight * 60


@handles("iron")
class Iron(Handler):
    def price(self, weight):
        self.calls += 1
        return weight * 2 + surcharge(weight)


@functools.lru_cache(maxsize=None)
def surcharge(weight):
    return weight % 7


def rate(kind):
    if kind not in memo:
        memo[kind] = RATES[kind] * 10
    return memo[kind]


def load_settings():
    global settings
    if settings is None:
        settings = {"currency": "EUR", "uses": 0}
    settings["uses"] += 1
    return settings


@checkpointed
def quote(kind, weight):
    print("... quote", kind, weight)
    price = HANDLERS[kind].price(weight) * rate(kind)
    return f"{price} {load_settings()['currency']}"


with checkpoint_scope("registry"):
    quotes = [quote("gold", 1), quote("iron", 5), quote("gold", 2), quote("iron", 9)]

print("quotes:", quotes)
print("memo:", memo, "settings:", settings)
print("calls:", {kind: handler.calls for kind, handler in HANDLERS.items()}, Handler.made)
