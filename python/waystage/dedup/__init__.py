"""How much of a tree is redundant, by chunks of content.

Arrives: a tree or a catalog; or parts that other nodes made.
Leaves: a report of what is distinct, by type and size; an estimate; parts to join.
Must not know: how the data plane chunks and counts data; how reports are shown.
"""

from waystage.dedup.profile import DedupOptions, Dry, dry_run, make_parts, profile
from waystage.dedup.report import Report, estimate, merge

__all__ = ["DedupOptions", "Dry", "Report", "dry_run", "estimate", "make_parts", "merge", "profile"]
