#!lua flags=allow-oom
-- Appends entries to the out streams of gateways that are alive.
--
-- KEYS  1 hr:gateways  then one out stream an entry
-- ARGV  triples of gateway, field ('frame' | 'fence'), payload; in the order of KEYS
-- Returns the entries' ids, '' for a gateway that was reaped
local ids = {}
for i = 2, #KEYS do
  local at = (i - 2) * 3
  if redis.call('ZSCORE', KEYS[1], ARGV[at + 1]) then
    ids[i - 1] = redis.call('XADD', KEYS[i], '*', ARGV[at + 2], ARGV[at + 3])
  else
    ids[i - 1] = ''
  end
end
return ids
