#!lua flags=allow-oom
-- Points a request at another gateway. Its owner is told, if it runs; if it waits, whoever
-- claims it will find the new gateway.
--
-- prelude common
-- A  1 id  2 gateway  3 slot  4 control (Attach)  5 ms that this is the gateway's sign of life
--    6 '1': only while no other gateway has it  7 places that it had before, at most
-- Returns {owner, attempt, ms since the lease lapsed} or nil when nobody runs it
local id, gateway, slot = A[1], A[2], A[3]
local st = read(id, 'gateway', 'slot', 'past')
if not st or st.status == 'finished' then return nil end
local lease = lease_of(id)
if st.status == 'running' and not lease then return nil end
if A[6] == '1' and st.gateway ~= '' and st.gateway ~= gateway then return nil end
if st.gateway ~= gateway or st.slot ~= slot then
  -- A successor also looks there for frames that the log does not hold yet: in the newest ones.
  local past = {}
  for name, number in string.gmatch(st.past .. st.gateway .. ' ' .. st.slot, '(%S+) (%d+)') do
    past[#past + 1] = name .. ' ' .. number .. ' '
  end
  redis.call('HSET', state_key(id), 'gateway', gateway, 'slot', slot,
    'past', table.concat(past, '', math.max(1, #past - tonumber(A[7]) + 1)))
end
redis.pcall('SREM', requests_key(st.gateway), id)
redis.call('SADD', requests_key(gateway), id)
redis.call('SADD', K.sources, gateway)
redis.call('ZADD', K.gateways, 'GT', int(now_ms() + tonumber(A[5])), gateway)
if st.status ~= 'running' then return nil end
put_lease(id, lease.owner, lease.attempt, gateway, slot, lease.n)
nudge(lease.owner, A[4])
local expires = tonumber(redis.call('ZSCORE', K.expiries, id) or now_ms())
return {lease.owner, lease.attempt, int(now_ms() - expires)}
