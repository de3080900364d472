#!lua flags=allow-oom
-- Takes a lease that one process has at a time, or keeps it.
--
-- KEYS  1 the lease
-- ARGV  1 process  2 ttl ms
-- Returns 1 when it is the process's, else 0
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
