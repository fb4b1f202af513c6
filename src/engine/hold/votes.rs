//! A hold that is a vote: in a quorum, a majority of them are one hold. They may be older or newer than that.

use std::time::Duration;

use super::{Hold, State, is_short_of_cap};
use crate::fence::Fence;
use crate::sync::locked;
use crate::time::clock::LocalTime;
use crate::time::server_time::ServerTime;

impl Hold {
    /// The hold is a vote of a majority that was decided at this time: it is renewed with this lease from now
    /// on, and lasts for no longer than the majority may. Returns whether its renewals begin again.
    pub(crate) fn join(&self, decided: LocalTime, lease: Duration) -> bool {
        let mut state = locked(&self.state);
        if std::mem::replace(&mut state.has_joined, true) {
            return false;
        }
        state.lengthened |= lease > state.lease;
        state.lease = lease;
        let longest = self.terms.longest();
        let (cap, local_cap) = (since(&state, decided).after(longest), decided.after(longest));
        let is_renewed = is_short_of_cap(&state);
        // A vote that lasts up to its own cap is not renewed any more, unless the majority came much later.
        let begins_again = !is_renewed && cap.since(state.cap) > self.terms.grant() / 4;
        if is_renewed || begins_again {
            (state.cap, state.local_cap) = (cap, local_cap);
        }
        state.deadline = state.deadline.min(local_cap);
        begins_again
    }

    /// The majority belongs to a guard since it was decided, so work may begin. What a release keeps counts
    /// from then on. The local deadline is never later than the server's, so it does not end too early.
    pub(crate) fn mark_used_since(&self, decided: LocalTime) {
        let mut state = locked(&self.state);
        state.kept_from = Some(since(&state, decided));
    }

    /// The majority is over, and its turns used no fence after this one.
    pub(crate) fn end_turns(&self, last: Fence) {
        locked(&self.state).last_turn = Some(last);
    }

    /// The last fence that turns of the majority can have used, if that is larger than the vote's own. As
    /// long as the majority lasts without this vote, its turns may use all that the request reserved.
    pub(super) fn last_fence_of_vote(&self, state: &State) -> Option<Fence> {
        let more = u64::from(self.request.turns() - 1);
        let reserved = || Fence::new(state.fence.get() + more).filter(|_| state.has_joined);
        let last = state.last_turn.or_else(reserved);
        last.filter(|last| self.calls.are_of_a_vote() && *last > state.fence)
    }
}

/// The server time of a local time before the deadline. The local deadline is never later than the server's,
/// so this may be a little late, but not early.
fn since(state: &State, local: LocalTime) -> ServerTime {
    state.server_deadline.before(state.deadline.since(local))
}
