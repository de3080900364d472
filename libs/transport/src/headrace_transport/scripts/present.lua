#!lua flags=no-writes,allow-oom
-- Lists the processes whose lease is live.
--
-- KEYS  1 sorted set of processes by expiry
-- ARGV  1 pattern of a process's hash
-- Returns {process, {field, value, ...}, ...}, with a text for what is no hash
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local found = {}
for _, process in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now), '+inf')) do
  found[#found + 1] = process
  local hash = redis.pcall('HGETALL', string.format(ARGV[1], process))
  found[#found + 1] = hash.err or hash
end
return found
