#!lua
-- Puts an API key back as it was kept, unless it was deleted. An earlier end that the server knows
-- stays; where nobody can tell whether it has one, it ends now.
--
-- KEYS  1 the key  2 hr:keys  3 hr:keys:forgotten
-- ARGV  1 its id  2 unix ms of the end that was kept, or ''  then its other fields and values
-- Returns 1, or 0 for one that was deleted
if redis.call('ZSCORE', KEYS[3], ARGV[1]) then return 0 end
local ended = ARGV[2]
local known = redis.pcall('HGET', KEYS[1], 'revoked_ms')
if known then
  if type(known) ~= 'string' or not string.match(known, '^%-?%d+$') then
    local t = redis.call('TIME')
    known = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
  end
  if ended == '' or tonumber(known) < tonumber(ended) then ended = known end
end
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
if ended ~= '' then redis.call('HSET', KEYS[1], 'revoked_ms', ended) end
return 1
