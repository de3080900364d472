#!lua flags=allow-oom
-- Gives an API key an end, unless it has an earlier one. An end that is no number was none.
--
-- KEYS  1 the key
-- ARGV  1 unix ms of its end
-- Returns 1, or 0 when there is no such key
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local known = tonumber(redis.call('HGET', KEYS[1], 'revoked_ms') or '')
if not known or known ~= known or tonumber(ARGV[1]) < known then
  redis.call('HSET', KEYS[1], 'revoked_ms', ARGV[1])
end
return 1
