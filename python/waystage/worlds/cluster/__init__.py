"""A real cluster as a world: the jobs of an experiment, submitted to Slurm by sbatch, under live controllers.

Arrives: an experiment; the Slurm of SLURM_CONF, which may be a lab's.
Leaves: results in the lab's format.
Must not know: how a policy decides.
"""
