#!lua flags=allow-oom
-- Extends the leases that are still the engine's at that attempt.
--
-- prelude common
-- A  1 engine  2 lease ms  then pairs of id, attempt
-- Returns {{lost ids}, {id, {marks}, id, {marks}, ...}}
local engine, lease_ms = A[1], tonumber(A[2])
local expires = int(now_ms() + lease_ms)
local lost, cancelled = {}, {}
for i = 3, #A, 2 do
  local id = A[i]
  local lease = lease_of(id)
  if is_of(lease, engine, A[i + 1]) then
    redis.call('ZADD', K.expiries, expires, id)
    local marks = marks_of(id, lease.n)
    if #marks > 0 then
      cancelled[#cancelled + 1] = id
      cancelled[#cancelled + 1] = marks
    end
  else
    lost[#lost + 1] = id
  end
end
return {lost, cancelled}
