#!lua flags=allow-oom
-- Gives files a lifetime, or takes it away, if cards are as they were read: another engine's card may
-- have come in between, and name some of them or name them no more.
--
-- KEYS  cards, then files
-- ARGV  1 number of cards  2 lifetime ms, 0 for none  3 hr:models, or '' to go by these cards alone
--       then each card's SHA-1 in hex
-- Returns 1, or 0 when a card is another one
local cards = tonumber(ARGV[1])
if ARGV[3] ~= '' and redis.call('ZCARD', ARGV[3]) ~= cards then return 0 end
for i = 1, cards do
  local card = redis.pcall('GET', KEYS[i])
  if redis.sha1hex(type(card) == 'string' and card or '') ~= ARGV[3 + i] then return 0 end
end
for i = cards + 1, #KEYS do
  if ARGV[2] == '0' then
    redis.call('PERSIST', KEYS[i])
  else
    redis.call('PEXPIRE', KEYS[i], ARGV[2])
  end
end
return 1
