"""`dataclasses` under an old name, for files that still import it from here. Goes with the last of them."""

from __future__ import annotations

from dataclasses import asdict as asdict
from dataclasses import dataclass as dataclass
from dataclasses import field as field
from dataclasses import replace as replace
