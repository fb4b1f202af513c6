-- The server's clock. It is read once per script and before all else, because before 7.2 the time goes on
-- while a script runs. Tests put another clock in its place. No client's clock ever decides anything here.
--
-- This file defines `now_us`, the time in µs as a string of 16 digits, and `now`, the time in ms as a string
-- of 13 digits. Times of one width compare as strings. A clock that was never set (before September 2001)
-- would give fewer digits, so the script refuses it.
local S_DIGITS, US_DIGITS = 10, 6
-- The ms are the first digits of the µs.
local MS, MS_END = 1, 13

local time = redis.call('TIME')
if #time[1] ~= S_DIGITS then
  return redis.error_reply("CLOCK the server's clock shows a time before September 2001: "
    .. 'set it, since locks go by it')
end
local now_us = time[2]
if #now_us < US_DIGITS then
  now_us = string.sub('00000' .. now_us, -US_DIGITS)
end
now_us = time[1] .. now_us
local now = string.sub(now_us, MS, MS_END)
