#!lua flags=allow-oom
-- Deletes an API key and remembers its id.
--
-- KEYS  1 the key  2 hr:keys  3 hr:keys:forgotten
-- ARGV  1 its id  2 unix ms before which it must have ended, or ''  3 ids remembered, at most
-- Returns 1 when it was deleted, else 0
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if ARGV[2] ~= '' then
  local ended = false
  for _, at in ipairs(redis.call('HMGET', KEYS[1], 'revoked_ms', 'expires_ms')) do
    local ms = tonumber(at or '')  -- what is no number is no end
    if ms and ms < tonumber(ARGV[2]) then ended = true end
  end
  if not ended then return 0 end
end
local t = redis.call('TIME')
redis.call('SREM', KEYS[2], ARGV[1])
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZADD', KEYS[3], string.format('%.0f', now), ARGV[1])
redis.call('DEL', KEYS[1])  -- once it is remembered: a key above may be of another type
redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -1 - tonumber(ARGV[3]))
return 1
