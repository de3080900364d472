#!lua flags=allow-oom
-- Takes from the two buckets of a key, or gives back to them. A bucket holds what a minute allows,
-- and fills evenly; it may be overdrawn by what turns out to be needed after all.
--
-- KEYS  1 buckets of the key
-- ARGV  1 requests a minute, 0 no limit  2 tokens a minute, 0 no limit  3 requests  4 tokens taken;
--       below 0: given back  5 whether they must be there (1|0)
-- Returns {granted (1|0), requests left, tokens left, ms until they would be there,
--    ms until all requests are back, ms until all tokens are back}
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local was = redis.call('HMGET', KEYS[1], 'at', 'requests', 'tokens')

-- What somebody damaged counts as never written.
local function num(value)
  local n = tonumber(value or '')
  if n and math.abs(n) < 1e15 then return n end
end

local passed = math.max(0, now - (num(was[1]) or now))
local must, granted, wait = ARGV[5] == '1', true, 0

local function bucket(limit, level, amount)
  limit, amount = tonumber(limit), tonumber(amount)
  local b = {limit = limit, level = 0, amount = math.min(amount, limit)}
  if limit == 0 then return b end
  b.level = math.min(limit, (num(level) or limit) + limit * passed / 60000)
  if must and b.level < b.amount then
    granted = false
    wait = math.max(wait, math.ceil((b.amount - b.level) * 60000 / limit))
  end
  if not must then b.amount = amount end
  return b
end

local function full_ms(b)
  if b.limit == 0 then return 0 end
  return math.ceil((b.limit - b.level) * 60000 / b.limit)
end

local requests = bucket(ARGV[1], was[2], ARGV[3])
local tokens = bucket(ARGV[2], was[3], ARGV[4])
if granted then
  requests.level = math.min(requests.limit, requests.level - requests.amount)
  tokens.level = math.min(tokens.limit, tokens.level - tokens.amount)
end
redis.call('HSET', KEYS[1], 'at', string.format('%.0f', now), 'requests',
  string.format('%.17g', requests.level), 'tokens', string.format('%.17g', tokens.level))
redis.call('PEXPIRE', KEYS[1], math.max(full_ms(requests), full_ms(tokens)) + 1000)
return {granted and 1 or 0, math.floor(requests.level), math.floor(tokens.level), wait,
  full_ms(requests), full_ms(tokens)}
