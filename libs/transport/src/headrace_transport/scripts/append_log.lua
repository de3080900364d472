#!lua flags=allow-oom
-- Appends to a resume log if the attempt is the engine's and every row continues its choice.
--
-- KEYS  1 state of the request  2 its log
-- ARGV  1 pattern of the leases' key (model)  2 id  3 engine  4 attempt  5 entry
--       then triples of choice, first, count
-- Returns {ours (1|0), tokens of choice 0, of choice 1, ...}; a row that does not continue
-- its choice appends nothing, so that a repeated append is a no-op
-- What is damaged is nobody's: it must not stop the engine that has it.
local found = redis.pcall('HMGET', KEYS[1], 'model', 'n', 'lengths')
if found.err or not found[1] or not found[2] then return {0} end
local n = string.match(found[2], '^%d+$') and tonumber(found[2])
if not n or n > 128 then return {0} end
local lease = redis.pcall('HGET', string.format(ARGV[1], found[1]), ARGV[2])
if type(lease) ~= 'string' then return {0} end
local owner, attempt = string.match(lease, '^(%S+) (%d+) ')
if owner ~= ARGV[3] or attempt ~= ARGV[4] then return {0} end

local lengths = {}
for length in string.gmatch(found[3] or '', '%d+') do lengths[#lengths + 1] = tonumber(length) end
for i = #lengths + 1, n do lengths[i] = 0 end
local grown, fits = {unpack(lengths)}, true
for i = 6, #ARGV, 3 do
  local choice, first = tonumber(ARGV[i]) + 1, tonumber(ARGV[i + 1])
  if grown[choice] ~= first then fits = false break end
  grown[choice] = first + tonumber(ARGV[i + 2])
end
if fits then
  local added = redis.pcall('XADD', KEYS[2], '*', 'entry', ARGV[5])
  if type(added) == 'table' and added.err then return {0} end
  redis.call('HSET', KEYS[1], 'lengths', table.concat(grown, ','))
  lengths = grown
end
return {1, unpack(lengths)}
