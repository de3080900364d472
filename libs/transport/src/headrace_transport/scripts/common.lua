-- Prelude of the scripts that touch a model's requests; the loader puts it before them.
--
-- KEYS  1 leases  2 expiries  3 orphans  4 suspects  5 queued  6 cancels  7 bell  8 dlq
--       9 floors  10 weights  11 quarantine  12 sources  13 hr:gateways
-- ARGV  patterns of keys: 1 queue(band, tenant)  2 tenants(band)  3 idle_tenants(band)
--       4 holding(engine)  5 requests_of(gateway)  6 state(id)  7 log(id)  8 body(id)
--       9 out(gateway)  10 control(engine)  11 running(tenant, key)
--       then lifetimes in ms: 12 of a key's reservation  13 of a finished state  14 of a finished log
--       (what is live has none: its end gives it one)
--       then, from 15 on, the script's own arguments, which it reads as A[1], A[2], ...
local K = {
  leases = KEYS[1], expiries = KEYS[2], orphans = KEYS[3], suspects = KEYS[4],
  queued = KEYS[5], cancels = KEYS[6], bell = KEYS[7], dlq = KEYS[8], floors = KEYS[9],
  weights = KEYS[10], quarantine = KEYS[11], sources = KEYS[12], gateways = KEYS[13],
}
local GROUP = 'engines'
local BELL_MAX = 16
local INLINE_MAX = 32 * 1024
local RECORD_MAX = 16 * 1024 * 1024
local DLQ_MS = 7 * 24 * 3600 * 1000
local LIVE_MS, STATE_MS, LOG_MS = ARGV[12], ARGV[13], ARGV[14]
local A = {}
for i = 15, #ARGV do A[i - 14] = ARGV[i] end

local function queue_key(band, tenant) return string.format(ARGV[1], band, tenant) end
local function tenants_key(band) return string.format(ARGV[2], band) end
local function idle_key(band) return string.format(ARGV[3], band) end
local function holding_key(engine) return string.format(ARGV[4], engine) end
local function requests_key(gateway) return string.format(ARGV[5], gateway) end
local function state_key(id) return string.format(ARGV[6], id) end
local function log_key(id) return string.format(ARGV[7], id) end
local function body_key(id) return string.format(ARGV[8], id) end
local function out_key(gateway) return string.format(ARGV[9], gateway) end
local function control_key(engine) return string.format(ARGV[10], engine) end
local function running_key(tenant, key) return string.format(ARGV[11], tenant, key) end

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function int(x) return string.format('%.0f', x) end

-- What is taken for a number that somebody damaged, and how great one can be that nobody did: one
-- request must not stop all the others.
local NUMBERS = {n = '1', slot = '0', attempt = '0', crashes = '0', prompt = '0', deadline = '0'}
local SLOTS = 2^32
local MOST = {
  n = 128, slot = SLOTS - 1, attempt = 2^31, crashes = 2^31, prompt = 2^32 - 1, deadline = 2^53,
}

local function is_number(name, value)
  return string.match(value, '^%d+$') ~= nil and tonumber(value) <= MOST[name]
end

-- A number that all of a model's requests share; 0 for what somebody damaged.
local function num(value)
  local n = tonumber(value or '0')
  if not n or n ~= n or math.abs(n) == math.huge then return 0 end
  return n
end

-- The named fields of a request's state, or nil when it has none; ``damaged`` where a number is none.
local function read(id, ...)
  local names = {...}
  local values = redis.pcall('HMGET', state_key(id), 'status', unpack(names))
  if values.err or not values[1] then return nil end
  local st = {status = values[1]}
  for i, name in ipairs(names) do
    st[name] = values[i + 1] or ''
    if NUMBERS[name] and not is_number(name, st[name]) then
      st[name], st.damaged = NUMBERS[name], true
    end
  end
  if st.slot and st.n and st.slot + st.n > SLOTS then st.slot, st.damaged = '0', true end
  return st
end

local function lease_of(id)
  local value = redis.call('HGET', K.leases, id)
  if not value then return nil end
  local owner, attempt, gateway, slot, n =
    string.match(value, '^(%S+) (%d+) (%S+) (%d+) (%d+)$')
  -- damaged: nobody's
  if not owner or not is_number('n', n) or not is_number('attempt', attempt) then return nil end
  return {owner = owner, attempt = tonumber(attempt), gateway = gateway, slot = slot, n = tonumber(n)}
end

local function put_lease(id, owner, attempt, gateway, slot, n)
  redis.call('HSET', K.leases, id, table.concat({owner, int(attempt), gateway, slot, int(n)}, ' '))
end

local function drop_lease(id, owner)
  redis.call('HDEL', K.leases, id)
  redis.call('ZREM', K.expiries, id)
  redis.pcall('SREM', holding_key(owner), id)  -- of another type: its engine empties it
end

local function is_of(lease, engine, attempt)
  return lease ~= nil and lease.owner == engine and lease.attempt == tonumber(attempt)
end

local function mark_fields(id, n)
  local fields = {id}
  for choice = 0, n - 1 do fields[#fields + 1] = id .. '/' .. choice end
  return fields
end

-- Marks of a request: its own first, then those of its choices.
local function marks_of(id, n)
  local marks = {}
  for _, mark in ipairs(redis.call('HMGET', K.cancels, unpack(mark_fields(id, n)))) do
    if mark then marks[#marks + 1] = mark end
  end
  return marks
end

local function depth(now) return redis.call('ZCOUNT', K.queued, '(' .. int(now), '+inf') end

-- A hint for an engine, which finds out by itself too. Its stream is of another type? It empties it.
local function nudge(engine, control)
  redis.pcall('XADD', control_key(engine), '*', 'control', control)
  redis.call('PEXPIRE', control_key(engine), LOG_MS)
end

local function ring()
  if redis.call('LLEN', K.bell) < BELL_MAX then redis.call('RPUSH', K.bell, '1') end
end

-- What fairness knows of a band, and of a tenant without work there. Where that is of another type,
-- a submit empties it: nothing that a claim has taken may get lost for it.
local function floor_of(band)
  local value = redis.pcall('HGET', K.floors, band)
  return num(type(value) == 'string' and value)
end

local function idle_of(band, tenant)
  local value = redis.pcall('ZSCORE', idle_key(band), tenant)
  return num(type(value) == 'string' and value)
end

local function rest(band, tenant, counter) redis.pcall('ZADD', idle_key(band), counter, tenant) end

-- Adds to a tenant's virtual counter, wherever it stands.
local function charge(band, tenant, tokens)
  local weight = num(redis.call('HGET', K.weights, tenant))
  if weight <= 0 then weight = 1 end
  local amount = tokens / weight
  if redis.call('ZSCORE', tenants_key(band), tenant) then
    redis.call('ZINCRBY', tenants_key(band), amount, tenant)
    return
  end
  rest(band, tenant, math.max(floor_of(band), idle_of(band, tenant)) + amount)
end

-- A tenant with work: it starts at the greatest of its own counter and the current minimum,
-- so that idle time is no credit.
local function activate(band, tenant)
  local active = tenants_key(band)
  if redis.call('ZSCORE', active, tenant) then return end
  local own = tonumber(redis.call('ZSCORE', idle_key(band), tenant) or '0')
  local start = math.max(own, num(redis.call('HGET', K.floors, band)))
  local least = redis.call('ZRANGE', active, 0, 0, 'WITHSCORES')
  if least[2] then start = math.max(start, tonumber(least[2])) end
  redis.call('ZADD', active, start, tenant)
  redis.call('ZREM', idle_key(band), tenant)
end

-- A tenant without work: its counter is kept while it is above what a newcomer gets.
local function retire_tenant(band, tenant, score)
  redis.call('ZREM', tenants_key(band), tenant)
  if score > floor_of(band) then rest(band, tenant, score) end
  local stream = queue_key(band, tenant)
  if redis.pcall('XLEN', stream) == 0 then redis.call('DEL', stream) end
end

-- Acknowledges and deletes a delivered entry; an empty stream of an idle tenant goes too.
local function forget_entry(band, tenant, entry)
  local stream = queue_key(band, tenant)
  redis.pcall('XACK', stream, GROUP, entry)  -- of a damaged state it is no id
  redis.pcall('XDEL', stream, entry)
  if redis.pcall('XLEN', stream) == 0 and not redis.call('ZSCORE', tenants_key(band), tenant) then
    redis.call('DEL', stream)
  end
end

-- The record of a request, '' if it is gone, or larger than any that was queued. st: band tenant
-- entry.
local function record_of(id, st)
  local found = redis.pcall('XRANGE', queue_key(st.band, st.tenant), st.entry, st.entry)
  local fields = found[1] and found[1][2] or {}
  for i = 1, #fields, 2 do
    local record = fields[i + 1]
    if fields[i] == 'record' and record ~= '' then return #record <= INLINE_MAX and record or '' end
  end
  local size = redis.pcall('STRLEN', body_key(id))
  if type(size) ~= 'number' or size > RECORD_MAX then return '' end
  return redis.call('GET', body_key(id)) or ''
end

-- What is left of a request that has no state any more, so that nobody can run or end it.
local function forget(id)
  for _, waiting in ipairs({K.queued, K.orphans, K.suspects}) do redis.call('ZREM', waiting, id) end
  redis.call('HDEL', K.cancels, unpack(mark_fields(id, MOST.n)))
  redis.call('DEL', body_key(id))
  redis.call('PEXPIRE', log_key(id), LOG_MS)
end

-- Puts a begun request back for a successor. Suspects wait apart.
local function orphan(id, st, now)
  redis.call('HSET', state_key(id), 'status', 'queued', 'owner', '')
  local deadline = tonumber(st.deadline) or 0
  redis.call('ZADD', K.queued, deadline > 0 and int(deadline) or '+inf', id)
  local crashes = tonumber(st.crashes) or 0
  local suspect = crashes >= tonumber(st.suspect_at) and crashes < tonumber(st.dead_at)
  redis.call('ZADD', suspect and K.suspects or K.orphans, int(now), id)
end

-- Leases that expired: each is one crash more, and its request waits for a successor.
local function sweep(now, most, suspect_at, dead_at)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', K.expiries, '-inf', int(now), 'LIMIT', 0, most)) do
    local lease, st = lease_of(id), read(id, 'deadline', 'crashes', 'owner')
    drop_lease(id, lease and lease.owner or st and st.owner or '')
    if st and st.status == 'running' then
      st.crashes = tonumber(st.crashes) + 1
      redis.call('HSET', state_key(id), 'crashes', int(st.crashes))
      st.suspect_at, st.dead_at = suspect_at, dead_at
      orphan(id, st, now)
    elseif not st then forget(id) end
  end
end

-- Id of the last entry of a work stream that was given to the group; nil where there is none.
local function delivered(stream)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if groups.err then return nil end
  for _, group in ipairs(groups) do
    local fields = {}
    for i = 1, #group, 2 do fields[group[i]] = group[i + 1] end
    if fields['name'] == GROUP then return fields['last-delivered-id'] end
  end
end

-- The one place where a request ends. st: band tenant entry delivered gateway key n.
local function end_request(id, st, reason, usage)
  if st.delivered == '1' then forget_entry(st.band, st.tenant, st.entry) end
  redis.call('ZREM', K.queued, id)
  redis.call('ZREM', K.orphans, id)
  redis.call('ZREM', K.suspects, id)
  redis.pcall('SREM', requests_key(st.gateway), id)  -- of another type: a submit empties it
  redis.call('HDEL', K.cancels, unpack(mark_fields(id, st.damaged and MOST.n or tonumber(st.n))))
  redis.call('DEL', body_key(id))
  if st.key ~= '' then redis.pcall('ZREM', running_key(st.tenant, st.key), id) end  -- likewise
  redis.call('HSET', state_key(id), 'status', 'finished', 'finish', reason, 'usage', usage)
  redis.call('PEXPIRE', state_key(id), STATE_MS)
  redis.call('PEXPIRE', log_key(id), LOG_MS)
end
