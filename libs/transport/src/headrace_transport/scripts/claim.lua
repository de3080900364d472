#!lua flags=allow-oom
-- Gives an engine work: what lost its engine first, then bands in order, and in a band the
-- tenant with the least counter, one entry at a time.
--
-- prelude common
-- A  1 engine  2 credit  3 lease ms  4 crashes that make a suspect  5 crashes that end it
--    6 bands  7 requests and tenants looked at, at most
--    8 whether expired leases are taken away (1|0)
-- Returns rows {id, attempt, crashes, verdict, gateway, slot, n, prompt, begun, past, record,
--    {marks}}; verdict is 'run' | 'poison' | 'expired' | 'lost', and the engine has the lease
--    of each, whatever the verdict.
-- Cost: the requests and tenants looked at, the leases that expired.
local engine, credit, lease_ms = A[1], tonumber(A[2]), tonumber(A[3])
local suspect_at, dead_at = A[4], tonumber(A[5])
local looks = tonumber(A[7])
local now = now_ms()
local rows = {}

local TAKEN = {'tenant', 'band', 'n', 'gateway', 'slot', 'attempt', 'crashes', 'prompt', 'entry',
  'deadline', 'lengths', 'past'}

local function take(id, record, alone)
  local st = read(id, unpack(TAKEN))
  if not st then return forget(id) end
  local attempt, crashes, n = tonumber(st.attempt) + 1, tonumber(st.crashes), tonumber(st.n)
  record = record or record_of(id, st)
  redis.call('HSET', state_key(id), 'status', 'running', 'owner', engine, 'attempt', attempt,
    'delivered', '1', 'alone', alone and '1' or '0')
  redis.call('ZREM', K.queued, id)
  put_lease(id, engine, attempt, st.gateway, st.slot, n)
  redis.call('ZADD', K.expiries, int(now + lease_ms), id)
  redis.call('SADD', holding_key(engine), id)
  local deadline, verdict = tonumber(st.deadline), 'run'
  if crashes >= dead_at then verdict = 'poison'
  elseif record == '' then verdict = 'lost'
  elseif deadline > 0 and deadline <= now then verdict = 'expired' end
  local begun = (attempt > 1 or st.lengths ~= '') and 1 or 0
  rows[#rows + 1] = {id, attempt, crashes, verdict, st.gateway, st.slot, n,
    tonumber(st.prompt), begun, st.past, record, marks_of(id, n)}
  return st, verdict
end

-- How many requests this engine has. One whose lease is damaged may be left there, which would keep
-- the engine from ever being empty.
local function count_held()
  local held = 0
  for _, id in ipairs(redis.call('SMEMBERS', holding_key(engine))) do
    local lease = lease_of(id)
    if lease and lease.owner == engine then held = held + 1
    else redis.call('SREM', holding_key(engine), id) end
  end
  return held
end

-- True: this engine takes nothing else now, since a suspect runs, or will run, alone on it.
local function secluded()
  local holding = redis.call('SCARD', holding_key(engine))
  if holding == 1 then
    local id = redis.call('SRANDMEMBER', holding_key(engine))
    local st = read(id, 'alone')
    if st and st.alone == '1' and count_held() == 1 then return true end
  end
  local suspect = redis.call('ZRANGE', K.suspects, 0, 0)[1]
  if not suspect then return false end
  if redis.call('EXISTS', state_key(suspect)) == 0 then
    forget(suspect)
    return false
  end
  if holding > 0 then holding = count_held() end
  if holding == 0 then
    redis.call('ZREM', K.suspects, suspect)
    if redis.call('GET', K.quarantine) == engine then redis.call('DEL', K.quarantine) end
    take(suspect, nil, true)
    return true
  end
  -- One engine at a time empties itself for suspects; the others go on.
  local chosen = redis.call('GET', K.quarantine)
  if chosen and chosen ~= engine then return false end
  redis.call('SET', K.quarantine, engine, 'PX', int(lease_ms))
  return true
end

local function bury(band, tenant, entry, fields, reason)
  local kept = {}
  for i, field in ipairs(fields) do kept[i] = string.sub(field, 1, 1024) end
  redis.call('XADD', K.dlq, 'MAXLEN', '~', 1000, '*', 'reason', reason, 'tenant', tenant,
    'band', band, unpack(kept, 1, math.min(#kept, 16)))
  redis.call('PEXPIRE', K.dlq, DLQ_MS)
  forget_entry(band, tenant, entry)
end

-- One entry of a stream that the group had not delivered.
local function look(band, tenant, score, entry, fields)
  local id, record
  for i = 1, #fields, 2 do
    if fields[i] == 'id' then id = fields[i + 1] end
    if fields[i] == 'record' then record = fields[i + 1] end
  end
  if not id then return bury(band, tenant, entry, fields, 'no id') end
  local st = read(id, 'entry')
  if not st then
    forget(id)
    return bury(band, tenant, entry, fields, 'no state')
  end
  if st.entry ~= entry or st.status == 'finished' then return forget_entry(band, tenant, entry) end
  -- Delivered anew because the group was lost: somebody runs it, or it waits as an orphan.
  if st.status == 'running' or redis.call('ZSCORE', K.orphans, id)
    or redis.call('ZSCORE', K.suspects, id) then return end
  if record and #record > INLINE_MAX then record = '' end
  local taken, verdict = take(id, record, false)
  if verdict == 'run' then charge(band, tenant, tonumber(taken.prompt)) end
  if score > floor_of(band) then
    redis.pcall('HSET', K.floors, band, score)
    redis.pcall('ZREMRANGEBYSCORE', idle_key(band), '-inf', score)
  end
end

local function read_one(stream)
  local reply = redis.pcall('XREADGROUP', 'GROUP', GROUP, GROUP, 'COUNT', 1, 'STREAMS', stream, '>')
  if reply and reply.err then
    if redis.call('EXISTS', stream) == 0 then return nil end
    redis.pcall('XGROUP', 'CREATE', stream, GROUP, '0')
    reply = redis.pcall('XREADGROUP', 'GROUP', GROUP, GROUP, 'COUNT', 1, 'STREAMS', stream, '>')
    if reply and reply.err then return nil end  -- no stream: nothing waits there
  end
  return reply and reply[1][2][1]
end

local function walk(band)
  while #rows < credit and looks > 0 do
    local least = redis.call('ZRANGE', tenants_key(band), 0, 0, 'WITHSCORES')
    if not least[1] then return end
    local tenant, score = least[1], tonumber(least[2])
    local entry = read_one(queue_key(band, tenant))
    looks = looks - 1
    if entry then
      look(band, tenant, score, entry[1], entry[2])
    else
      retire_tenant(band, tenant, score)
    end
  end
end

if A[8] == '1' then sweep(now, looks, suspect_at, dead_at) end
if credit <= 0 or secluded() then return rows end
while #rows < credit and looks > 0 do
  local id = redis.call('ZPOPMIN', K.orphans)[1]
  if not id then break end
  looks = looks - 1
  take(id, nil, false)
end
for band = 0, tonumber(A[6]) - 1 do walk(band) end

-- No wake-up is lost: work that is left rings for another engine, or for this one's next call.
local left = redis.call('ZCARD', K.orphans)
for band = 0, tonumber(A[6]) - 1 do left = left + redis.call('ZCARD', tenants_key(band)) end
if left == 0 then redis.call('DEL', K.bell)
elseif redis.call('LLEN', K.bell) == 0 then redis.call('RPUSH', K.bell, '1') end
return rows
