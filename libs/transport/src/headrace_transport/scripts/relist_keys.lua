#!lua flags=allow-oom
-- Makes the list of API keys anew where it is of another type.
--
-- KEYS  1 hr:keys
-- ARGV  ids of the keys that there are
-- Returns the type that it was, or nil for one that needs nothing
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'set' or kind == 'none' then return nil end
redis.call('UNLINK', KEYS[1])
for _, id in ipairs(ARGV) do redis.call('SADD', KEYS[1], id) end
return kind
