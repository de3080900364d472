#!lua flags=allow-oom
-- Marks a request; ends it at once when it is queued, else nudges its owner.
--
-- prelude common
-- A  1 id  2 mark  3 choice, or '' for all  4 nudge (Control)  5 reason  6 terminal frame
--    7 attempt, 8 gateway, 9 slot that the frame was made for  10 usage
-- Returns 'unknown' | 'changed' (nothing done: make the frame anew) | 'ended' | 'marked'
local id = A[1]
local st = read(id, 'tenant', 'band', 'key', 'n', 'gateway', 'slot', 'attempt', 'entry', 'delivered')
if not st or st.status == 'finished' then return 'unknown' end
local whole = A[3] == '' or tonumber(st.n) == 1
if st.status == 'queued' and whole then
  if st.attempt ~= A[7] or st.gateway ~= A[8] or st.slot ~= A[9] then return 'changed' end
  local gateway = st.gateway
  end_request(id, st, A[5], A[10])
  -- A tombstone now: an undelivered entry is never deleted, the claim skips it.
  if redis.call('ZSCORE', K.gateways, gateway) then
    redis.pcall('XADD', out_key(gateway), '*', 'frame', A[6])  -- of another type: it empties it
  end
  return 'ended'
end
redis.call('HSET', K.cancels, A[3] == '' and id or id .. '/' .. A[3], A[2])
local lease = lease_of(id)
if lease then
  nudge(lease.owner, A[4])
end
return 'marked'
