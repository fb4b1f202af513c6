-- Permits: what a semaphore and a read/write lock are on the server.
--
-- A request takes `weight` permits, and may hold while, with them, at most `capacity` are in use. Both stand
-- in the request: `<client>:<claim_ms>*<weight>/<capacity>:<n>:`. So there is no stored capacity about which
-- two callers could disagree. A reader takes 1 of 99999, and a writer all of them. Permits that were given
-- back but stay taken for a while are held by `<client>:<claim_ms>=<weight>/<capacity>:<n>:`.
--
-- The hash has a header, the field `permits`: `<seen> <used> <fence> <kept_until> <slots>`. These are the
-- time (ms) of its last write, the number of permits in use, the last fence, the latest time (ms) until which
-- permits stay taken, and the slots: for each a YES if a hold has it, or a NO. Each hold has a field
-- `h:<request>`: `<deadline> <lease> <pushed> <fence> <weight> <slot>`. Its first words stand where a summary
-- has them (summary.lua). A shrink makes its weight less than that of its request.
local SEEN, SEEN_END, USED, USED_END, LAST_FENCE, LAST_FENCE_END = 1, 13, 15, 19, 21, 36
local KEPT_UNTIL, KEPT_UNTIL_END, SLOTS = 38, 50, 52
-- Written in the place of the time if the clock was set back: the next script makes the timers again.
local STALE = '9999999999999'
local HOLD_FIELD, KIND, KIND_END, HOLDER = 'h:', 1, 2, 3
local HOLD_FENCE, HOLD_FENCE_END, HOLD_WEIGHT, HOLD_WEIGHT_END, HOLD_SLOT = 28, 43, 45, 49, 51
local WEIGHT, WEIGHT_END, CAPACITY, CAPACITY_END = 45, 49, 51, 55

-- One permit of a small capacity comes with a slot, the smallest that no hold has. Less than `capacity`
-- permits were in use before, so it is less than `capacity`, whatever other callers say.
local SINGLE, MOST_SLOTS, NO_SLOT = '00001', '01000', '-'
local FIRST = 1
