"""A report with two figures."""

import hashlib
import io

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from oncemore import checkpoint_scope, checkpointed

RNG = np.random.default_rng(2)


@checkpointed
def walk(count):
    print("... walk")
    return np.cumsum(RNG.normal(size=count))


@checkpointed
def draw(values):
    print("... draw")
    plt.figure("walk")
    plt.plot(values, label="walk")
    plt.title("A walk")


@checkpointed
def annotate(peak):
    print("... annotate")
    plt.axhline(peak)
    plt.legend()


with checkpoint_scope("figures"):
    values = walk(50)
    draw(values)
    annotate(float(values.max()))
    plt.figure("histogram")
    plt.hist(values, bins=5)

for label in plt.get_figlabels():
    target = io.BytesIO()
    plt.figure(label).savefig(target, format="raw")
    print(label, [len(axes.lines) for axes in plt.gcf().axes], hashlib.sha256(target.getvalue()).hexdigest())
