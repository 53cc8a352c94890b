"""An emulated wide-area path: between two namespaces, or for UDP datagrams.

Arrives: a profile (rate, delay, buffer, loss and the rest, by direction), a seed, a name.
Leaves: a path that packets of any program cross; what became of them; whether this machine was quick enough.
Must not know: who sends, and what.

`crates/wanpath` carries the packets, in a separate process for each path.
"""

from waystage.worlds.lab.wan.paths import change, down, enter, find, known, start, status, up
from waystage.worlds.lab.wan.profile import Profile, load, said, shipped

__all__ = [
    "Profile",
    "change",
    "down",
    "enter",
    "find",
    "known",
    "load",
    "said",
    "shipped",
    "start",
    "status",
    "up",
]
