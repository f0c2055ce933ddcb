"""Ask a paid service a few questions."""

from paidapi import Client

from oncemore import checkpoint_scope, checkpointed

client = Client(base_url="http://127.0.0.1:8000/v1", api_key="sk-not-a-secret", timeout=10)
MODEL = "small"
history = []
cost = 0


@checkpointed
def ask(question):
    global cost
    print("... ask", question)
    answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": question}])
    history.append({"role": "user", "content": question})
    history.append({"role": "assistant", "content": answer["text"]})
    cost += answer["tokens"]
    return answer["text"]


@checkpointed
def summarise(texts):
    print("... summarise")
    return ask("summary of " + ", ".join(texts))


with checkpoint_scope("chat"):
    answers = [ask(f"question {n}") for n in range(5)]
    summary = summarise(answers)

print("answers:", answers)
print("summary:", summary)
print("history:", history)
print("cost:", cost)
