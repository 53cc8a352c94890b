-- Slurm's file of burst buffers, burst_buffer_lua_state: records are added for jobs that slurmctld had not saved yet.
--
-- Arrives: the bytes of that file; jobs, each with its user and group.
-- Leaves: the file's bytes with the missing records, or nil and why: a file that is not as expected is never changed.
-- Must not know: commands, files, Slurm. Lua 5.1 to 5.4, so without string.pack.
--
-- Format: burst_buffer_lua.c of Slurm, _save_bb_state and _recover_bb_state. Numbers are big-endian; a text is its length
-- (4 bytes, 0 for none), then its bytes with a final 0.

local buffers = {}

-- Slurm's protocol versions (the first byte) whose format is known, and whether its records name a group:
-- 37 is 21.08, 38 is 22.05, 39 is 23.02.
buffers.OLDEST, buffers.NEWEST, buffers.WITH_GROUP = 37, 43, 39
buffers.MOST = 4294967295 -- a 32-bit number

local function number(text, at, bytes)
  local value = 0
  for index = at, at + bytes - 1 do
    value = value * 256 + text:byte(index)
  end
  return value
end

local function packed(value, bytes)
  local found = {}
  for index = bytes, 1, -1 do
    found[index] = string.char(value % 256)
    value = math.floor(value / 256)
  end
  return table.concat(found)
end

local function packed_text(text)
  return packed(#text + 1, 4) .. text .. "\0"
end

-- The position behind the text at `at`, and the text without its 0; nil where the file is cut short.
local function text_at(text, at)
  if at + 3 > #text then
    return nil
  end
  local length = number(text, at, 4)
  local last = at + 3 + length
  if last > #text then
    return nil
  end
  return last + 1, (text:sub(at + 4, last):gsub("%z$", ""))
end

-- The names of a file's buffers, its number of records and whether they have a group; nil and why.
function buffers.read(text)
  if #text < 6 then
    return nil, "it is cut short"
  end
  local version, count = number(text, 1, 1), number(text, 3, 4)
  if version < buffers.OLDEST or version > buffers.NEWEST then
    return nil, "its version is " .. version .. "." .. number(text, 2, 1) .. ", which this Waystage does not know"
  end
  local group = version >= buffers.WITH_GROUP
  local names, at = {}, 7
  for _ = 1, count do
    local name
    at = text_at(text, at) -- account
    at = at and at + 12 -- time of creation, id
    for field = 1, 4 do -- name, partition, pool, QOS
      local value
      if at then
        at, value = text_at(text, at)
      end
      name = field == 1 and value or name
    end
    at = at and at + (group and 16 or 12) -- user, group, size
    if not at or at > #text + 1 or not name then
      return nil, "it is cut short"
    end
    names[name] = true
  end
  if at ~= #text + 1 then
    return nil, "it is longer than its records"
  end
  return names, count, group
end

local function valid(value)
  return type(value) == "number" and value >= 0 and value <= buffers.MOST and value % 1 == 0
end

-- `text` with a record for each of `jobs`, {id=, uid=, gid=, time=}, that has none, and the ids of those. nil and why.
function buffers.add(text, jobs)
  local names, count, group = buffers.read(text)
  if not names then
    return nil, count
  end
  local records, added = {}, {}
  for _, job in ipairs(jobs) do
    local name = valid(job.id) and string.format("%.0f", job.id)
    if name and not names[name] and valid(job.uid) and valid(job.gid) and valid(job.time) then
      names[name] = true
      added[#added + 1] = name
      -- Without an account, partition and QOS, which Slurm uses for limits of sizes: these buffers have none.
      records[#records + 1] = packed(0, 4) .. packed(job.time, 8) .. packed(0, 4) .. packed_text(name)
        .. packed(0, 12) .. packed(job.uid, 4) .. (group and packed(job.gid, 4) or "") .. packed(0, 8)
    end
  end
  return text:sub(1, 2) .. packed(count + #added, 4) .. text:sub(7) .. table.concat(records), added
end
