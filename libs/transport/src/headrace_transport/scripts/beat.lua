#!lua flags=allow-oom
-- Extends the lease of a process.
--
-- KEYS  1 its hash  2 the sorted set of its kind
-- ARGV  1 process  2 ttl ms  then pairs of field, value
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('HSET', KEYS[1], 'beat', string.format('%.0f', now), unpack(ARGV, 3))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('ZADD', KEYS[2], string.format('%.0f', now + tonumber(ARGV[2])), ARGV[1])
return 1
