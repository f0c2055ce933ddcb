"""Fit a line by stochastic gradient descent."""

import numpy as np

from oncemore import checkpoint_scope, checkpointed

RNG = np.random.default_rng(3)


@checkpointed
def data(count):
    print("... data")
    x = RNG.uniform(-1, 1, size=count)
    return x, 3 * x + RNG.normal(scale=0.1, size=count)


with checkpoint_scope("training", state={"weight": 0.0, "losses": []}) as run:
    x, y = data(50)
    for epoch in run.loop("epochs", range(20), every=1):
        print("... epoch", epoch, "of training")
        batch = RNG.permutation(len(x))[:10]
        gradient = 2 * np.mean((run.state.weight * x[batch] - y[batch]) * x[batch])
        run.state.weight -= 0.3 * float(gradient)
        run.state.losses.append(float(np.mean((run.state.weight * x - y) ** 2)))
    print("weight:", run.state.weight)
    print("losses:", len(run.state.losses), run.state.losses)
print("next draw:", RNG.random())
