//! What is counted, and that it is counted once.

use super::{Edit, edit};

const COUNTERS: &str = "src/engine/counters.rs";
const RECORDED: &str = "src/engine/metrics/recorded.rs";
const HOLD: &str = "src/engine/hold.rs";
const LOCAL_QUEUE: &str = "src/caller/local_queue.rs";
const VOTES: &str = "src/quorum/votes.rs";

const STATS: &[&str] = &["--lib stats::tests"];
const METRICS: &[&str] = &["--lib metrics::tests"];
const BOTH: &[&str] = &["--lib stats::tests", "--lib metrics::tests"];

#[rustfmt::skip]
pub(super) const EDITS: &[Edit] = &[
    edit("a call whose future is dropped counts as cancelled", COUNTERS,
        "            self.end(Outcome::Cancelled);\n", "", BOTH),
    edit("a call that has ended is not cancelled too", COUNTERS,
        "        if !self.is_over {\n", "        if true {\n", BOTH),
    edit("a call that waits no longer is no waiter", COUNTERS,
        "self.waiting = None;", "std::mem::forget(self.waiting.take());", METRICS).within("end_at"),
    edit("a hold that is over is not held", COUNTERS,
        "        let held_for = now.since(self.since);\n",
        "        let held_for = now.since(self.since);\n        std::mem::forget(self._held);\n", METRICS),
    edit("a release that finds the lease lost counts as a loss", COUNTERS,
        "            self.end = GuardEnd::Lost(lost.reason);\n", "", STATS),
    edit("the end of a hold takes what its guard holds", HOLD,
        "let holding = state.holding.take();", "let holding = None;", BOTH).within("end"),
    edit("a guard of a hold that is over has lost it", HOLD,
        "let Some(reason) = state.over else {\n            state.holding = Some(holding);\n            return;\n        };\n        drop(state);\n        holding.ended(counters, GuardEnd::Lost(reason));",
        "state.holding = Some(holding);\n        let _ = counters;", STATS).within("begin_guard"),
    edit("a margin is that of a whole lease", HOLD,
        "let is_whole = state.claimed && !state.lengthened;", "let is_whole = true;", METRICS),
    edit("a grant that a later call found was not free at once", HOLD,
        "if was_queued && self.how == How::Free {", "if false {", STATS),
    edit("a turn ends what its guard holds", LOCAL_QUEUE,
        "holding.over(self.place().counters(), now).end = end;", "drop(holding);\n            let _ = (now, end);", BOTH).within("end_guard"),
    edit("a lost majority ends what its guard holds", VOTES,
        "holding.ended(&self.quorum.counters, GuardEnd::Lost(reason));", "drop(holding);", BOTH).within("end_if_over"),
    edit("a request misses a turn only if it had been queued", "src/engine/waitlist.rs",
        "if std::mem::replace(&mut waiter.was_queued, true) && contended.enqueued {",
        "waiter.was_queued = true;\n        if contended.enqueued {", METRICS),
    edit("a client tells a bounded number of groups apart", RECORDED,
        "let name = if self.groups.len() < MAX_GROUPS {", "let name = if true {", METRICS),
    edit("what the server has confirmed is not pending", RECORDED,
        "        self.0.decrement(1.0);\n", "", METRICS),
    edit("a group is 1 to 64 bytes without control characters", "src/engine/options.rs",
        "if group.is_empty() || group.len() > MAX_GROUP_BYTES || group.contains(char::is_control) {",
        "if group.is_empty() {", &["--test promises settings::"]),
    edit("each connection that comes back is counted", "src/servers/redis/supervisor.rs",
        "listener.reopened(self.purpose(), self.connector.server());",
        "let _ = listener;", &["--test face metrics::"]).within("run"),
];
