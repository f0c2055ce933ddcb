from .memory import Memory as Memory
