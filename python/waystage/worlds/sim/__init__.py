"""The simulator as a world: the same experiment file, policies, queue and results, flows instead of bytes.

Arrives: a validated experiment.
Leaves: results in the schema every world shares; the same seed gives the same bytes.
Must not know: the lab, sockets, wall clocks (but for the time limit of a policy's answer).

Jobs are the same queue's, events the same envelopes, policies the same objects in the same pure engine, paths the same
planner's. What differs is below: instead of files and MPI there are flows, which share links by max-min
fairness (`waystage._native.FlowClock`). TCP's shares are near that and not equal to it: a connection of shorter
round trip, or one that lost less, gets more for a while. Decision 0010 says what was left out, and what that costs.
"""
