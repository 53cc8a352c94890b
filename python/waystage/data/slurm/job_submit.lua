-- Slurm's job_submit hook: checks directives, and without burst buffers keeps them for the prolog and epilog.
--
-- Arrives: a job's description at submission.
-- Leaves: a refusal that names the mistake; without burst buffers, the transfers in the job's admin comment, which users
--   cannot change.
-- Must not know: how files are moved. It runs inside slurmctld under locks: it starts no command.

function slurm_job_submit(job_desc, _, _)
  if job_desc.script == nil then
    return slurm.SUCCESS
  end
  local transfers, why = directives.parse(job_desc.script, SETTINGS)
  if not transfers then
    slurm.log_user("waystage: %s", why)
    return slurm.ERROR
  end
  if #transfers > 0 and not SETTINGS.only_check then
    job_desc.admin_comment = "waystage:" .. directives.json(transfers)
  end
  return slurm.SUCCESS
end

function slurm_job_modify()
  return slurm.SUCCESS
end
