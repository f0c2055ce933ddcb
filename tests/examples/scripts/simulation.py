"""How long do customers wait?"""

import random

import numpy as np

from oncemore import checkpoint_scope, checkpointed

random.seed(1)
np.random.seed(1)
RNG = np.random.default_rng(1)
DICE = random.Random(1)
waits = []
DESKS = 2


def serve(arrivals, services):
    free = [0.0] * DESKS
    for arrival, service in zip(arrivals, services):
        desk = free.index(min(free))
        begin = max(free[desk], arrival)
        free[desk] = begin + service
        yield begin - arrival


@checkpointed
def day(customers):
    print("... day", len(waits))
    arrivals = np.sort(RNG.uniform(0, 8, size=customers))
    services = RNG.exponential(0.4, size=customers)
    found = list(serve(arrivals, services))
    waits.append(float(np.mean(found)))
    return waits[-1]


@checkpointed
def holiday():
    print("... holiday")
    return DICE.choice(["spring", "autumn"]), random.random(), float(np.random.normal())


@checkpointed
def describe(values):
    print("... describe")
    return {"mean": sum(values) / len(values), "longest": max(values)}


with checkpoint_scope("simulation"):
    for _ in range(4):
        day(20)
    season = holiday()
    coffee = random.random()
    day(20)
    summary = describe(waits)

print("waits:", waits)
print("season:", season, coffee)
print("summary:", summary)
print("next:", RNG.random(), DICE.random(), random.random(), np.random.rand())
