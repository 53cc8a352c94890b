"""`null`: a primitive module that leaves packets where they are, and the template for your own.

Copy this file to `my_modules.py`, rename the class, and name it in the options of the policy `primitive-paths`:

    policies:
      - name: primitive-paths
        options:
          modules:
            - {primitive: bcast, module: "my_modules:MyBcast", options: {margin: 0.2}}

Then `PYTHONPATH=. waystage run experiment.yaml --on lab`, or the same options in a controller's configuration.

Arrives: a primitive's packets, with each event and the state into which it has just been folded.
Leaves: the core switches that these packets may use.
Must not know: sockets, clocks, files, switches, or whether it runs in the simulator, the lab or a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystage.policies.primitives.base import Packets
from waystage.state import State


class Null:
    """Say in one sentence where the packets go, and why."""

    # Options arrive as keyword arguments. Give each a default and a type, and raise ValueError for a value that makes
    # no sense: the message is shown to the user.
    def __init__(self) -> None:
        pass

    # Called for every event, so it must be quick: a few comparisons. Pure, as a policy: keep nothing on `self` between
    # calls, read no clock (`state.time_ns` is the time), change nothing.
    #
    # `packets.primitive` is the primitive, as tags have it: `bcast`, `reduce`, `allreduce`, `p2p`, ...
    # `packets.cores` are the core switches that are up. `packets.event` is what has just happened.
    # `state.mpi.programs` has the programs under `waystage mpi --paths`, with the collectives that they declared.
    # `state.links` has what each link carries.
    #
    # Return core switches of `packets.cores`. Host pairs are spread over them by the hash of other traffic. For
    # example, the second half of the core switches:
    #
    #     return packets.cores[len(packets.cores) // 2 :]
    #
    # or the first core switch while any job stages in:
    #
    #     return packets.cores[:1] if state.stagings else ()
    #
    # Empty: as other MPI traffic.
    def __call__(self, packets: Packets, state: State) -> Sequence[str]:
        return ()
