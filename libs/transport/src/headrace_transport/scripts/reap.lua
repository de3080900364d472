#!lua flags=allow-oom
-- Clears what dead processes left, and names the requests whose turn it is to end.
--
-- prelude common
-- A  1 ms after its expiry that a gateway's requests are kept  2 engines (sorted set)
--    3 pattern of an engine's hash  4 pattern of a gateway's hash  5 at most this many of each
-- Returns {{ids of requests of dead gateways}, {ids whose deadline passed in the queue}}
local now, grace, most = now_ms(), tonumber(A[1]), tonumber(A[5])
local stranded = {}
for _, gateway in ipairs(redis.call('SMEMBERS', K.sources)) do
  local expiry = redis.call('ZSCORE', K.gateways, gateway)
  if not expiry or tonumber(expiry) + grace <= now then
    local ids = redis.call('SRANDMEMBER', requests_key(gateway), most)
    if #ids == 0 then redis.call('SREM', K.sources, gateway) end
    for _, id in ipairs(ids) do
      if redis.call('EXISTS', state_key(id)) == 1 then stranded[#stranded + 1] = id
      else redis.call('SREM', requests_key(gateway), id) end
    end
  end
end
for _, gateway in ipairs(redis.call('ZRANGEBYSCORE', K.gateways, '-inf', int(now - grace), 'LIMIT', 0, most)) do
  redis.call('ZREM', K.gateways, gateway)
  redis.call('DEL', string.format(A[4], gateway), out_key(gateway))
end
for _, engine in ipairs(redis.call('ZRANGEBYSCORE', A[2], '-inf', int(now), 'LIMIT', 0, most)) do
  redis.call('ZREM', A[2], engine)
  redis.call('DEL', string.format(A[3], engine), control_key(engine))
end
return {stranded, redis.call('ZRANGEBYSCORE', K.queued, '-inf', int(now), 'LIMIT', 0, most)}
