#!lua
-- Queues a record once, within the queue's bound and its key's concurrency.
--
-- prelude common
-- A  1 id  2 record  3 by reference (1|0)  4 tenant  5 band  6 key  7 n  8 gateway  9 slot
--    10 deadline ms, 0 none  11 attempt  12 prompt tokens  13 max queued
--    14 max concurrency, 0 none  15 ms that a submit counts as a gateway's sign of life
--    16 model  17 log entry to resume from, or ''  18 its lengths per choice, 'a,b,...'
--    19 edge, opaque  then ids of the key's requests that are known to have ended
-- Returns {'queued', depth} | {'finished'} | {'full', depth} | {'busy', running}
local id, tenant, band, key, gateway = A[1], A[4], A[5], A[6], A[8]
local now = now_ms()
local was = redis.call('HGET', state_key(id), 'status')
if was == 'finished' then return {'finished'} end
if was then return {'queued', depth(now)} end

local waiting = depth(now)
if waiting >= tonumber(A[13]) then return {'full', waiting} end
local deadline = tonumber(A[10])
local running = running_key(tenant, key)
if key ~= '' then
  redis.call('ZREMRANGEBYSCORE', running, '-inf', int(now))
  for i = 20, #A do redis.call('ZREM', running, A[i]) end
  local count = redis.call('ZCARD', running)
  if tonumber(A[14]) > 0 and count >= tonumber(A[14]) then return {'busy', count} end
end

local stream = queue_key(band, tenant)
if redis.call('EXISTS', stream) == 0 then
  redis.call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
end
local entry
if A[3] == '1' then
  redis.call('SET', body_key(id), A[2])
  entry = redis.call('XADD', stream, '*', 'id', id)
else
  entry = redis.call('XADD', stream, '*', 'id', id, 'record', A[2])
end
if A[17] ~= '' then
  redis.call('DEL', log_key(id))
  redis.call('XADD', log_key(id), '*', 'entry', A[17])
end
redis.call('ZADD', K.queued, deadline > 0 and int(deadline) or '+inf', id)
activate(band, tenant)
redis.call('SADD', requests_key(gateway), id)
redis.call('SADD', K.sources, gateway)
redis.call('ZADD', K.gateways, 'GT', int(now + tonumber(A[15])), gateway)
-- Last: where a key above is of another type, nothing says yet that it is queued.
if key ~= '' then
  local live_ms = tonumber(LIVE_MS)
  if deadline > 0 then live_ms = math.max(deadline - now, 0) + tonumber(STATE_MS) end
  redis.call('ZADD', running, int(now + live_ms), id)
  if redis.call('PTTL', running) < live_ms then redis.call('PEXPIRE', running, int(live_ms)) end
end
redis.call('HSET', state_key(id), 'status', 'queued', 'model', A[16], 'tenant', tenant,
  'band', band, 'key', key, 'n', A[7], 'gateway', gateway, 'slot', A[9], 'deadline', A[10],
  'attempt', A[11], 'crashes', '0', 'prompt', A[12], 'created', int(now), 'entry', entry,
  'lengths', A[18], 'edge', A[19])
ring()
return {'queued', waiting + 1}
