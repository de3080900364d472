#!lua flags=allow-oom
-- Whether an API key was deleted. An id that is asked for is remembered as one deleted just now.
--
-- KEYS  1 hr:keys:forgotten
-- ARGV  1 its id
-- Returns 1 when it was, else 0
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], redis.call('TIME')[1], ARGV[1])
return 1
