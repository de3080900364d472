#!lua
-- Binds a name to the first value that asks for it, or to one that may take its place.
--
-- KEYS  1 the name
-- ARGV  1 value  2 ttl ms, 0 lets go of it  3 the value whose place it takes, or ''
-- Returns what the name is bound to now, '' for nothing
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] and held ~= ARGV[3] then return held end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
  return ''
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
