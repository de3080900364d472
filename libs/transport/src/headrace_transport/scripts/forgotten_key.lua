#!lua flags=allow-oom
-- Whether an API key was deleted. An id that is asked for is remembered as one deleted just now.
--
-- KEYS  1 hr:keys:forgotten
-- ARGV  1 its id
-- Returns 1 when it was, else 0
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
return 1
