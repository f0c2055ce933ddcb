# %%
import random

from oncemore import checkpoint_scope, checkpointed

random.seed(5)
notes = []
FACTOR = 3


# %%
def scaled(x):
    return x * FACTOR


@checkpointed
def load(day):
    print("... load", day)
    notes.append(f"loaded {day}")
    return [random.randrange(10) for _ in range(3)]


with checkpoint_scope("cells"):
    monday = load("monday")


# %%
@checkpointed
def model(rows):
    print("... model", len(rows))
    notes.append("fitted")
    return sum(map(scaled, rows)) + random.random()


with checkpoint_scope("cells"):
    fitted = model(monday + load("tuesday"))

# %%
print("fitted:", fitted)
print("notes:", notes)
print("next:", random.random())
