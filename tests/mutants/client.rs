//! The guards of the client, in the order of the files.

use super::{Edit, edit};

const ACQUIRE: &str = "src/acquire.rs";
const ANCHORS: &str = "src/anchors.rs";
const AGENDA: &str = "src/agenda.rs";
const CLIENT: &str = "src/client.rs";
const GUARD: &str = "src/guard.rs";
const HELD: &str = "src/held.rs";
const HOLD: &str = "src/hold.rs";
const ATTENDANT: &str = "src/attendant.rs";
const KEEPER: &str = "src/keeper.rs";
const LEASE: &str = "src/lease.rs";
const LOCK: &str = "src/lock.rs";
const REPLICATION: &str = "src/replication.rs";
const ROOM: &str = "src/room.rs";
const ROOMS: &str = "src/rooms.rs";
const SCRIPT: &str = "src/script.rs";

/// The promises, in memory and with time paused.
const PROMISES: &str = "--test waiting --test fairness --test lease --test cancellation --test exclusion --test reentrance in_memory";
const ROOM_TESTS: &str = "--lib room::";
const ANCHOR_TESTS: &[&str] = &["--lib anchors"];
const HOLD_TESTS: &[&str] = &["--lib hold::"];
const KEEPER_TESTS: &[&str] = &["--lib keeper::"];
const AGENDA_TESTS: &[&str] = &["--lib agenda"];
const IN_MEMORY: &[&str] = &[PROMISES];
const UNITS: &[&str] = &["--lib lease", PROMISES];
const REPLIES: &[&str] = &["--test faults replies::"];
const WAITERS: &[&str] = &["--test faults waiters::"];
const NETWORK: &[&str] = &["--test faults network::"];
const MIGRATION: &[&str] = &["--test cluster migration::"];
const READERS: &[&str] = &["--lib fuzzing"];

#[rustfmt::skip]
pub(super) const EDITS: &[Edit] = &[
    edit("a try that is dropped leaves nothing", ACQUIRE, "if !self.done {", "if false {", &["--test cancellation on_a_server"]),
    edit("a wait that ends leaves nothing", ACQUIRE,
        "        keeper.out(&self.room.keys, &self.request, self.trail.was_sent(), &self.trail);\n", "", IN_MEMORY),
    edit("who was granted too late keeps its ticket", ACQUIRE, "ticket = place;", "let _ = place; ticket = None;", WAITERS),
    edit("a grant that comes with the bound counts", ACQUIRE,
        "Verdict::Done(done) => return confirmed(client, done?).await,\n                    Verdict::TooLate(_) => None,",
        "Verdict::Done(_) | Verdict::TooLate(_) => None,", IN_MEMORY)
        .equal("only a grant by another thread comes between the two looks of one poll; it is released then, and the call times out"),

    edit("a busy lock does not put its questions off", AGENDA,
        "Some(self.question_due.map_or(due, |before| due.min(before)))", "Some(due)", AGENDA_TESTS),
    edit("an earlier question wakes the attendant", AGENDA,
        "self.asleep_until.is_some_and(|until| due < until)", "false", AGENDA_TESTS),
    edit("a room asks again once it has subscribed", AGENDA, "        self.question_due = Some(now);\n", "        let _ = now;\n", AGENDA_TESTS),
    edit("a room asks when nobody tells it anything", AGENDA,
        "*self.question_due.get_or_insert(now.after(interval))", "*self.question_due.get_or_insert(now.after(interval * 1000))", AGENDA_TESTS),

    edit("a room asks while its subscription is not confirmed", ATTENDANT,
        "                    () = client.clock.sleep_until(until) => {}", "                    () = client.clock.sleep_until(until), if !matches!(subscription, Subscription::Asked(_)) => {}", NETWORK),
    edit("a subscription that the server does not see any more is made anew", ATTENDANT,
        "if let (Ok(true), Subscription::Up)", "if let (Err(_), Subscription::Up)", MIGRATION),

    edit("an unanswered call may still run", CLIENT,
        "if !matches!(answer, Err(Failure::Unknown(_) | Failure::Closed)) {", "{ let _ = answer;", REPLIES),
    edit("another server's clock is not taken for the last one's", CLIENT, ".anchors.clear();", ".anchors.local(ServerTime::default());",
        &["--lib client", "--test faults forgetful::"]),
    edit("no deadline of one server is reckoned by the clock of another", CLIENT,
        "clocks.known.get(&server)?.anchors.local(deadline, now, span)", "clocks.known.values().next()?.anchors.local(deadline, now, span)",
        &["--lib client"]),

    edit("a guard that is lost is not renewed back to life", GUARD,
        "        self.check()?;\n        self.held\n            .keeper()", "        self.held\n            .keeper()", KEEPER_TESTS),

    edit("a hold that nobody reads releases itself", HELD,
        "        self.keeper.release_later(Arc::clone(&self.hold));\n", "", IN_MEMORY),
    edit("nothing is renewed after its release", HELD, "        self.keeper.leave(&self.hold);\n", "",
        &[PROMISES, "--test lease on_a_server"]),
    edit("a closed client stays for a release that is dropped", HELD,
        "        let _stay = self.keeper.stay();\n        let mut held = self;", "        let mut held = self;", &["--test faults unwilling::"]),
    edit("a release that was given up is left to the keeper", HELD,
        "held.settled = !matches!(released, Err(Error::Unavailable(_)));", "held.settled = true;", &["--test faults unwilling::"]),
    edit("a late release tells whether somebody else had the lock since", HELD,
        "            (Some(LostReason::Expired), Err(Error::Lost(lost))) => Err(lost.into()),\n", "", IN_MEMORY),

    edit("a guard looks at the clock", HOLD, "None if self.clock.now() >= state.deadline =>", "None if false =>", IN_MEMORY),
    edit("lost resolves at the deadline by itself", HOLD,
        "() = self.clock.sleep_until(self.deadline()) => {}", "() = std::future::pending() => {}", HOLD_TESTS),
    edit("a lease is over when it says so", HOLD, "state.over.is_some() || remaining.is_zero()", "state.over.is_some()", IN_MEMORY),
    edit("a renewal never shortens the local deadline", HOLD, "state.deadline.max(deadline)", "deadline", HOLD_TESTS),
    edit("what is heard after its deadline does not bring a hold back", HOLD, "if self.clock.now() >= state.deadline {\n            return;", "if false {\n            return;", HOLD_TESTS),
    edit("a hold at its cap is not renewed", HOLD, "if !self.is_short_of_cap(&state) {\n            return", "if false {\n            return", HOLD_TESTS),
    edit("a cap counts from the grant", HOLD, "terms.cap(grant.deadline.before(granted_for))", "terms.cap(grant.deadline)", IN_MEMORY),
    edit("a pushed grant was given for a claim window", HOLD, "let granted_for = if grant.pushed {", "let granted_for = if false {", IN_MEMORY),
    edit("a renewal that fails leaves doubt until one succeeds", HOLD, "        state.in_doubt = false;\n", "", NETWORK),
    edit("a hold that was ended stays ended as it was", HOLD, "before.or(Some(reason))", "Some(reason)", HOLD_TESTS),
    edit("a lease that ran out before its maximum hold says expired", HOLD,
        "!self.is_short_of_cap(state) && self.terms.ends_by_max_hold()", "self.terms.ends_by_max_hold()", HOLD_TESTS),
    edit("who watches a lease is told of its release", HOLD, "        self.ended.notify_waiters();\n", "", IN_MEMORY),

    edit("no word is sent for a request that all was answered of", KEEPER,
        "if at_once || trail.unanswered().is_some() {", "if at_once {", REPLIES),
    edit("a hold that ended meanwhile is not watched", KEEPER, "        if hold.is_over() {\n            return;\n        }\n", "",
        &[PROMISES, "--test lease on_a_server"]),
    edit("a hold whose time is over is lost", KEEPER, "if self.client.now() >= deadline {", "if false {", IN_MEMORY),
    edit("what is lost here does not go on at the server", KEEPER, "if hold.may_be_prolonged() {", "if false {", KEEPER_TESTS),
    edit("a renewal that finds the lock taken says lost", KEEPER,
        "Renewed::Taken => self.lose(hold, LostReason::Taken),", "Renewed::Taken => {}", IN_MEMORY),
    edit("a renewal that finds the lease over says lost", KEEPER,
        "Renewed::Expired => self.lose(hold, hold.reason_gone()),", "Renewed::Expired => {}", KEEPER_TESTS),
    edit("a renewal that fails leaves doubt", KEEPER, "                hold.set_in_doubt();\n", "", NETWORK),
    edit("a lease lost costs the client its record", KEEPER, "            self.client.note_loss();\n", "", &[ROOM_TESTS]),
    edit("an out after an unanswered call comes after its time", KEEPER, "Some(at) if at <= not_after => now = at,", "Some(at) if false => now = at,", REPLIES)
        .equal("it sleeps until then by an estimate that is never early while the clocks agree"),
    edit("what no out has withdrawn is withdrawn after its time", KEEPER,
        "                    self.out_after(&keys, &request, not_after).await;\n", "                    let _ = not_after;\n", REPLIES),
    edit("an id with an unanswered call is withdrawn after its release", KEEPER,
        "        self.out(&hold.keys, &hold.request, was_over, &hold.trail);\n", "        let _ = was_over;\n", REPLIES),
    edit("a hold that was over before its release is withdrawn", KEEPER,
        "matches!(released, Err(Error::Lost(_)))", "false", REPLIES),
    edit("a repeated release that finds nothing was done by the first", KEEPER,
        "unanswered && answer.at.received < hold.deadline()", "false", REPLIES),
    edit("only an unanswered release can have been done before", KEEPER,
        "unanswered && answer.at.received < hold.deadline()", "answer.at.received < hold.deadline()", IN_MEMORY),
    edit("a release that was cut short is repeated", KEEPER,
        "                    if answer.reply.more {\n                        continue;\n                    }\n", "", &[ROOM_TESTS]),
    edit("errands are done before a closed client ends", KEEPER,
        "self.client.is_closed() && self.pending() == 0", "self.client.is_closed()", IN_MEMORY),
    edit("holds are kept after their client is closed", KEEPER,
        "next.is_none() && self.client.is_closed()", "self.client.is_closed()", IN_MEMORY),
    edit("a closed client ends once its last release is confirmed", KEEPER,
        "            self.idle.notify_waiters();\n            self.wake_if_closing();\n", "            self.idle.notify_waiters();\n", KEEPER_TESTS),
    edit("close returns as soon as all is confirmed", KEEPER,
        "            self.idle.notify_waiters();\n            self.wake_if_closing();\n", "            self.wake_if_closing();\n", IN_MEMORY),
    edit("a withdrawal that the server refuses is not repeated for ever", KEEPER,
        "Err(Failure::Closed | Failure::Refused(_)) => return None,\n                Err(Failure::Unknown(_) | Failure::NotExecuted(_)) => backoff.pause().await,",
        "Err(Failure::Closed) => return None,\n                Err(_) => backoff.pause().await,", KEEPER_TESTS),
    edit("a withdrawal that was cut short is repeated", KEEPER, "                Ok(answer) if answer.reply.more => {}\n", "", KEEPER_TESTS),
    edit("a hold that was released is not counted as lost", KEEPER,
        "if hold.end(reason).is_none() {", "{\n            let _ = hold.end(reason);", KEEPER_TESTS),
    edit("a hold that is being renewed keeps its place in the schedule", KEEPER,
        "        schedule\n            .looks\n            .insert((deadline, hold.request.clone()), Arc::clone(&hold));\n", "", KEEPER_TESTS),
    edit("renewals that are due at one time go out in batches", KEEPER,
        "next = next.map(|next| next.max(batch_over));", "let _ = batch_over;", &["--test lease on_a_real_server"]),
    edit("a release is not repeated for ever", KEEPER, " || self.client.now() >= give_up", "", &["--test faults forgetful::"]),
    edit("a release that is refused is told at once", KEEPER,
        "if matches!(failure, Failure::Refused(_) | Failure::Closed) || self.client.now()", "if matches!(failure, Failure::Closed) || self.client.now()",
        &["--test faults refusals::"]),

    edit("a deadline counts from the sending", LEASE,
        "self.sent.after(span.saturating_sub(drift(span) + MARGIN))", "self.received.after(span.saturating_sub(drift(span) + MARGIN))", UNITS),
    edit("drift is taken off", LEASE, "span.saturating_sub(drift(span) + MARGIN)", "span.saturating_sub(MARGIN)", UNITS),
    edit("a margin is taken off", LEASE, "span.saturating_sub(drift(span) + MARGIN)", "span.saturating_sub(drift(span))", UNITS),
    edit("anchors of before a clock was set are void", ANCHORS,
        "anchor.is_some_and(|a| a.offset_at_least() > at_most)", "anchor.is_some_and(|a| a.offset_at_least() > i128::MAX - at_most.abs())", ANCHOR_TESTS),
    edit("the tightest anchor counts", ANCHORS,
        "self.anchors().map(|anchor| anchor.local(deadline)).max()", "self.anchors().map(|anchor| anchor.local(deadline)).min()", ANCHOR_TESTS),
    edit("a push that may be by the clock of before is only a reason to ask", ANCHORS,
        "if self.set_back_until.is_some_and(|until| now < until.after(span)) {", "if false {", ANCHOR_TESTS),
    edit("a clock that was set back is noticed over a reconnect", ANCHORS,
        "(self.recent, self.older) = (None, None);", "*self = Anchors::default();", ANCHOR_TESTS),
    edit("a fixed lease is never extended", LEASE, "let longest = if self.fixed {", "let longest = if false {", UNITS),
    edit("a lease is no longer than the maximum hold", LEASE,
        "self.max_hold.map_or(self.length, |max| max.min(self.length))", "self.length", UNITS),
    edit("a hold is renewed when a third is used up", LEASE, "now.after(deadline.since(now) / 3)\n}\n\n/// When to repeat",
        "now.after(deadline.since(now) * 2)\n}\n\n/// When to repeat", UNITS),
    edit("a pushed grant lasts no longer than its lease", LEASE, "self.claim_window.min(self.lease())", "self.claim_window", UNITS),
    edit("a fixed lease ends with its maximum hold too", LEASE, "            max_hold.min(self.length)\n", "            self.length\n", UNITS),

    edit("a forced release whose reply was lost is told as done", LOCK,
        "let done_before = unknown && answer.reply.outcome == ReleaseOutcome::Taken;", "let done_before = false && unknown;", &["--lib lock::"]),
    edit("a forced release that was cut short is repeated", LOCK,
        "                if !answer.reply.more {\n                    return Ok(released);\n                }\n", "                if true {\n                    return Ok(released);\n                }\n",
        &["--lib lock::"]),

    edit("a grant that is not confirmed is given back before that is told", REPLICATION, "    let _ = held.release().await;\n", "    drop(held);\n",
        &["--test replicas"]),
    edit("the server's word on who has a grant is waited for", REPLICATION,
        "tokio::time::timeout(left * 3 / 2, asked)", "tokio::time::timeout(left, asked)", &["--test replicas"]),

    edit("a room whose client lost a lease opens its record again", ROOM, "state.record == Some(losses)", "state.record.is_some()",
        &[ROOM_TESTS, PROMISES, "--test faults holders::", "--test faults waiters::"]),
    edit("a room that was empty opens its record again", ROOM, "            state.record = None;\n        }\n    }\n\n    /// Whether nothing", "        }\n    }\n\n    /// Whether nothing",
        &[ROOM_TESTS]),
    edit("a room asks for the one whose turn comes first", ROOM, "(waiter.ticket.is_none(), waiter.ticket, **number)", "(waiter.ticket.is_none(), **number)",
        &[ROOM_TESTS]),
    edit("who found the lock free after a missed turn has the others ask", ROOM,
        "let was_missed = about.again && !grant.pushed;", "let was_missed = false;", &[ROOM_TESTS, "--test fairness", "--test faults connections::"]),
    edit("who finds itself removed has the others ask", ROOM,
        "let was_lost = contended.enqueued && about.again && state.waiters.len() > mine;", "let was_lost = state.waiters.len() < mine;",
        &["--test fairness", "--test faults connections::", "--test faults forgetful::"]),
    edit("a room without a record asks for all", ROOM,
        "                self.client.note_loss();\n                self.return_all();", "                self.client.note_loss();",
        &[ROOM_TESTS, "--test faults waiters::", "--test faults connections::", "--test faults forgetful::"]),
    edit("a room asks when the lock can next be free", ROOM, "        let due = free_at\n", "        let due = free_at.after(Duration::from_secs(3600))\n",
        &["--lib simulation"]),
    edit("what is read after the record went tells nothing of it", ROOM,
        "                self.client.note_loss();\n                self.return_all();", "                self.return_all();", &[ROOM_TESTS]),
    edit("a room that everybody has left needs no attendant", ROOM,
        "!state.waiters.is_empty() && !std::mem::replace(", "!std::mem::replace(", &[ROOM_TESTS]),
    edit("an interval is short enough to wake who sleeps in an empty room", ROOM,
        "            .min(at.received.after(self.client.options.question_interval()))\n", "", &[ROOM_TESTS]),
    edit("a question to a holder is asked once more for another", ROOM, "if was_missed || about.record.is_some() {", "if was_missed {", &[ROOM_TESTS]),
    edit("a question that came too late has not prolonged the record", ROOM,
        "                if about.record.is_some() {\n                    self.forget_record();", "                if false {\n                    self.forget_record();", &[ROOM_TESTS]),
    edit("a grant that nobody heard of is told by the next reply", ROOM,
        "if let Some(grant) = contended.sibling {", "if let Some(grant) = contended.sibling.filter(|_| false) {", &[ROOM_TESTS]),
    edit("a push of a later version makes all ask", ROOM, "None => self.ask_all(),", "None => {}", &["--test security"]),
    edit("a pushed grant is believed for a claim window", ROOM, "deadline.filter(|deadline| *deadline <= latest)", "deadline",
        &["--test security"]),
    edit("a record that is gone is opened anew", ROOM,
        "        self.forget_record();\n        self.ask_all();", "        self.ask_all();", &[ROOM_TESTS]),
    edit("a grant that is nearly over is not used", ROOM,
        "if deadline.since(now) < waiter.terms.grant() / 4 {", "if false {", WAITERS),
    edit("a grant that is not used is withdrawn", ROOM,
        "            self.keeper.out(&self.keys, &grant.request, true, &waiter.trail);\n", "", &[ROOM_TESTS]),
    edit("an owner's other requests need not wait for their turn", ROOM, "if !grant.request.is_owner() {", "if false {", IN_MEMORY),
    edit("who waits when a client is closed leaves nothing", ROOM,
        "            self.keeper.out(\n                &self.keys,\n                &waiter.request,\n                waiter.trail.was_sent(),\n                &waiter.trail,\n            );\n", "", IN_MEMORY),

    edit("no more may wait than the bound", ROOMS, ">= max_waiters {", "> max_waiters {", IN_MEMORY),
    edit("who stops waiting makes room for another", ROOMS,
        "impl Drop for Permit {\n    fn drop(&mut self) {\n        self.0.waiting.fetch_sub(1", "impl Drop for Permit {\n    fn drop(&mut self) {\n        self.0.waiting.fetch_sub(0", IN_MEMORY),
    edit("a room that somebody is in is not removed", ROOMS, "let leaves = room.is_empty();", "let leaves = true;", &[ROOM_TESTS]),
    edit("all who wait ask again after a reconnect", ROOMS, "            room.return_all();\n", "            let _ = room;\n", &[ROOM_TESTS, "--test faults connections::"]),
    edit("no answer to a call of before a reconnect tells of the record", ROOMS, "        self.client.note_loss();\n", "", &[ROOM_TESTS]),

    edit("a reply to another request is not accepted", SCRIPT, "if words.text()? != request {", "if words.text()?.is_empty() {", READERS),
    edit("a fence is from 1 to 2^63 - 1", LEASE, "        i64::try_from(number).ok()?;\n", "", &["--test bounds", "--lib fuzzing"]),
    edit("a push of a later version is not understood", "src/store.rs", "if parts.next()? != Self::VERSION {", "if parts.next()?.is_empty() {", READERS),
    edit("a request id is cut where its parts are", "src/key.rs", "text.is_ascii()\n            && ", "", READERS),
    edit("no prefix ends like any kind of key", "src/key.rs",
        "[\"queue\", \"clients\", \"unlock\", \"spin\"]", "[\"queue\", \"clients\", \"unlock\", \"queue\"]", &["--test settings"]),
];
