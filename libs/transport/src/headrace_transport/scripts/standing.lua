#!lua flags=no-writes,allow-oom
-- Where a live request stands: who runs it, or what is before it in its queue.
--
-- prelude common
-- A  1 id  2 pattern of an engine's key  3 entries of the queue looked at, at most
-- Returns {owner | '', what its engine says of those that wait in it, whether it lost an engine
--    (1|0), queued requests of its tenant and band before it | -1, queued requests of the model}
-- Cost: the entries looked at.
local id, looks = A[1], tonumber(A[3])
local st = read(id, 'tenant', 'band', 'entry')
local lease = lease_of(id)
local owner = lease and lease.owner or ''
local waits = owner ~= '' and redis.pcall('HGET', string.format(A[2], owner), 'waits') or ''
if type(waits) ~= 'string' then waits = '' end
local left = redis.call('ZSCORE', K.orphans, id) or redis.call('ZSCORE', K.suspects, id)

-- Cancelled entries stay as tombstones until a claim meets them: they are passed over.
local function ahead()
  local stream = queue_key(st.band, st.tenant)
  local after = delivered(stream)
  if not after then return -1 end
  local before = 0
  for _, entry in ipairs(redis.call('XRANGE', stream, '(' .. after, '(' .. st.entry, 'COUNT', looks)) do
    if redis.call('HGET', state_key(entry[2][2]), 'status') == 'queued' then before = before + 1 end
  end
  return before
end

local before = -1
if st and st.status == 'queued' and not left then before = ahead() end
return {owner, waits, left and 1 or 0, before, depth(now_ms())}
