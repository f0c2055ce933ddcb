"""`urllib.parse` under an old name, for files that still import it from here. Goes with the last of them."""

from __future__ import annotations

from urllib.parse import quote as quote
from urllib.parse import unquote as unquote
from urllib.parse import unquote_to_bytes as unquote_to_bytes
