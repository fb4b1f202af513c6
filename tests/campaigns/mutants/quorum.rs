//! The guards of a lock in a quorum, in the order of the files.

use super::{Edit, edit};

const ANSWERS: &str = "src/quorum/answers.rs";
const BALLOT: &str = "src/quorum/ballot.rs";
const FLOOR: &str = "src/engine/floor.rs";
const HOLD: &str = "src/engine/hold.rs";
const LOCK: &str = "src/api/handle.rs";
const OPERATOR: &str = "src/quorum/operator.rs";
const QUORUM: &str = "src/quorum/mod.rs";
const SETTINGS: &str = "src/api/manager/quorum.rs";
const VOTES: &str = "src/quorum/votes.rs";

const IN_MEMORY: &[&str] = &["--lib quorum::tests"];
const WORLDS: &[&str] = &["--lib quorum::tests", "--test promises in_a_quorum"];
const REACHES: &[&str] = &["--lib quorum::tests::reach"];
const TURNS: &[&str] = &["--lib quorum::tests::turns"];
const FLOORS: &[&str] = &["--lib floor::tests"];
const FAULTS: &[&str] = &["--lib quorum::tests", "--test servers quorum::faults"];
const SEEN: &[&str] = &["--lib quorum::tests", "--test servers quorum::seen"];
const REFUSED: &[&str] = &["--test servers quorum::settings"];

#[rustfmt::skip]
pub(super) const EDITS: &[Edit] = &[
    edit("a caller that never had a ballot is told when the lock can be free", QUORUM, "left[self.majority() - 1].max", "left[0].min(Duration::ZERO).max", IN_MEMORY),
    edit("a caller has its turn by its arrival", BALLOT, "arrival.ticket.unwrap_or_else(|| quorum.next_ticket())", "quorum.next_ticket()", IN_MEMORY),

    edit("a call fails once the servers that are left are no majority", BALLOT, "if servers - errors.len() - free_in.len() >= majority {", "if true {", IN_MEMORY),
    edit("a server that fails is asked again after a pause", BALLOT, "self.ask(server, pause);", "let _ = pause;", WORLDS).within("failed"),
    edit("a wait that is over at all servers is a time-out", BALLOT, "free_in.get(free_in.len().min(majority).wrapping_sub(1))", "free_in.get(100)", IN_MEMORY),
    edit("a vote is given up for an earlier request while there are too few", BALLOT, "Ok(true) if self.votes.are_too_few() => {", "Ok(true) if false => {", IN_MEMORY),
    edit("a vote that is lost before there is a majority is asked for again", BALLOT, "Event::Lost(_) if !self.is_hold() => self.begin_again(server),", "Event::Lost(_) if !self.is_hold() => {}", WORLDS),
    edit("votes under different fences are raised to the largest", BALLOT, "largest.into_iter().for_each(|fence| self.raise_to(fence));", "let _ = largest;", IN_MEMORY),
    edit("a vote lasts for a claim window until there is a majority", BALLOT, "length: terms.claim_window(),", "length: terms.length,", &["--lib quorum::tests", "--test promises in_a_quorum_in_memory"]).within("terms_of_votes"),
    edit("a request is released only once the next one has its place", BALLOT, "self.seats[server].leaving = self.votes.take(server);", "drop(self.votes.take(server));", WORLDS)
        .equal("the two calls keep their order on one connection; the model shows what happens if they do not"),
    edit("a vote is given up where the server refuses a look", BALLOT, "Err(refused @ Failure::Refused(_)) => return Err(refused.into()),\n                        Err(_)", "Err(_)", FAULTS),

    edit("a hold asks for what it lacks before all who wait", BALLOT, "const BEFORE_ALL: Ticket = Ticket(1);", "const BEFORE_ALL: Ticket = Ticket(u64::MAX >> 12);", IN_MEMORY),
    edit("a hold asks for the votes that it lacks at its first renewal", BALLOT, "        for server in self.votes.missing() {\n            self.ask(server, Duration::ZERO);\n        }\n", "", IN_MEMORY),
    edit("a vote that comes late is raised to the fence of the hold", BALLOT, "                self.raise_to(self.floor.own());\n", "", IN_MEMORY),
    edit("a hold asks again for a vote that it lost", BALLOT, "if self.votes.missing().contains(&server) {", "if false {", WORLDS),
    edit("a hold asks for the votes that it lacks without a bound", BALLOT, "=> (None, BEFORE_ALL),", "=> (Some(Instant::now() + FIRST_LOOK), BEFORE_ALL),", IN_MEMORY),
    edit("the votes of a hold get their whole lease", BALLOT, "decided, self.params.terms.lease()", "decided, self.params.terms.claim_window()", WORLDS),
    edit("what is left of a lost hold is released", VOTES, "drop(self.end().2);", "std::mem::forget(self.end().2);", WORLDS).within("give_up"),
    edit("a renewal finds a vote whose fence was raised", "src/engine/background/renewer.rs", "!hold.try_raised_fence(fence)", "fence.get() > 0", IN_MEMORY),
    edit("a release finds a vote whose fence was raised", "src/engine/background.rs", "is_taken && !released && hold.try_raised_fence(fence)", "is_taken && fence.get() == 0", IN_MEMORY),

    edit("a vote that a server took away is not asked for again", VOTES, "*why != Some(HoldEnd::Taken)", "why.is_none_or(|_| true)", SEEN),
    edit("a vote whose lease is over does not count", VOTES, "self.hold().filter(|hold| hold.check().is_ok())", "self.hold()", IN_MEMORY),
    edit("a hold is a majority under one fence", VOTES, "fences.iter().filter(|other| *other == fence).count() >= self.quorum.majority()", "fence.get() > 0 && fences.len() >= self.quorum.majority()", IN_MEMORY),
    edit("a hold lasts as long as the leases of a majority", VOTES, "deadlines.len().checked_sub(self.quorum.majority())", "deadlines.len().checked_sub(1)", IN_MEMORY),
    edit("a hold that was taken away while a server was down counts as taken", VOTES, "if live + lost_by(HoldEnd::Taken) >= self.quorum.majority() {", "if lost_by(HoldEnd::Taken) >= self.quorum.majority() {", SEEN),
    edit("a hold in doubt says so", VOTES, "sure >= self.quorum.majority()", "sure > 0", WORLDS).within("is_sure"),
    edit("holds under different fences are released above the largest", VOTES, "now.max(largest.next())", "now", IN_MEMORY),
    edit("a vote that comes late is released with the floor of the others", "src/engine/background/withdrawals.rs", "waiting.withdrawal.calls.next_floor(|| now)", "waiting.withdrawal.calls.floor(|| now)", IN_MEMORY),
    edit("releases for which nobody waits run to their end", VOTES, "            .spawn(async move { while releases.next().await.is_some() {} });", "            .spawn(async move { drop(releases) });", SEEN),
    edit("a release of a lost hold says so", VOTES, "before?;\n        match reason", "match reason", WORLDS).within("release_votes"),
    edit("a release of what was taken away says so", VOTES, "Some(reason) if held - lost < majority => Err(reason.into()),", "Some(reason) if held < lost => Err(reason.into()),", WORLDS),
    edit("a release waits for no server that makes no difference", VOTES, "if is_free(answers.so_far().len() + lost) {", "if false {", IN_MEMORY),
    edit("a vote that was lost is not waited for", VOTES, "if is_free(answers.so_far().len() + lost) {", "if is_free(answers.so_far().len()) {", IN_MEMORY),

    edit("nothing is kept of a hold that has ended", VOTES, "let left = locked(&self.votes.quorum.held).remove(&self.ballot);", "let left = ();", WORLDS).within("leave"),
    edit("a vote lasts for as long as its hold may", HOLD, "            (state.cap, state.local_cap) = (cap, local_cap);\n", "", IN_MEMORY),
    edit("a vote at its cap is renewed again if its hold begins much later", HOLD, "if is_renewed || is_much_later {", "if is_renewed {", IN_MEMORY),
    edit("a vote that is renewed again is looked at in time", BALLOT, "                self.quorum.servers[server].background().watch(&hold);\n", "", IN_MEMORY),
    edit("a vote lasts for no longer than its hold may", HOLD, "        state.deadline = state.deadline.min(local_cap);\n", "", &["--lib hold::tests"]),
    edit("a renewal for a claim window does not stand for the whole lease", HOLD, "state.lengthened &= lease < state.lease;", "state.lengthened = false;", IN_MEMORY),
    edit("no margin counts that is left of a vote before its hold", HOLD, "state.claimed && !state.lengthened", "state.claimed", IN_MEMORY),

    edit("a lock of a quorum that was handed over is as old as the release", VOTES, "let now = self.quorum.clocks.floor().unwrap_or(largest);", "let now = largest;", &["--test promises operator::in_a_quorum"]),
    edit("a try ends when no majority can be reached", BALLOT, "while !tally.is_over(self.votes.count()) {", "while tally.outstanding <= tally.servers {", IN_MEMORY),
    edit("a try that few servers have answered does not call the lock busy", ANSWERS, "let is_known = self.is_answered() || self.is_majority_away();", "let is_known = true;", &["--lib quorum::tests::calls"]),
    edit("a server that was not waited for has not answered", ANSWERS, "self.servers - self.outstanding - self.errors.len()", "self.servers - self.errors.len()", IN_MEMORY),
    edit("a server that was not waited for may be free", ANSWERS, "let free = votes + self.outstanding;", "let free = votes;", IN_MEMORY),
    edit("a try does not wait for a server that hangs if a majority have answered", BALLOT, "until.filter(|_| self.votes.are_too_few())", "until.filter(|_| false)", IN_MEMORY),
    edit("a server that may be away is not free", BALLOT, "                tally.outstanding = 0;\n", "", IN_MEMORY),
    edit("a server that has never answered has no clock", FLOOR, ".filter_map(|clocks| clocks.latest_us(ServerId::default()))", ".map(|clocks| 1000 * clocks.server_time(ServerId::default()).unwrap_or_default().ms())", FLOORS),
    edit("the order of arrival begins again when the clocks are set back", "src/quorum/mod.rs", "Some(ahead) if ahead < MOST_AHEAD_US => last + 1,", "Some(_) => last + 1,", IN_MEMORY),
    edit("a late call of a ballot has a fresh floor", FLOOR, "floor.max(self.own)", "floor.min(self.own)", IN_MEMORY),
    edit("what ends a ballot without a hold has a fresh floor", FLOOR, "            (None, None) => self.at(now),", "            (None, None) => self.own,", FLOORS),
    edit("the first calls of a ballot have one floor", FLOOR, "if now > *fresh_until", "if now.after(FRESH) > *fresh_until", FLOORS),
    edit("a call for the vote that a hold lacks has the fence of the hold", BALLOT, "        self.floor.begin_hold(fence);\n", "", IN_MEMORY),
    edit("a try without a majority of answers fails", ANSWERS, "if self.is_majority_away() {", "if false {", IN_MEMORY).within("verdict"),

    edit("a lock that is held on too few servers has no holder", OPERATOR, "ballots.find(|(_, told)| told.len() >= self.majority())?", "ballots.next()?", IN_MEMORY),
    edit("a forced release ends each vote under its own fence", OPERATOR, "told.map_or(fence, |(_, fence)| *fence)", "told.map_or(fence, |(_, own)| fence.min(*own))", IN_MEMORY),
    edit("a hold is as old as its fence, by the clock that fences follow", OPERATOR, "held_for(fence, self.clocks.latest_time())", "held_for(fence, told[0].now)", SEEN),
    edit("a wait is as long as its ticket is old, by the clocks that tickets follow", OPERATOR, "let now = self.clocks.median_time();", "let now = told[0].now;", SEEN),
    edit("a forced release reaches servers that have not told", OPERATOR, "let mut forced: FuturesUnordered<_> = (self.servers.iter().enumerate())", "let mut forced: FuturesUnordered<_> = (self.servers.iter().enumerate().filter(|(server, _)| holder.fences.iter().any(|(told, _)| told == server)))", IN_MEMORY),
    edit("a forced release does not wait for a server that hangs", OPERATOR, "if left == 0 {", "if false {", IN_MEMORY),
    edit("a wait whose votes disagree ends at its bound", BALLOT, "timeout_at(until, looked).await", "timeout_at(until + 3600 * FIRST_LOOK, looked).await", IN_MEMORY),
    edit("a forced release names the holder that it ends", OPERATOR, ".filter(|seen| seen.holder.fence == fence)", ".filter(|_| true)", SEEN),
    edit("the requests of a ballot belong together", BALLOT, "request / REQUESTS_OF_A_BALLOT", "request * 0", IN_MEMORY).within("ballot_of"),

    edit("a call is refused only if too few servers are left for a majority", ANSWERS, "refusals.clone().nth(servers - wanted)", "refusals.clone().next()", &["--lib quorum::tests", "--test servers quorum::"]),

    edit("a clock that is far ahead does not count for fences", FLOOR, "*time <= median + FAR_AHEAD_US", "*time < u64::MAX", FAULTS),
    edit("a client closes once a majority have confirmed its releases", QUORUM, "drained.take(self.majority())", "drained.take(self.servers.len())", &["--test servers quorum::restarts::closing"]),
    edit("a try is sent after what a dropped guard withdraws", QUORUM, "        yield_now().await;\n", "", IN_MEMORY),
    edit("a hold that is lost is not counted as held", QUORUM, ".filter(|votes| votes.end_if_over().is_ok())", ".filter(|_| true)", WORLDS),
    edit("a release tells each server the last fence of the turns", VOTES, "votes.iter().for_each(|vote| vote.hold().end_turns(last));", "let _ = last;", TURNS).within("end"),
    edit("a caller that reaches no majority leaves the servers that it reaches", BALLOT, "(false, true) => self.leave(server),", "(false, true) => {}", REACHES).within("leave_or_come_back"),
    edit("a caller that reaches no majority has no vote", BALLOT, "drop(self.votes.take(server));\n        let seat", "let seat", REACHES).within("leave"),
    edit("a caller that reaches no majority has no place in a queue", BALLOT, "attempt.abort();", "seat.attempt = Some(attempt);", REACHES).within("leave"),
    edit("a caller that reaches a majority comes back", BALLOT, "(true, false) => self.come_back(server),", "(true, false) => {}", REACHES).within("leave_or_come_back"),
    edit("a server whose calls fail is not reached", BALLOT, " && !waitlists.is_failing(&self.params.channel)", " && (true || waitlists.is_failing(&self.params.channel))", REACHES),
    edit("a server that was left counts as answering", BALLOT, "SeatState::Outstanding => outstanding.push(server),\n                SeatState::Placed | SeatState::Left => {}", "SeatState::Outstanding | SeatState::Left => outstanding.push(server),\n                SeatState::Placed => {}", REACHES),
    edit("a caller with too few votes looks often enough for a client that is cut off again and again", BALLOT, ".min(LONGEST_LOOK_PAUSE)", "", REACHES),
    edit("a server that refuses is not reached", BALLOT, "!has_failed && ", "(true || has_failed) && ", REACHES),
    edit("the next holder has a larger fence than all turns, at all servers", VOTES, "fences.chain(last).max()", "fences.max()", TURNS),
    edit("a vote that is lost while the hold lasts may have used all fences", HOLD, "Some(VoteState::Joined) => Some(fence.plus(RESERVED)),", "Some(VoteState::Joined) => None,", &["--lib hold::tests"]),
    edit("what ends a request while its hold lasts has a floor above all turns", FLOOR, "self.at(now).max(*after_turns)", "self.at(now).max(*after_turns.min(&self.own))", FLOORS),
    edit("a vote that was part of no hold has used no fence", HOLD, "Some(VoteState::Alone) => None,", "Some(VoteState::Alone) => Some(fence.plus(RESERVED)),", &["--lib hold::tests"]),
    edit("no turn begins while most votes are in doubt", VOTES, "self.is_sure(&state) && ", "", TURNS),
    edit("no turn begins when most leases are nearly over", VOTES, " && !self.terms.is_late(left)", "", TURNS),
    edit("a hold of a quorum that is over has no further turn", VOTES, "state.over.is_none() && ", "", TURNS),
    edit("what is still held in a quorum is named with the fence of its turn", VOTES, "self.last_turn.or_else(|| Some(self.decided?.1))", "Some(self.decided?.1)", TURNS),

    edit("a quorum has an odd number of servers", SETTINGS, "SERVERS.contains(&count) && count % 2 == 1", "SERVERS.contains(&count)", REFUSED),
    edit("a quorum names each server once", SETTINGS, "if servers.contains(&server) {", "if false {", REFUSED),
    edit("a quorum is of servers without replicas", SETTINGS, "if self.options.replicas > 0 {", "if false {", REFUSED),
    edit("a quorum is connected once a majority have answered", SETTINGS, "if answering >= majority {", "if answering == stores.len() {", &["--test servers quorum::restarts::client_connects"]),
    edit("a lock in a quorum has no owner", LOCK, "if self.owner.is_some() {", "if false {", REFUSED),
    edit("a lock in a quorum is not kept", LOCK, "if self.options.at_least.is_some() {", "if false {", REFUSED),
];
