#!lua flags=allow-oom
-- Ends the leases of an engine's predecessors now: processes of its name with another nonce.
--
-- prelude common
-- A  1 engine  2 its name and the hyphen before its nonce  3 engines (sorted set)
--    4 pattern of an engine's hash
-- Returns how many leases were ended. They are expired ones to the next claim, a crash each.
local engine, stem = A[1], A[2]
local now, ended = int(now_ms()), 0

local function is_predecessor(other)
  return other ~= engine and #other == #engine and string.sub(other, 1, #stem) == stem
    and string.match(string.sub(other, #stem + 1), '^%x+$') ~= nil
end

for _, other in ipairs(redis.call('ZRANGE', A[3], 0, -1)) do
  if is_predecessor(other) then
    for _, id in ipairs(redis.pcall('SMEMBERS', holding_key(other))) do
      local lease = lease_of(id)
      if lease and lease.owner == other then
        redis.call('ZADD', K.expiries, now, id)
        ended = ended + 1
      end
    end
    redis.call('ZREM', A[3], other)
    redis.call('DEL', string.format(A[4], other), control_key(other))
  end
end
if ended > 0 then ring() end
return ended
