"""Count words, page by page, into lists and tables at module level."""

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

from oncemore import checkpoint_scope, checkpointed

PAGES = ["a rose is a rose", "the rose and the thorn", "a thorn", "a rose is a rose"]
results = []
words = Counter()
by_length = defaultdict(list)
latest = deque(maxlen=3)
seen = set()
total = 0


@dataclass
class Progress:
    done: int = 0
    pages: list = field(default_factory=list)


progress = Progress()


@checkpointed
def count(number, text):
    global total
    print("... count", number)
    found = text.split()
    words.update(found)
    for word in found:
        if word not in seen:
            seen.add(word)
            by_length[len(word)].append(word)
    latest.append(found)
    total += len(found)
    progress.done += 1
    progress.pages.append(number)
    results.append({"page": number, "words": len(found)})
    return results[-1]


@checkpointed
def rank(top):
    print("... rank")
    return words.most_common(top)


with checkpoint_scope("collect"):
    returned = [count(number, text) for number, text in enumerate(PAGES)]
    ranking = rank(2)
    results.append("end")

print("results:", results, [a is b for a, b in zip(returned, results)])
print("words:", sorted(words.items()), ranking)
print("by length:", dict(by_length))
print("latest:", list(latest), "seen:", sorted(seen), "total:", total)
print("progress:", progress)
