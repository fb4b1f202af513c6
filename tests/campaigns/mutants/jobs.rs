//! The guards of locks that stay taken after their release, in the order of the files.

use super::lua::AGAINST_RULES;
use super::{Edit, edit};

const GUARD: &str = "src/api/guard.rs";
const HAND_OVER: &str = "lua/lib/next_holder.lua";
const HOLD: &str = "src/engine/hold.rs";
const LOCK: &str = "src/api/handle.rs";
const LOCK_SET: &str = "src/api/lock_set.rs";
const OPTIONS: &str = "src/engine/options.rs";
const RELEASE: &str = "lua/release_next.lua";
const RULES: &str = "src/protocol/rules/lock.rs";
const WAITLIST: &str = "src/engine/waitlist.rs";
const WITHDRAW: &str = "lua/withdraw.lua";

const JOBS: &[&str] = &["--test promises jobs::in_memory"];
const SETS: &[&str] = &["--test promises sets::in_memory"];
const SETTINGS: &[&str] = &["--test promises settings::"];
const MODEL: &[&str] = &[AGAINST_RULES];

#[rustfmt::skip]
pub(super) const EDITS: &[Edit] = &[
    edit("a lock is kept only while its hold lasts", RELEASE, "  if was_until > now and deadline > now then", "  if deadline > now then", MODEL),
    edit("a lock whose time is over is not kept", RELEASE, "  if was_until > now and deadline > now then", "  if was_until > now then", MODEL),
    edit("a lock is kept for no longer than it may, though the clock was set back", RELEASE,
        "math.min(now + most_ms, latest)", "latest", MODEL),
    edit("no call names the request that keeps a lock taken", RELEASE, ".. KEPT ..", ".. ':' ..", MODEL),
    edit("a repeated release leaves a kept lock as it is", RELEASE, "' ' .. fence .. ' ' .. kept then", "' ' .. fence .. 'x' .. kept then", MODEL),
    edit("a release keeps a lock for its own hold alone", RELEASE, "elseif hold == ONE .. ' ' .. fence .. ' ' .. request then", "else", MODEL),
    edit("a kept lock is in memory for as long as it is kept", RELEASE, "string.format('%d', lease_ms + RETENTION_MS)", "RETENTION_MS .. ''", MODEL),
    edit("a lock can be kept on a full server", RELEASE,
        "      redis.call('PEXPIRE', lock_key, string.format('%d', lease_ms + RETENTION_MS))\n", "", MODEL),
    edit("the first waiter is told that a lock is kept", RELEASE,
        "if stays_until and (not queue_key or string.sub(summary, HAS_WAITERS, HAS_WAITERS) == NO) then", "if stays_until then", MODEL),
    edit("a release goes on past many dead waiters of a kept lock", RELEASE, "      stays_until = was_until\n", "      return RELEASED .. ' ' .. request .. ' ' .. now .. ' ' .. was_until .. ' 0 0'\n", MODEL),
    edit("a refused message that a lock is kept is reported", HAND_OVER,
        "return NO, YES", "return NO, NO", MODEL).within("hand_over"),
    edit("a waiter that can be reached is told that a lock is kept", HAND_OVER,
        "redis.call('ZREM', queue_key, request)", "return NO, NO", MODEL).within("hand_over"),
    edit("who is told that a lock is kept stays in the queue", HAND_OVER,
        "    elseif fence then\n      request = redis", "    else\n      request = redis", MODEL),
    edit("a withdrawal of the first waiter tells the next that a lock is kept", WITHDRAW,
        "if queue_key and string.sub(summary, MARK, MARK) == KEPT then", "if false then", MODEL),
    edit("a withdrawal of waiters tells nobody that a held lock is kept", WITHDRAW,
        " and string.sub(summary, MARK, MARK) == KEPT then", " then", MODEL),
    edit("a withdrawal goes on past many dead waiters of a kept lock", WITHDRAW,
        "lock.deadline .. ' ' .. denied .. ' ' .. more\n", "lock.deadline .. ' ' .. denied .. ' 0'\n", MODEL),
    edit("a lock is kept only after a guard had it", HOLD, "if let Some((at_least, from)) = kept {",
        "if let Some((at_least, from)) = kept.or(self.terms.at_least.map(|at_least| (at_least, self.granted_at))) {", JOBS),
    edit("a set keeps no lock before it has all", LOCK_SET, "            guard.at_least(None)?;\n", "", SETS),
    edit("a set keeps its locks", LOCK_SET, "guard.at_least(lock.kept_for())?;", "let _ = lock.kept_for();", SETS).within("taken"),
    edit("a guard keeps its lock from the moment at which that is asked for", HOLD, "let from = since(&state, self.clock.now());", "let from = self.granted_at;", JOBS),
    edit("a guard keeps a lock for no longer than it may", HOLD, "check_at_least(at_least, &self.terms)?;", "let _ = check_at_least(at_least, &self.terms);", JOBS).within("keep_for"),
    edit("a lock whose hold was lost is not kept", HOLD, "state.over == Some(HoldEnd::Released)", "state.over.is_some()", &["--lib hold::"]),
    edit("a lock is kept for its time alone", HOLD, "let until = from.after(at_least);", "let until = ServerTime::MAX;", JOBS),
    edit("a guard uses its hold", GUARD, "        held.mark_used();\n", "", JOBS),
    edit("a lock that is to be kept has no local queue", LOCK, " || terms.at_least.is_some();", ";", JOBS),
    edit("a lock is kept for 30 days at most", OPTIONS,
        "    check_span(\"at_least\", at_least, MIN_AT_LEAST, MAX_KEPT)?;\n", "", SETTINGS),
    edit("a lock is kept for no longer than it is held at most", OPTIONS, "    if at_least > longest {", "    if false {", SETTINGS),
    edit("a fixed lease lasts for 30 days at most, in a quorum for its longest lease", OPTIONS,
        "true => manager.longest_lease.unwrap_or(MAX_KEPT),", "true => Duration::MAX,", SETTINGS),
    edit("a waiter that is told that a lock is kept asks until when", WAITLIST, "Some(Push::Kept) => self.poll_now(),", "Some(Push::Kept) => {}", JOBS),
    edit("in memory, too, a repeated release leaves a kept lock as it is", RULES, "if holder.holds.contains_key(&kept) {", "if false {", MODEL),
];
