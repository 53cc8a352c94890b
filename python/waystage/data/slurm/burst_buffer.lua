-- Slurm's burst-buffer hooks (burst_buffer/lua): each submits to the stager, waits for it, or answers at once.
--
-- Arrives: a job's id, user and script, from slurmctld.
-- Leaves: requests to `waystage stage`; errors as one sentence, which Slurm shows as the job's reason.
-- Must not know: how files are moved. No path of a user is opened here: the stager does so as that user.
--
-- job_process, pools and paths run inside slurmctld under locks: they start no command, but pools once as it starts.
-- Slurm 22.05 gives the user to setup and teardown only, so setup keeps it in a file.

local SUCCESS, ERROR = slurm.SUCCESS, slurm.ERROR

local function log(text)
  slurm.log_info("waystage: %s", text)
end

local function read_file(path)
  local file, why = io.open(path, "rb")
  if not file then
    return nil, why
  end
  local text = file:read(directives.MOST_BYTES + 1) or ""
  file:close()
  return text
end

local function parsed(job_script)
  local text, why = read_file(job_script)
  if not text then
    return nil, "the job script cannot be read: " .. tostring(why)
  end
  return directives.parse(text, SETTINGS)
end

-- What is kept of a job: KEY=VALUE a line, in a folder of SlurmUser's alone.
local function record_path(job_id)
  return SETTINGS.state_dir .. "/job-" .. job_id:gsub("%D", "")
end

-- A job that has been torn down: its record, in one of these files by its id, so that there are never more of them.
local MOST_ENDED = 1000

local function ended_path(job_id)
  return string.format("%s/ended-%03d", SETTINGS.state_dir, (tonumber(job_id) or 0) % MOST_ENDED)
end

local function record_at(path)
  local record = {}
  for line in (read_file(path) or ""):gmatch("[^\n]+") do
    local key, value = line:match("^([^=]+)=(.*)$")
    if key then
      record[key] = value
    end
  end
  return record
end

local function read_record(job_id)
  return record_at(record_path(job_id))
end

local function write_record(path, record)
  local file, why = io.open(path .. ".new", "wb")
  if not file then
    return nil, why
  end
  for key, value in pairs(record) do
    file:write(key, "=", value, "\n")
  end
  local done = file:close()
  return done and os.rename(path .. ".new", path)
end

-- Run a command without a terminal, its stdin from a file. Returns its status and everything that it wrote.
local function run(words, input)
  local line = { "env" }
  for _, word in ipairs(SETTINGS.environment) do
    line[#line + 1] = directives.quoted(word)
  end
  for _, word in ipairs(words) do
    line[#line + 1] = directives.quoted(word)
  end
  local pipe = io.popen("PATH=/usr/sbin:/usr/bin:/sbin:/bin; export PATH; " .. table.concat(line, " ")
    .. " 2>&1 <" .. directives.quoted(input or "/dev/null") .. "; status=$?; echo; echo $status")
  if not pipe then
    return 127, "no process could be started"
  end
  local text = pipe:read("*a") or ""
  pipe:close()
  local output, status = text:match("^(.*)\n(%d+)\n$")
  return tonumber(status) or 127, output or text
end

-- The last line of a command's output, as a reason.
local function reason_of(output)
  local last = ""
  for line in output:gmatch("[^\n]+") do
    if line:find("%S") then
      last = line
    end
  end
  return (last:gsub("^waystage: error: ", ""):gsub("%c", "?"))
end

-- Call the staging service.
local function stager(words, input)
  local line = {}
  for _, word in ipairs(SETTINGS.client) do
    line[#line + 1] = word
  end
  for _, word in ipairs(words) do
    line[#line + 1] = word
  end
  return run(line, input)
end

-- The values of %u %j %x %A %a, and the job's nodes.
local function values_of(job_id, uid)
  local _, name = run({ "id", "-nu", "--", uid })
  local values = { u = reason_of(name), j = job_id, x = "", A = job_id, a = "4294967294" }
  if values.u == "" or values.u:find("%s") then
    values.u = uid
  end
  local status, line = run({ "squeue", "--noheader", "--states=all", "--jobs", job_id, "--format=%F|%K|%N|%j" })
  local array, task, nodes, job_name = line:match("^([^|\n]*)|([^|\n]*)|([^|\n]*)|([^\n]*)")
  if status ~= 0 or not array then
    return nil, "squeue does not know job " .. job_id .. ": " .. reason_of(line)
  end
  values.A, values.x = array, job_name
  if task:match("^%d+$") then
    values.a = task
  end
  return values, nodes
end

-- What setup has kept, so that each hook of a job submits the same; asked for where setup could not.
local function kept_values(job_id, record)
  if record.value_u then
    return { u = record.value_u, j = job_id, x = record.value_x, A = record.value_A, a = record.value_a }
  end
  return values_of(job_id, record.uid)
end

-- The job's nodes, one by one.
local function nodes_of(job_id)
  local values, nodes = values_of(job_id, "0")
  if not values then
    return nil, nodes
  end
  local status, names = run({ "scontrol", "show", "hostnames", nodes })
  if status ~= 0 then
    return nil, reason_of(names)
  end
  local found = {}
  for name in names:gmatch("%S+") do
    found[#found + 1] = name
  end
  return found
end

-- The submissions of one direction, node-local or shared, as JSON texts. Returns nil and why.
-- The key makes a hook that Slurm runs twice submit once; setup begins a new generation.
local function submissions(job_id, record, transfers, direction, node_local)
  local found, values, nodes, why = {}, nil, {}, nil
  for number, each in ipairs(transfers) do
    if each.direction == direction and each.node_local == node_local then
      if not values then
        values, why = kept_values(job_id, record)
        if values and node_local then
          nodes, why = nodes_of(job_id)
        end
        if not values or not nodes then
          return nil, why
        end
      end
      local source, destination
      source, why = directives.expand(each.source, values)
      if source then
        destination, why = directives.expand(each.destination, values)
      end
      if not destination then
        return nil, "line " .. each.line .. ": " .. why
      end
      local names = {}
      for _, node in ipairs(nodes) do
        names[#names + 1] = directives.json_text(node)
      end
      found[#found + 1] = string.format(
        '{"direction":"%s","source":%s,"destination":%s,"job_id":"%s","user":"%s","key":"%s",'
          .. '"node_local":%s,"nodes":[%s],"verify":"%s"}',
        direction,
        directives.json_text(source),
        directives.json_text(destination),
        job_id,
        record.uid,
        "slurm-" .. job_id .. "-" .. record.generation .. "-" .. number,
        tostring(node_local),
        table.concat(names, ","),
        each.verify and "cached" or "none"
      )
      record["env_" .. (direction == "in" and "IN" or "OUT") .. "_" .. number] =
        direction == "in" and destination or source
    end
  end
  return found
end

-- A small file, written where its text changes.
local function keep(path, text)
  if read_file(path) ~= text then
    local file = io.open(path, "wb")
    if file then
      file:write(text)
      file:close()
    end
  end
end

local function has(transfers, direction)
  for _, each in ipairs(transfers) do
    if each.direction == direction then
      return true
    end
  end
  return false
end

-- Submit and wait. The stager goes on where this hook is killed: the same key finds the request again.
local function transfer(job_id, job_script, direction, node_local)
  local transfers, why = parsed(job_script)
  local record = read_record(job_id)
  local asked
  if transfers and not record.uid and direction == "out" then
    if not has(transfers, "out") then
      return SUCCESS
    end
    -- Slurm runs the hook again after a restart: the watch, or this hook before it, has submitted the stage-out.
    local status, output = stager({ "again", job_id })
    if status == 0 then
      return SUCCESS
    end
    why = reason_of(output)
  elseif transfers and not record.uid then
    why = "the job's user is unknown: " .. record_path(job_id) .. " is missing: requeue the job"
  elseif transfers then
    asked, why = submissions(job_id, record, transfers, direction, node_local)
  end
  if asked and #asked == 0 then
    return SUCCESS
  end
  local status, output = 1, nil
  if asked then
    local input = record_path(job_id) .. (node_local and ".nodes" or "." .. direction)
    local file = io.open(input, "wb")
    local written = file and file:write("[", table.concat(asked, ","), "]") and file:close()
    if written and write_record(record_path(job_id), record) then
      status, output = stager({ "transfer", record_path(job_id) }, input)
      why = reason_of(output)
    else
      why = SETTINGS.state_dir .. " cannot be written: is its disk full?"
    end
    os.remove(input)
  end
  if status ~= 0 then
    log("job " .. job_id .. ": " .. why)
    return ERROR, why
  end
  return SUCCESS
end

-- The folder in which slurmctld keeps its state, StateSaveLocation, as kept by slurm_bb_job_process.
local STATE_SAVE = SETTINGS.state_dir .. "/state-save"

-- The process that called slurm_bb_pools last.
local SLURMCTLD = SETTINGS.state_dir .. "/slurmctld"

function slurm_bb_job_process(job_script)
  local transfers, why = parsed(job_script)
  if not transfers then
    return ERROR, why
  end
  local state = job_script:match("^(/.*)/hash%.%d+/job%.%d+/script$")
  if state then
    keep(STATE_SAVE, state)
  end
  return SUCCESS
end

-- Which process runs this, as it was started; nil where /proc does not say.
local function this_process()
  local stat = read_file("/proc/self/stat") or ""
  local after = stat:match("^.*%)(.*)$") -- the program's name stands in parentheses, and may hold anything
  local field, started = 2, nil
  for word in (after or ""):gmatch("%S+") do
    field = field + 1
    started = field == 22 and word or started -- proc(5): starttime
  end
  return started and stat:match("^%d+") .. " " .. started
end

-- The files of a folder whose names begin with one of `words`: name -> time of change, seconds since 1970.
local function times_in(folder, ...)
  local line = { "find", folder, "-maxdepth", "1", "-type", "f", "(" }
  for index, word in ipairs({ ... }) do
    line[#line + 1] = (index > 1 and "-o" or nil)
    line[#line + 1] = "-name"
    line[#line + 1] = word
  end
  line[#line + 1] = ")"
  line[#line + 1] = "-printf"
  line[#line + 1] = "%T@ %f\\n"
  local _, output = run(line)
  local found = {}
  for time, name in output:gmatch("([%d.]+) (%S+)") do
    found[name] = tonumber(time)
  end
  return found
end

-- slurmctld saves jobs 5 s after a change at most; where a teardown is the last change, with the next one.
local SAVE_S = 10

-- The jobs that have a buffer. Of those torn down, only where slurmctld, whose state is in the folder `state`, may not
-- have saved its jobs since: saved, they have ended for it.
local function jobs_with_buffers(state)
  local times = times_in(SETTINGS.state_dir, "job-*", "ended-*")
  local saved = times_in(state, "job_state").job_state or 0
  local jobs = {}
  for name, time in pairs(times) do
    local record = record_at(SETTINGS.state_dir .. "/" .. name)
    local job = { id = tonumber(record.job), uid = tonumber(record.uid), gid = tonumber(record.gid) }
    job.time = tonumber((record.generation or ""):match("^%d+"))
    if job.id and (name == "job-" .. record.job or name:find("^ended%-%d+$") and time >= saved - SAVE_S) then
      jobs[#jobs + 1] = job
    end
  end
  table.sort(jobs, function(one, other)
    return one.id < other.id
  end)
  return jobs
end

-- Add to slurmctld's file of buffers what it had not saved yet when it was killed: up to the last 30 s.
local function restore()
  local state = read_file(STATE_SAVE)
  local path = state and state .. "/burst_buffer_lua_state"
  local text = path and read_file(path)
  local jobs = text and jobs_with_buffers(state) or {}
  if #jobs == 0 then
    return
  end
  local whole, added = buffers.add(text, jobs)
  if not whole then
    log(path .. " is left as it is: " .. added)
  elseif #added > 0 then
    local draft = path .. ".waystage"
    run({ "install", "-m", "600", "/dev/null", draft }) -- for SlurmUser alone, as slurmctld's own
    local file, trouble = io.open(draft, "r+b")
    if file and file:write(whole) and file:close() and run({ "sync", draft }) == 0 then
      file, trouble = os.rename(draft, path)
    end
    if trouble or read_file(path) ~= whole then
      log(path .. " could not be written: " .. (trouble or "is its disk full?"))
    else
      log("buffers that slurmctld had not saved: jobs " .. table.concat(added, " "))
    end
  end
end

-- slurmctld calls this every 30 s, and as it starts: before it reads its file of buffers, and before it saves one, by
-- the thread that does (burst_buffer_lua.c, _load_state and _bb_agent). An error here would disable burst buffers.
function slurm_bb_pools()
  local mark = this_process()
  if mark and read_file(SLURMCTLD) ~= mark then
    local done, why = pcall(restore)
    if not done then
      log("the file of buffers is left as it is: " .. tostring(why))
    end
    keep(SLURMCTLD, mark)
  end
  return SUCCESS
end

function slurm_bb_setup(job_id, uid, gid, _, _, job_script)
  math.randomseed(os.time() + (tonumber(job_id) or 0))
  local generation = os.time() .. "." .. math.random(0, 999999)
  local record = { job = job_id, uid = uid, gid = gid, generation = generation }
  -- For `waystage slurm watch`: where slurmctld was killed, it may have forgotten that this job has a buffer.
  local transfers = job_script and parsed(job_script)
  local values = transfers and #transfers > 0 and values_of(job_id, uid)
  if values then
    record.transfers = directives.json(transfers)
    record.value_u, record.value_x, record.value_A, record.value_a = values.u, values.x, values.A, values.a
  end
  local done, why = write_record(record_path(job_id), record)
  if not done then
    return ERROR, "the job's user cannot be kept: " .. tostring(why)
  end
  return SUCCESS
end

function slurm_bb_data_in(job_id, job_script)
  return transfer(job_id, job_script, "in", false)
end

function slurm_bb_real_size()
  return SUCCESS
end

function slurm_bb_paths(job_id, _, path_file)
  local record = read_record(job_id)
  local file = io.open(path_file, "wb")
  if not file then
    return ERROR, "the file of the job's environment cannot be written"
  end
  file:write("WAYSTAGE_JOB=", job_id, "\n")
  for key, value in pairs(record) do
    local name = key:match("^env_(.*)$")
    if name then
      file:write("WAYSTAGE_STAGE_", name, "=", value, "\n")
    end
  end
  file:close()
  return SUCCESS
end

function slurm_bb_pre_run(job_id, job_script)
  local record = read_record(job_id)
  record.ran = "yes"
  write_record(record_path(job_id), record)
  return transfer(job_id, job_script, "in", true)
end

function slurm_bb_post_run()
  return SUCCESS
end

function slurm_bb_data_out(job_id, job_script)
  return transfer(job_id, job_script, "out", false)
end

-- A cancelled job's stage-in ends. A stage-out is never cancelled: it outlives the job and the timeout of its hook.
-- The record goes first: a hook that submits at this moment then cancels what it submitted.
function slurm_bb_job_teardown(job_id, _, hurry)
  local record = read_record(job_id)
  if record.uid then
    write_record(ended_path(job_id), record) -- for `restore`
  end
  for _, ending in ipairs({ "", ".in", ".out", ".nodes", ".new", ".told" }) do
    os.remove(record_path(job_id) .. ending)
  end
  if hurry == "true" then
    local status, output = stager({ "cancel", job_id })
    if status ~= 0 then
      log("job " .. job_id .. ": " .. reason_of(output))
    end
  end
  return SUCCESS
end

-- scontrol show bbstat [JOB]: progress of requests. Slurm 22.05 does not say who asks, so no path and no name is shown.
-- Later versions put uid and gid before the user's words: the last word is the job.
function slurm_bb_get_status(...)
  local words = { "progress" }
  local count = select("#", ...)
  local job_id = (count == 1 or count > 2) and select(count, ...)
  if job_id then
    if not job_id:match("^%d+$") then
      return SUCCESS, "waystage: give the id of a job: scontrol show bbstat 4711\n"
    end
    words[#words + 1] = job_id
  end
  local status, output = stager(words)
  if status ~= 0 then
    return SUCCESS, "waystage: " .. reason_of(output) .. "\n"
  end
  return SUCCESS, output
end
