//! The guards of local hand-off, in the order of the files.

use super::{Edit, edit};

const HOLD: &str = "src/engine/hold.rs";
const LOCAL_QUEUE: &str = "src/caller/local_queue.rs";
const LOCK: &str = "src/api/handle.rs";
const MEMORY_LOCK: &str = "src/protocol/rules/lock.rs";
const HEARD: &str = "src/engine/heard.rs";
const RETENTION: &str = "src/caller/local_queue/retention.rs";
const SHARED: &str = "src/engine/shared.rs";
const TENURE: &str = "src/caller/local_queue/tenure.rs";
const TURN: &str = "src/caller/local_queue/turn.rs";
const TURNS: &str = "src/caller/local_queue/turns.rs";

const LOCAL: &[&str] = &["--lib local_queue"];
const OF_A_HOLD: &[&str] = &["--lib hold::tests"];

#[rustfmt::skip]
pub(super) const EDITS: &[Edit] = &[
    edit("a tenure has no more turns than the lock says", TURNS, "if is_last || now >= self.until {", "if now >= self.until {", LOCAL),
    edit("no turn has a fence that follows a loss of the lock", HOLD, "let may_reach_it = fence.get() < after_a_loss + 1000;", "let may_reach_it = false;", OF_A_HOLD),
    edit("a hold has all its turns though the server's clock was set back", HOLD, "let may_reach_it = fence.get() < after_a_loss + 1000;", "let may_reach_it = true;", OF_A_HOLD),
    edit("no turn begins long after the grant", TURNS, "is_last || now >= self.until", "is_last", LOCAL),
    edit("a tenure is retained only while it has turns", TURNS, "let has_turns = self.fence.load(Ordering::Acquire) < self.last_reserved.get();", "let has_turns = true;", LOCAL)
        .equal("no turn begins beyond what is reserved, since the hold of a retained tenure is given back then"),
    edit("a retention ends with its time", RETENTION, " && now < self.until", "", LOCAL)
        .equal("the task that ends it wakes at that time"),
    edit("a retention that was ended begins no turn", RETENTION, "!self.is_over.load(Ordering::Acquire) && ", "", LOCAL)
        .equal("the own request in the queue is told of too"),
    edit("no turn begins once the lock is wanted", RETENTION, " && self.listening.is_quiet(first)", "", LOCAL)
        .equal("the task that ends the retention runs before the next turn there"),
    edit("a tenure is given back as soon as it is wanted", RETENTION, "            () = heard.until_wanted(first) => {}\n", "            () = heard.until_wanted(first), if false => {}\n", LOCAL),
    edit("a tenure is given back when its time is over", RETENTION, "            () = clock.sleep_until(self.until) => {}\n", "", LOCAL),
    edit("the task that ends a retention ends with the tenure", RETENTION, "            _ = ended => {}\n", "            _ = ended, if false => {}\n", LOCAL)
        .equal("it ends with the time of the retention"),
    edit("a tenure is retained only if its client listens", HEARD, "let is_unbroken = state.is_subscribed && state.subscriptions == self.subscription;", "let is_unbroken = true;", &["--lib local_queue", "--test servers retention::"]),
    edit("a later hold that is wanted ends an earlier one", HEARD, "wanted < fence", "wanted != fence", LOCAL)
        .equal("two tenures of a client follow one another"),
    edit("only a grant that found the queue empty is retained", LOCAL_QUEUE, "Some((listening, retain_ms)) if held.is_alone() => {", "Some((listening, retain_ms)) => {", LOCAL),
    edit("a tenure that somebody waits for here is not retained", LOCAL_QUEUE, "let idle = state.end_retention();", "let idle = None::<(Held, Arc<Turns>)>;", LOCAL).within("join")
        .equal("the own request in the queue is told of too"),
    edit("a tenure that was ended on the server has no turn beside the next one", LOCAL_QUEUE, "let ended = state.end_retention();", "let ended = None;", LOCAL),
    edit("each caller has a place of its own unless tenures have several turns", LOCAL_QUEUE, "if tenure.turns == 1 {", "if false {", LOCAL),
    edit("the manager's retention is for no shorter lease", "src/engine/options.rs", "None => retain.min(lease / 3),", "None => check_retain(retain, lease).map(|()| retain)?,", &["--test promises settings::"]),
    edit("a closed client retains nothing", "src/api/manager.rs", "        self.queues.give_back();\n", "", LOCAL),
    edit("a lock that is retained is held by no guard", HOLD, "        state.is_idle = self.lasts(&state, now);\n        state.is_idle", "        self.lasts(&state, now)", LOCAL),
    edit("a hold that is over is not retained", TURNS, "self.is_retained(now) && self.hold().rest(now);", "self.is_retained(now) && (self.hold().rest(now) || true);", LOCAL),
    edit("a retained lock is not renewed, since that is never due", "src/engine/options.rs", "check_span(\"retain\", retain, MIN_RETAIN, lease / 3)", "check_span(\"retain\", retain, MIN_RETAIN, lease)", &["--test promises settings::"]),
    edit("a lock that cannot be retained is refused", "src/engine/options.rs", "if self.retain.is_some() && !can_be_retained {", "if false {", &["--test promises settings::"]),
    edit("a hold that is over has no further turn", HOLD, "state.over.is_none() && ", "", OF_A_HOLD),
    edit("a hold in doubt has no further turn", HOLD, "!state.in_doubt && ", "", OF_A_HOLD),
    edit("a hold that is nearly over has no further turn", HOLD, " && !self.terms.is_late(left)", "", OF_A_HOLD),
    edit("a token ends with its turn", TURNS, "let is_present = self.fence.load(Ordering::Acquire) == fence.get();", "let is_present = true;", LOCAL),
    edit("a watcher is told when its turn is passed on", TURNS, "        self.ended.notify_waiters();\n", "", LOCAL).within("begin_next"),
    edit("a token ends with a turn after which the lock is retained", TURNS, " || self.rested.load(Ordering::Acquire) == fence.get()", "", LOCAL),
    edit("a watcher is told when the lock is retained after its turn", TURNS, "            self.ended.notify_waiters();\n", "", LOCAL).within("rest"),
    edit("other tasks run beside retained turns", LOCAL_QUEUE, "now.since(state.yielded) >= YIELD_EVERY;", "false;", LOCAL),
    edit("a release tells the last fence that its turns used", HOLD,
        "Some(last) if last > fence => ReleaseWhat::Turns { first: fence, last },", "Some(last) if last > fence => ReleaseWhat::Grant(fence),", LOCAL),
    edit("what is still held is named with the fence of its turn", SHARED, "hold.last_fence()", "hold.fence()", LOCAL),
    edit("in memory, too, a hold that ran out may have used all of its fences", MEMORY_LOCK,
        "self.owner.as_ref().map_or(0, |_| RESERVED)", "0", &["--lib rules::tests", "--lib memory::tests"]),
    edit("those that wait are callers", "src/api/handle/asking.rs", "        let _permit = lock.place().count_caller()?;\n", "", LOCAL),
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
