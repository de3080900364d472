#!lua flags=allow-oom
-- Clears what dead processes left, and names the requests that end although no engine has them.
--
-- prelude common
-- A  1 ms after its expiry that a gateway's requests are kept  2 engines (sorted set)
--    3 pattern of an engine's hash  4 pattern of a gateway's hash  5 at most this many of each
--    6 crashes that make a suspect  7 crashes that end it  8 bands
-- Returns {{ids of requests of dead gateways}, {ids whose deadline passed in the queue},
--    {id, mark, ...} of requests that were cancelled at an engine and lost it}
local now, grace, most = now_ms(), tonumber(A[1]), tonumber(A[5])

-- What ended while it was queued is an empty place in its stream, for a claim to pass over. The
-- first ones go here, given to the group like any other: an undelivered entry is never deleted.
-- Nor does a tenant stay of whom nothing else waits: without an engine nobody else would see.
local places = most
local function clear_head(band, tenant, score)
  local stream = queue_key(band, tenant)
  while places > 0 do
    local after = delivered(stream)
    if not after then return end
    local entry = redis.call('XRANGE', stream, '(' .. after, '+', 'COUNT', 1)[1]
    if not entry then return retire_tenant(band, tenant, score) end
    if entry[2][1] ~= 'id' then return end
    local st = read(entry[2][2], 'entry')
    if not st or (st.status ~= 'finished' and st.entry == entry[1]) then return end
    redis.call('XREADGROUP', 'GROUP', GROUP, GROUP, 'COUNT', 1, 'STREAMS', stream, '>')
    forget_entry(band, tenant, entry[1])
    places = places - 1
  end
end

-- Of more than so many any are looked at, here and below: the first ones may be such as stay there.
for band = 0, tonumber(A[8]) - 1 do
  local active = redis.call('ZRANDMEMBER', tenants_key(band), most, 'WITHSCORES')
  for i = 1, #active, 2 do clear_head(band, active[i], tonumber(active[i + 1])) end
end
local had = redis.call('ZCARD', K.expiries)
sweep(now, most, A[6], A[7])
if redis.call('ZCARD', K.expiries) < had then ring() end
local stranded = {}
for _, gateway in ipairs(redis.call('SMEMBERS', K.sources)) do
  local expiry = redis.call('ZSCORE', K.gateways, gateway)
  if not expiry or tonumber(expiry) + grace <= now then
    local ids = redis.pcall('SRANDMEMBER', requests_key(gateway), most)
    if ids.err then  -- of another type: nothing can be told by it
      redis.call('UNLINK', requests_key(gateway))
      ids = {}
    end
    if #ids == 0 then redis.call('SREM', K.sources, gateway) end
    for _, id in ipairs(ids) do
      if redis.call('EXISTS', state_key(id)) == 1 then stranded[#stranded + 1] = id
      else
        redis.call('SREM', requests_key(gateway), id)
        forget(id)
      end
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
local marked = {}
for _, waiting in ipairs({K.orphans, K.suspects}) do
  for _, id in ipairs(redis.call('ZRANDMEMBER', waiting, most)) do
    local mark = redis.call('HGET', K.cancels, id)
    if not mark then
      -- of one choice, the choice's mark is the request's
      local st = read(id, 'n')
      if st and tonumber(st.n) == 1 then mark = redis.call('HGET', K.cancels, id .. '/0') end
    end
    if mark then
      marked[#marked + 1] = id
      marked[#marked + 1] = mark
    end
  end
end
local expired = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', K.queued, '-inf', int(now), 'LIMIT', 0, most)) do
  local st = read(id)
  if not st then forget(id)
  elseif st.status == 'queued' then expired[#expired + 1] = id
  else redis.call('ZREM', K.queued, id) end
end
return {stranded, expired, marked}
