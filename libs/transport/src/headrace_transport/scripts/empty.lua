#!lua flags=allow-oom
-- Empties keys that are of another type than theirs: what such a key held is lost already.
--
-- KEYS  some of ours
-- ARGV  the type of each
-- Returns {key, the type that it was, ...}
local emptied = {}
for i, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'none' and kind ~= ARGV[i] then
    redis.call('UNLINK', key)
    emptied[#emptied + 1] = key
    emptied[#emptied + 1] = kind
  end
end
return emptied
