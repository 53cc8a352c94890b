-- Directives of job scripts: what a script asks for, or one sentence about its first mistake.
--
-- Arrives: the text of a job script, written by any user.
-- Leaves: a list of transfers, or an error that names the line.
-- Must not know: Slurm, commands, files. The same text is part of burst_buffer.lua and job_submit.lua; Lua 5.1 to 5.4.

local directives = {}

directives.MOST_BYTES = 4 * 1024 * 1024
directives.MOST_DIRECTIVES = 64
directives.MOST_VALUE = 4096 -- PATH_MAX

local OPERATIONS = { stage_in = "in", stage_out = "out" }
local KEYS = "source, destination, type, node_local, verify"
local SUBSTITUTIONS = { u = true, j = true, x = true, A = true, a = true, ["%"] = true }
local YES_NO = { yes = true, no = false, ["1"] = true, ["0"] = false, ["true"] = true, ["false"] = false }

-- Words of DataWarp (#DW) that allocate storage: what Waystage does with each.
local DATAWARP = {
  jobdw = "accepted",
  swap = "no swap is allocated: remove it",
  persistentdw = "there are no persistent buffers: name a path of the file system",
  create_persistent = "there are no persistent buffers: name a path of the file system",
  destroy_persistent = "there are no persistent buffers: name a path of the file system",
}

-- A text of a user in an error: short, without control characters.
local function shown(text)
  local clean = text:gsub("[%c]", "?")
  if #clean > 60 then
    clean = clean:sub(1, 60) .. "..."
  end
  return "'" .. clean .. "'"
end

-- The value at the start of `text`: bare, or in double quotes with \" and \\. Returns value, rest; or nil, why.
local function value_of(text)
  if text:sub(1, 1) ~= '"' then
    local word, rest = text:match("^(%S*)(.*)$")
    return word, rest
  end
  local value, at = {}, 2
  while at <= #text do
    local c = text:sub(at, at)
    if c == '"' then
      local rest = text:sub(at + 1)
      if rest ~= "" and not rest:match("^%s") then
        return nil, "a blank is missing after the closing quote"
      end
      return table.concat(value), rest
    end
    if c == "\\" then
      at = at + 1
      c = text:sub(at, at)
      if c ~= '"' and c ~= "\\" then
        return nil, 'within quotes, \\ stands before " and \\ only'
      end
    end
    value[#value + 1] = c
    at = at + 1
  end
  return nil, "the closing quote is missing"
end

-- Why a path or HOST:PATH cannot be used; nil where it can. `here` demands a path of this site.
local function bad_place(place, here)
  if place == "" then
    return "is empty"
  end
  if #place > directives.MOST_VALUE then
    return "is longer than " .. directives.MOST_VALUE .. " bytes"
  end
  if place:find("[%z%c]") then
    return "holds a control character"
  end
  if place:sub(1, 1) == "-" then
    return shown(place) .. " begins with '-': write an absolute path"
  end
  if place:sub(1, 1) ~= "/" and (here or not place:find("^[^/:]+:.")) then
    return shown(place) .. " is no absolute path" .. (here and "" or " and no HOST:PATH")
  end
  local rest = place
  while true do
    local at = rest:find("%", 1, true)
    if not at then
      return nil
    end
    local letter = rest:sub(at + 1, at + 1)
    if not SUBSTITUTIONS[letter] then
      return "has " .. shown("%" .. letter) .. ": there are %u %j %x %A %a, and %% for a percent sign"
    end
    rest = rest:sub(at + 2)
  end
end

-- $DW_JOB_STRIPED and $DW_JOB_PRIVATE are the job's directory. Returns the place, or nil and why.
local function datawarp_place(place, job_directory)
  local name, rest = place:match("^%$(DW_JOB_%u+)(.*)$")
  if not name then
    name, rest = place:match("^%${(DW_JOB_%u+)}(.*)$")
  end
  if not name then
    return place
  end
  if name ~= "DW_JOB_STRIPED" and name ~= "DW_JOB_PRIVATE" then
    return nil, "$" .. name .. " is unknown: there are $DW_JOB_STRIPED and $DW_JOB_PRIVATE"
  end
  if job_directory == "" then
    return nil, "$" .. name .. " has no meaning here: the site has set no job directory; name a path"
  end
  return job_directory .. rest
end

-- One directive's words after its operation. Returns a transfer, or nil and why.
local function transfer_of(operation, text, settings)
  local found = { direction = OPERATIONS[operation], node_local = false, verify = false }
  local seen = {}
  local rest = text
  while true do
    rest = rest:gsub("^%s+", "")
    if rest == "" then
      break
    end
    local key, after = rest:match("^([%w_%-]+)=(.*)$")
    if not key then
      return nil, shown(rest:match("^%S+")) .. " is no KEY=VALUE: the keys are " .. KEYS
    end
    local value, left = value_of(after)
    if not value then
      return nil, key .. ": " .. left
    end
    if seen[key] then
      return nil, key .. " is given twice"
    end
    seen[key] = true
    if key == "source" or key == "destination" then
      local place, why = datawarp_place(value, settings.job_directory or "")
      if not place then
        return nil, key .. ": " .. why
      end
      local here = (key == "source") == (found.direction == "out")
      why = bad_place(place, here)
      if why then
        return nil, key .. " " .. why
      end
      found[key] = place
    elseif key == "type" then
      if value ~= "file" and value ~= "directory" then
        return nil, "type " .. shown(value) .. ": use file or directory"
      end
    elseif key == "node_local" or key == "verify" then
      if YES_NO[value] == nil then
        return nil, key .. " " .. shown(value) .. ": use yes or no"
      end
      if key == "node_local" and YES_NO[value] and found.direction == "out" then
        return nil, "node_local is for stage_in: copy what nodes have made to a shared directory within the job"
      end
      found[key] = YES_NO[value]
    else
      return nil, "unknown key " .. shown(key) .. " of " .. operation .. ": the keys are " .. KEYS
    end
    rest = left
  end
  for _, key in ipairs({ "source", "destination" }) do
    if not found[key] then
      return nil, operation .. " has no " .. key .. "=PATH"
    end
  end
  return found
end

-- One line without its keyword. Returns a transfer, or false for a line that asks for nothing, or nil and why.
local function directive_of(text, settings)
  local operation, rest = text:match("^%s*(%S+)(.*)$")
  if not operation then
    return nil, "says nothing: use stage_in or stage_out"
  end
  if OPERATIONS[operation] then
    return transfer_of(operation, rest, settings)
  end
  if settings.directive == "DW" and DATAWARP[operation] then
    if DATAWARP[operation] == "accepted" then
      return false
    end
    return nil, operation .. ": " .. DATAWARP[operation]
  end
  return nil, "unknown operation " .. shown(operation) .. ": use stage_in or stage_out"
end

-- The word of a line that is meant as a directive and is none: `#DW stage_in ...` at a site of BB_LUA, `#bb_lua ...`. A
-- line that is commented out begins with `##` or `# `, and is none.
local function mistaken_word(line, directive)
  local word, operation = line:match("^#(%a[%w_%-]*)%s+(%S+)")
  if not word or word == directive then
    return nil
  end
  local plain = word:lower():gsub("[^%l]", "")
  local ours = plain == "bb" or plain == "bblua" or plain == "dw"
  return ours and operation:lower():match("^stage[_%-]?%l*$") and word or nil
end

-- The transfers that a script asks for, in its order; or nil and one sentence with the line.
-- As in Slurm, directives end at the first line that is no comment: one below would be ignored, so it is an error.
function directives.parse(script, settings)
  if #script > directives.MOST_BYTES then
    return nil, "the job script is larger than 4 MiB"
  end
  local keyword = "#" .. settings.directive
  local found, number, ended = {}, 0, false
  for line in (script .. "\n"):gmatch("(.-)\r?\n") do
    number = number + 1
    if line:sub(1, 1) ~= "#" and line:find("%S") then
      ended = true
    end
    local word = not ended and mistaken_word(line, settings.directive)
    if word then
      return nil, "line " .. number .. ": #" .. word .. " is no directive at this site: write " .. keyword
    end
    local rest = line:sub(1, #keyword) == keyword and line:sub(#keyword + 1)
    if rest and (rest == "" or rest:match("^%s")) then
      local where = "line " .. number .. ": " .. keyword .. " "
      if ended then
        return nil, where .. "stands below the first command, where Slurm does not read it: move it up"
      end
      local transfer, why = directive_of(rest, settings)
      if transfer == nil then
        return nil, where .. why
      end
      if transfer then
        transfer.line = number
        found[#found + 1] = transfer
      end
      if #found > directives.MOST_DIRECTIVES then
        return nil, "line " .. number .. ": more than " .. directives.MOST_DIRECTIVES .. " directives"
      end
    end
  end
  return found
end

-- `place` with the job's values for %u %j %x %A %a. Returns nil and why where a value would change the directories.
function directives.expand(place, values)
  local why
  local text = place:gsub("%%(.)", function(letter)
    if letter == "%" then
      return "%"
    end
    local value = values[letter]
    if value == nil or value == "" or value == "." or value == ".." or value:find("[/%z%c]") then
      why = why or ("%" .. letter .. " is " .. shown(value or "") .. ", which is no name of a file")
      return ""
    end
    return value
  end)
  if why then
    return nil, why
  end
  return text
end

-- One word for a POSIX shell, whatever it holds.
function directives.quoted(word)
  return "'" .. word:gsub("%z", ""):gsub("'", "'\\''") .. "'"
end

-- A JSON string.
function directives.json_text(text)
  return '"' .. text:gsub('[%c"\\\127]', function(c)
    return string.format("\\u%04x", c:byte())
  end) .. '"'
end

-- The transfers as one line of JSON.
function directives.json(transfers)
  local objects = {}
  for _, each in ipairs(transfers) do
    objects[#objects + 1] = string.format(
      '{"direction":"%s","source":%s,"destination":%s,"node_local":%s,"verify":%s}',
      each.direction,
      directives.json_text(each.source),
      directives.json_text(each.destination),
      tostring(each.node_local),
      tostring(each.verify)
    )
  end
  return "[" .. table.concat(objects, ",") .. "]"
end
