"""A run that needs a human's answer: it ends until there is one, and goes on when it is started again."""

from oncemore import checkpoint_scope, checkpointed


@checkpointed
def write():
    print("writing")
    return "Sales are up."


with checkpoint_scope("report") as run:
    draft = write()
    if run.ask(f"Publish {draft!r}?", name="publish", choices=["yes", "no"]) == "yes":
        print("published")
