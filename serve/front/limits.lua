-- Refuses JSON requests that end a bare tritonserver: nested too deep, or with a shape of more values than the request
-- can hold. Only the JSON part is read: for `infer`, `Inference-Header-Content-Length` says how long it is before binary
-- tensors. For `generate` Triton ignores that header, and the whole body is JSON.
-- For every valid JSON text this reads the same strings and brackets as Triton's parser; it leaves wrong JSON to Triton.

local QUOTE, BACKSLASH, COLON, COMMA = 34, 92, 58, 44
local OPEN, CLOSE, OPEN_OBJECT, CLOSE_OBJECT = 91, 93, 123, 125
local MOST_DIMENSIONS, LONGEST_SHAPE, MOST_SHAPES = 16, 512, 1024
local byte = string.byte

local function is_space(c)
  return c == 32 or c == 9 or c == 10 or c == 13
end

local function after_spaces(text, at)
  while is_space(byte(text, at)) do at = at + 1 end
  return at
end

-- The place of the quote that ends the string whose first quote is at `at`, and whether it has a backslash.
local function string_end(text, at)
  local escaped = false
  at = at + 1
  local c = byte(text, at)
  while c and c ~= QUOTE do
    if c == BACKSLASH then
      escaped = true
      at = at + 1
    end
    at = at + 1
    c = byte(text, at)
  end
  return at, escaped
end

-- The product of the shape whose bracket is at `at`; nil and a reason if no honest client sends it. A zero counts as one.
local function product(text, at)
  local found = string.match(string.sub(text, at, at + LONGEST_SHAPE), "^%[([%d%s,]*)%]")
  if not found then return nil, "a shape is not a short list of whole numbers from 0" end
  local values, dimensions = 1, 0
  for number in string.gmatch(found, "%d+") do
    values = values * math.max(tonumber(number), 1)
    dimensions = dimensions + 1
  end
  if dimensions > MOST_DIMENSIONS then return nil, "a shape has more than " .. MOST_DIMENSIONS .. " dimensions" end
  return values
end

-- Why the JSON must not reach Triton; nil if it may. `binary` is the number of bytes after it.
local function problem(text, most_depth, binary)
  -- A value takes two bytes of JSON with its comma, and at least one byte of a binary tensor.
  local most_values = #text / 2 + 1 + binary
  local values, shapes, depth, at, length = 0, 0, 0, 1, #text
  while at <= length do
    local c = byte(text, at)
    if c == QUOTE then
      local start = at
      local escaped
      at, escaped = string_end(text, at)
      local following = after_spaces(text, at + 1)
      if byte(text, following) == COLON then
        if escaped then return "a name in the JSON has a backslash" end
        if at - start == 6 and string.sub(text, start + 1, at - 1) == "shape" then
          local value = after_spaces(text, following + 1)
          if byte(text, value) == OPEN then
            local size, reason = product(text, value)
            if not size then return reason end
            values, shapes = values + size, shapes + 1
            if shapes > MOST_SHAPES then return "it has more than " .. MOST_SHAPES .. " shapes" end
            if values > most_values then return "its shapes have more values than the request can hold" end
          end
        end
      end
    elseif c == OPEN or c == OPEN_OBJECT then
      depth = depth + 1
      if depth > most_depth then return "its JSON is nested deeper than " .. most_depth .. " levels" end
    elseif c == CLOSE or c == CLOSE_OBJECT then
      depth = depth - 1
    end
    at = at + 1
  end
  return nil
end

-- How many bytes of a body are JSON, by the header that says so; nil and a reason if the header is wrong.
local function json_length(path, stated, length)
  local is_infer = string.match(string.match(path, "^[^?#]*"), "/infer$")
  if not is_infer or not stated then return length end
  if not string.match(stated, "^%d+$") or tonumber(stated) > length then
    return nil, "Inference-Header-Content-Length is not a length within the body"
  end
  return tonumber(stated)
end

-- The reason to refuse a request; nil if it may pass. Only the JSON of the body is copied.
local function examine(handle)
  local body = handle:body(true)
  local length, headers = body:length(), handle:headers()
  -- Several headers of the name are one text here, with commas, which is no length.
  local json, reason = json_length(headers:get(":path"), headers:get("inference-header-content-length"), length)
  if not json or json == 0 then return reason end
  return problem(body:getBytes(0, json), handle:filterContext():get("most_depth"), length - json)
end

function envoy_on_request(handle)
  -- A failed script would let the request through.
  local worked, reason = pcall(examine, handle)
  if not worked then
    handle:logErr(reason)
    handle:respond({[":status"] = "500"}, "the front door could not examine the request")
  elseif reason then
    handle:respond({[":status"] = "400"}, "refused by the front door: " .. reason)
  end
end
