-- Reads the model's name from a gRPC request and says in a header which pool serves it.
-- In every message of Triton's protocol that names a model the name is field 1, so its tag is 10. Clients write fields
-- in order. A name that is not at the beginning is refused, because Triton would take the last of several.

local NAME_TAG, FRAME, LONGEST = 10, 5, 1024

-- The number at `at` in protobuf's encoding (at most two bytes of it), and the place after it.
local function short_number(text, at)
  local low = string.byte(text, at)
  if not low then return nil end
  if low < 128 then return low, at + 1 end
  local high = string.byte(text, at + 1)
  if not high or high >= 128 then return nil end
  return low - 128 + high * 128, at + 2
end

local function model_name(text)
  if string.byte(text, FRAME + 1) ~= NAME_TAG then return nil end
  local length, start = short_number(text, FRAME + 2)
  if not length or start + length - 1 > #text then return nil end
  return string.sub(text, start, start + length - 1), string.byte(text, start + length)
end

local function answer(handle, status, text)
  handle:respond({[":status"] = "200", ["content-type"] = "application/grpc", ["grpc-status"] = status,
    ["grpc-message"] = text}, "")
end

function envoy_on_request(handle)
  local body = handle:body(true)
  local name, following = model_name(body:getBytes(0, math.min(body:length(), LONGEST)))
  if not name or following == NAME_TAG then
    return answer(handle, "3", "refused by the front door: the request does not begin with the name of a model")
  end
  local pool = handle:filterContext():get("pools")[name]
  if not pool then
    -- A name from outside goes into a header of the answer.
    return answer(handle, "5", "no pool of the front door serves the model '" .. string.gsub(name, "[^%w_.-]", "?") .. "'")
  end
  handle:headers():replace("x-door-pool", pool)
end
