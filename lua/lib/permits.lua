-- Permits: what a semaphore and a read/write lock are on the server (lua/README.md).
--
-- Both numbers that decide stand in the request, `<client>:<claim_ms>*<weight>/<capacity>:<n>:`. So there is
-- no stored capacity about which two callers could disagree.

-- The header, the field `permits`: `<seen> <used> <fence> <kept_until> <has_absent> <slots>`. WORDS finds all
-- of these, and NO_HEADER has them where there is none.
local WORDS, SEEN, SEEN_END = '(%d+) (%d+) (%d+) (%d+) (%d) (%d*)', 1, 13
local NO_HEADER = '0000000000000 00000 0000000000000000 0000000000000 0 '
-- Written as `seen` if the clock was set back: the next script makes the timers again.
local STALE = '9999999999999'
-- The field of a hold: `<deadline> <lease> <pushed> <fence> <weight> <slot>`. The first three stand where a
-- summary has them.
local HOLD_FENCE, HOLD_FENCE_END, HOLD_WEIGHT, HOLD_WEIGHT_END, HOLD_SLOT = 28, 43, 45, 49, 51
local WEIGHT, WEIGHT_END, CAPACITY, CAPACITY_END = 45, 49, 51, 55

-- One permit of a small capacity comes with a slot, the smallest that no hold has. Less than `capacity`
-- permits were in use before, so it is less than `capacity`, whatever other callers say.
local SINGLE, MOST_SLOTS, NO_SLOT = '00001', '01000', '-'
local FIRST = 1
