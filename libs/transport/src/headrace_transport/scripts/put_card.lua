#!lua flags=allow-oom
-- Writes a model's card. From here on the files that it names stay.
--
-- KEYS  1 the card  2 hr:models  then each file that it names
-- ARGV  1 model  2 the card
-- Returns the card that it replaces, or nil
local before = redis.pcall('GET', KEYS[1])  -- of another type: as if there were none
redis.call('SET', KEYS[1], ARGV[2])
redis.call('ZADD', KEYS[2], '+inf', ARGV[1])
for i = 3, #KEYS do redis.call('PERSIST', KEYS[i]) end
return type(before) == 'string' and before or false
