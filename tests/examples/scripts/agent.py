"""An agent that writes to customers. No mail goes out twice."""

from oncemore import checkpoint_scope, checkpointed

CUSTOMERS = ["ada", "grace", "edsger"]
SIGNATURE = "Kind regards"
sent = {}


def greeting(name):
    return f"Dear {name.title()}"


@checkpointed
def plan(customers):
    print("... plan")
    return [(name, len(name) * 10) for name in sorted(customers)]


@checkpointed
def write(name, amount):
    print("... write", name)
    return f"{greeting(name)}, you owe us {amount}."


@checkpointed(effect="once")
def send(name, text):
    print("... send", name)
    with open("mails.txt", "a") as file:
        file.write(f"{name}: {text} {SIGNATURE}\n")
    sent[name] = len(text)
    return f"receipt for {name}"


with checkpoint_scope("agent"):
    receipts = []
    for name, amount in plan(CUSTOMERS):
        text = write(name, amount)
        print("--- to send", name)
        receipts.append(send(name, text))

print("receipts:", receipts)
print("sent:", sent)
