//! The guards of local hand-off, in the order of the files.

use super::{Edit, edit};

const HOLD: &str = "src/engine/hold.rs";
const LOCAL_QUEUE: &str = "src/caller/local_queue.rs";
const LOCK: &str = "src/api/lock.rs";
const MEMORY_LOCK: &str = "src/protocol/rules/lock.rs";
const SHARED: &str = "src/engine/shared.rs";
const TENURE: &str = "src/caller/local_queue/tenure.rs";
const TURN: &str = "src/caller/local_queue/turn.rs";
const TURNS: &str = "src/caller/local_queue/turns.rs";

const LOCAL: &[&str] = &["--lib local_queue"];
const OF_A_HOLD: &[&str] = &["--lib hold::tests"];

#[rustfmt::skip]
pub(super) const EDITS: &[Edit] = &[
    edit("a tenure has no more turns than the lock says", TURNS, "next > self.last || ", "", LOCAL),
    edit("no turn has a fence that follows a loss of the lock", HOLD, "let may_reach_it = fence.get() < after_a_loss + 1000;", "let may_reach_it = false;", OF_A_HOLD),
    edit("a hold has all its turns though the server's clock was set back", HOLD, "let may_reach_it = fence.get() < after_a_loss + 1000;", "let may_reach_it = true;", OF_A_HOLD),
    edit("no turn begins long after the grant", TURNS, " || now >= self.until", "", LOCAL),
    edit("a hold that is over has no further turn", HOLD, "state.over.is_none() && ", "", OF_A_HOLD),
    edit("a hold in doubt has no further turn", HOLD, "!state.in_doubt && ", "", OF_A_HOLD),
    edit("a hold that is nearly over has no further turn", HOLD, " && !self.terms.is_late(left)", "", OF_A_HOLD),
    edit("a token ends with its turn", TURNS, "if self.fence.load(Ordering::Acquire) != fence.get() {", "if self.fence.load(Ordering::Acquire) == 0 {", LOCAL),
    edit("a watcher is told when its turn is passed on", TURNS, "        self.ended.notify_waiters();\n", "", LOCAL),
    edit("a release tells the last fence that its turns used", HOLD,
        "Some(last) if last > fence => ReleaseWhat::Turns { first: fence, last },", "Some(last) if last > fence => ReleaseWhat::Grant(fence),", LOCAL),
    edit("what is still held is named with the fence of its turn", SHARED, "hold.last_fence()", "hold.fence()", LOCAL),
    edit("in memory, too, a hold that ran out may have used all of its fences", MEMORY_LOCK,
        "self.owner.as_ref().map_or(0, |_| RESERVED)", "0", &["--lib rules::tests", "--lib memory::tests"]),
    edit("those that wait are callers", "src/api/lock/asking.rs", "        let _permit = lock.place().count_caller()?;\n", "", LOCAL),
    edit("a wait in the local queue ends at its bound", LOCAL_QUEUE, "() = self.place().bound(&tenure.hold, began, until) => {}", "() = self.place().bound(&tenure.hold, began, until), if false => {}", LOCAL).within("acquire"),
    edit("a try makes no call while the lock is wanted here", LOCAL_QUEUE,
        "if let Some(busy) = self.busy(&tenure) {", "if let Some(busy) = self.busy::<Turn>(&tenure).filter(|_| false) {", LOCAL),
    edit("a tenure that nobody waits for is given up", LOCAL_QUEUE,
        "let is_wanted = !self.waiters.is_empty() || self.present.is_some();", "let is_wanted = true;", LOCAL),
    edit("callers that give up while others have turns cost no call", LOCAL_QUEUE,
        "let is_wanted = !self.waiters.is_empty() || self.present.is_some();", "let is_wanted = !self.waiters.is_empty();", LOCAL),
    edit("a waiter that gives up leaves the local queue", LOCAL_QUEUE,
        "            self.queue.leave(self.number);\n", "", LOCAL),
    edit("a tenure that was ended on the server passes no turn on beside the next one", LOCAL_QUEUE, "let goes_on = is_present && ", "let goes_on = ", LOCAL),
    edit("a closed client passes no turn on", LOCAL_QUEUE, "let goes_on = is_present && !self.client().is_closed();", "let goes_on = is_present;", LOCAL),
    edit("an error about one grant is told to one waiter", LOCAL_QUEUE,
        "            Error::NotReplicated { .. } => state", "            Error::NotReplicated { .. } if false => state", LOCAL),
    edit("an error about the server is told to all that wait here", LOCAL_QUEUE,
        "            _ => std::mem::take(&mut state.waiters),", "            _ => BTreeMap::from_iter(state.waiters.pop_first()),", LOCAL),
    edit("a local queue in which nothing is left is discarded", LOCAL_QUEUE, "        self.all.discard(self);\n", "", LOCAL),
    edit("a tenure that is given up is withdrawn before the one that has ended is released", TENURE, "        self.call.give_up();\n", "", &["--test promises cancellation::"]),
    edit("a call that is given up before it begins never begins", TENURE, "if let Asking::NotYet = *asking {", "{", LOCAL),
    edit("a call that is given up while it is polled is dropped before the caller goes on", TENURE,
        "&mut *locked(&self.0), Asking::GivenUp);", "&mut *match self.0.try_lock() { Ok(asking) => asking, Err(_) => return }, Asking::GivenUp);", LOCAL),
    edit("the next tenure is asked for while others wait", TENURE, "let is_wanted = !state.waiters.is_empty();", "let is_wanted = false;", LOCAL),
    edit("waiters are told when the runtime of their tenure ends", TENURE, "            self.queue.fail(&Error::Closed);\n", "", LOCAL),
    edit("a turn that nobody reads, or whose guard is dropped, passes on", TURN, "        if self.held.is_some() {", "        if false {", LOCAL),
    edit("a lock with an owner has no local queue", LOCK, " && self.owner.is_none()", "", LOCAL),
    edit("a fixed lease has no local queue", LOCK, "terms.fixed || ", "", LOCAL),
    edit("a limited hold has no local queue", LOCK, " || terms.max_hold.is_some()", "", LOCAL),
];
