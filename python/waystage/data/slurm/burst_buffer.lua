-- Slurm's burst-buffer hooks (burst_buffer/lua): each submits to the stager, waits for it, or answers at once.
--
-- Arrives: a job's id, user and script, from slurmctld.
-- Leaves: requests to `waystage stage`; errors as one sentence, which Slurm shows as the job's reason.
-- Must not know: how files are moved. No path of a user is opened here: the stager does so as that user.
--
-- job_process, pools and paths run inside slurmctld under locks: they start no command. Slurm 22.05 gives the user to
-- setup and teardown only, so setup keeps it in a file.

local SUCCESS, ERROR = slurm.SUCCESS, slurm.ERROR
local unpack = unpack or table.unpack -- Lua 5.1, or later

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

local function read_record(job_id)
  local record = {}
  for line in (read_file(record_path(job_id)) or ""):gmatch("[^\n]+") do
    local key, value = line:match("^([^=]+)=(.*)$")
    if key then
      record[key] = value
    end
  end
  return record
end

local function write_record(job_id, record)
  local path = record_path(job_id)
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

-- Run a command without a terminal. Returns its status and everything that it wrote.
local function run(words)
  local line = { "env" }
  for _, word in ipairs(SETTINGS.environment) do
    line[#line + 1] = directives.quoted(word)
  end
  for _, word in ipairs(words) do
    line[#line + 1] = directives.quoted(word)
  end
  local pipe = io.popen("PATH=/usr/sbin:/usr/bin:/sbin:/bin; export PATH; " .. table.concat(line, " ")
    .. " 2>&1 </dev/null; status=$?; echo; echo $status")
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

local function waystage(...)
  local words = {}
  for _, word in ipairs(SETTINGS.command) do
    words[#words + 1] = word
  end
  for _, word in ipairs({ ... }) do
    words[#words + 1] = word
  end
  return run(words)
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

-- Submit the script's transfers of one direction, node-local or shared. Returns request ids, or nil and why.
-- The key makes a hook that Slurm runs twice submit once; setup begins a new generation.
local function submit(job_id, job_script, direction, node_local)
  local transfers, why = parsed(job_script)
  if not transfers then
    return nil, why
  end
  local record = read_record(job_id)
  if not record.uid then
    return nil, "the job's user is unknown: " .. record_path(job_id) .. " is missing"
  end
  local ids, values, nodes = {}, nil, nil
  for number, each in ipairs(transfers) do
    if each.direction == direction and each.node_local == node_local then
      if not values then
        values, nodes = values_of(job_id, record.uid)
        if not values then
          return nil, nodes
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
      local words = { "stage", direction, "--job", job_id, "--user", record.uid }
      words[#words + 1] = "--key"
      words[#words + 1] = "slurm-" .. job_id .. "-" .. record.generation .. "-" .. number
      if each.verify then
        words[#words + 1] = "--verify"
      end
      if node_local then
        words[#words + 1] = "--node-local"
        words[#words + 1] = "--nodes"
        words[#words + 1] = nodes
      end
      words[#words + 1] = "--"
      words[#words + 1] = source
      words[#words + 1] = destination
      local status, output = waystage(unpack(words))
      local id = output:match("^%s*(%d+)%s*\n") or output:match("^%s*(%d+)%s*$")
      if status ~= 0 or not id then
        return nil, "line " .. each.line .. ": " .. reason_of(output)
      end
      ids[#ids + 1] = id
      record["env_" .. (direction == "in" and "IN" or "OUT") .. "_" .. number] =
        direction == "in" and destination or source
    end
  end
  if #ids > 0 then
    local key = direction .. "_ids"
    record[key] = ((record[key] or "") .. " " .. table.concat(ids, " ")):gsub("^ ", "")
    write_record(job_id, record)
  end
  return ids
end

-- Submit and wait. The stager goes on where this hook is killed: the same key finds the request again.
local function transfer(job_id, job_script, direction, node_local)
  local ids, why = submit(job_id, job_script, direction, node_local)
  if not ids then
    log("job " .. job_id .. ": " .. why)
    return ERROR, why
  end
  if #ids == 0 then
    return SUCCESS
  end
  local status, output = waystage("stage", "wait", unpack(ids))
  if status ~= 0 then
    why = reason_of(output)
    log("job " .. job_id .. ": " .. why)
    return ERROR, why
  end
  return SUCCESS
end

function slurm_bb_job_process(job_script)
  local transfers, why = parsed(job_script)
  if not transfers then
    return ERROR, why
  end
  return SUCCESS
end

function slurm_bb_pools()
  return SUCCESS
end

function slurm_bb_setup(job_id, uid, gid, _, _, job_script)
  math.randomseed(os.time() + (tonumber(job_id) or 0))
  local generation = os.time() .. "." .. math.random(0, 999999)
  local record = { uid = uid, gid = gid, generation = generation }
  -- For `waystage slurm watch`: where slurmctld was killed, it may have forgotten that this job has a buffer.
  local transfers = job_script and parsed(job_script)
  local values = transfers and values_of(job_id, uid)
  if values then
    record.transfers = directives.json(transfers)
    record.value_u, record.value_x, record.value_A, record.value_a = values.u, values.x, values.A, values.a
  end
  local done, why = write_record(job_id, record)
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
  write_record(job_id, record)
  return transfer(job_id, job_script, "in", true)
end

function slurm_bb_post_run()
  return SUCCESS
end

function slurm_bb_data_out(job_id, job_script)
  return transfer(job_id, job_script, "out", false)
end

-- A cancelled job's stage-in ends. A stage-out is never cancelled: it outlives the job and the timeout of its hook.
function slurm_bb_job_teardown(job_id, _, hurry)
  local record = read_record(job_id)
  if hurry == "true" and record.in_ids then
    local ids = {}
    for id in record.in_ids:gmatch("%d+") do
      ids[#ids + 1] = id
    end
    local status, output = waystage("stage", "cancel", unpack(ids))
    if status ~= 0 then
      log("job " .. job_id .. ": " .. reason_of(output))
    end
  end
  os.remove(record_path(job_id))
  return SUCCESS
end

-- scontrol show bbstat [JOB]: progress of requests. Slurm 22.05 does not say who asks, so no path and no name is shown.
-- Later versions put uid and gid before the user's words: the last word is the job.
function slurm_bb_get_status(...)
  local words = { "stage", "status", "--json" }
  local count = select("#", ...)
  local job_id = (count == 1 or count > 2) and select(count, ...)
  if job_id then
    if not job_id:match("^%d+$") then
      return SUCCESS, "waystage: give the id of a job: scontrol show bbstat 4711\n"
    end
    words[#words + 1] = "--job"
    words[#words + 1] = job_id
  end
  local status, output = waystage(unpack(words))
  if status ~= 0 then
    return SUCCESS, "waystage: the staging service does not answer, or does not know the job\n"
  end
  local lines = { "request job direction state bytes_done bytes_total" }
  for object in output:gmatch("%b{}") do
    local function field(name)
      local value = object:match('"' .. name .. '"%s*:%s*"?([%w%-_%.]+)')
      return value or "-"
    end
    lines[#lines + 1] = table.concat({
      field("id"), field("job_id"), field("direction"), field("state"), field("bytes_done"), field("bytes_total"),
    }, " ")
  end
  return SUCCESS, table.concat(lines, "\n") .. "\n"
end
