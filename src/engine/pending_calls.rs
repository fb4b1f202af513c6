//! The unanswered acquire calls of one request.
//!
//! Each of them may still run, until its `not_after`. So a withdrawal must follow once the use of the request
//! is over. If the withdrawal is answered on the one connection on which all calls were written, they ran
//! before it. Otherwise a second withdrawal must follow when no call can run any more, or when the last of
//! them has been answered.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::engine::floor::Floor;
use crate::engine::server_clocks::ServerClocks;
use crate::protocol::{ConnectionId, Failure, Stamp};
use crate::sync::locked;
use crate::time::clock::LocalTime;
use crate::time::clock_offset::Sample;
use crate::time::deadline::PRECISION;
use crate::time::deadline_queue::GivesUp;
use crate::time::server_time::ServerTime;
use crate::types::fence::Fence;

#[derive(Debug)]
pub(super) struct PendingCalls {
    /// The lease of a hold that one of the calls acquires.
    lease: Duration,
    /// When the caller of the request gives up.
    gives_up: GivesUp,
    /// In a quorum.
    floor: Option<Floor>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// How many calls are written and not answered.
    open: u32,
    latest_not_after: ServerTime,
    written_on: WrittenOn,
    has_ended: bool,
    was_withdrawn: bool,
}

/// The connections on which the calls were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WrittenOn {
    None,
    One(ConnectionId),
    Several,
}

/// One call of the request. Until it is written, it has no effect and leaves no trace. If it is dropped after
/// it was written and before it is answered, it stays unanswered.
#[derive(Debug)]
pub(super) struct PendingCall {
    of: Arc<PendingCalls>,
    clocks: Arc<ServerClocks>,
    /// Whether the call is counted in `State::open`.
    is_open: AtomicBool,
}

impl PendingCalls {
    pub(super) fn new(lease: Duration, gives_up: GivesUp, floor: Option<Floor>) -> Arc<PendingCalls> {
        Arc::new(PendingCalls {
            lease,
            gives_up,
            floor,
            state: Mutex::new(State {
                open: 0,
                latest_not_after: ServerTime::default(),
                written_on: WrittenOn::None,
                has_ended: false,
                was_withdrawn: false,
            }),
        })
    }

    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    /// Whether a grant to them is a vote of a quorum.
    pub(super) fn are_of_a_vote(&self) -> bool {
        self.floor.is_some()
    }

    /// In a quorum: the least fence of a grant by a call that is made now.
    pub(super) fn floor(&self, now: impl FnOnce() -> LocalTime) -> Option<Fence> {
        self.floor.as_ref().map(|floor| floor.at(now()))
    }

    /// In a quorum: the least fence of a grant by what ends their request.
    pub(super) fn next_floor(&self, now: impl FnOnce() -> LocalTime) -> Option<Fence> {
        self.floor.as_ref().map(|floor| floor.of_next(now()))
    }

    /// Begins a further call. Nothing of it is written yet.
    pub(super) fn begin(of: &Arc<PendingCalls>, clocks: &Arc<ServerClocks>) -> Arc<PendingCall> {
        Arc::new(PendingCall {
            of: Arc::clone(of),
            clocks: Arc::clone(clocks),
            is_open: AtomicBool::new(false),
        })
    }

    /// Ends the use of the request. No further call is written.
    pub(super) fn end(&self) {
        locked(&self.state).has_ended = true;
    }

    /// Ends the use of the request because it is withdrawn. Each answer that comes after this requires
    /// another withdrawal. Returns whether there is anything to withdraw: something that answered calls
    /// `may_have_left`, or the effect of an unanswered call.
    pub(super) fn withdraw(&self, may_have_left: bool) -> bool {
        let mut state = locked(&self.state);
        state.has_ended = true;
        state.was_withdrawn = true;
        (may_have_left && state.written_on != WrittenOn::None) || state.open > 0
    }

    pub(super) fn was_withdrawn(&self) -> bool {
        locked(&self.state).was_withdrawn
    }

    /// Whether an answer on this connection, to a call that was written after the [end](Self::end), proves
    /// that every call that will ever run has run.
    pub(super) fn have_run_before(&self, on: ConnectionId) -> bool {
        locked(&self.state).written_on == WrittenOn::One(on)
    }

    /// The server time past which none of the unanswered calls can run, or `None` if all calls were answered.
    pub(super) fn unanswered(&self) -> Option<ServerTime> {
        let state = locked(&self.state);
        (state.open > 0).then_some(state.latest_not_after)
    }
}

impl PendingCall {
    /// Handles an answer. A failure counts as an answer if it says that the call was not executed and will
    /// not be.
    pub(super) fn answered<T>(&self, answer: &Result<T, Failure>) {
        let is_known = !matches!(answer, Err(Failure::Unknown(_) | Failure::Closed));
        if is_known {
            self.close(&mut locked(&self.of.state));
        }
    }

    /// Whether the server did nothing because the caller waits no longer, and not because the call was long
    /// on its way. By the time for which the call took, the server's clock may be other than it is thought to
    /// be, and another call would come no sooner. Server times are whole milliseconds besides.
    pub(super) fn is_late_for_its_caller(&self, at: &Sample) -> bool {
        let next = at.received.after(at.received.since(at.sent) + PRECISION);
        let until = self.of.gives_up.bound();
        until.is_some_and(|until| until <= next) || locked(&self.of.state).has_ended
    }

    fn close(&self, state: &mut State) {
        if self.is_open.swap(false, Ordering::Relaxed) {
            state.open -= 1;
        }
    }
}

impl Stamp for PendingCall {
    fn written(&self, on: ConnectionId) -> Option<ServerTime> {
        let not_after = self.clocks.not_after(on.server, self.of.gives_up.bound())?;
        let mut state = locked(&self.of.state);
        if state.has_ended {
            // A call is written again only after its earlier writing was answered.
            self.close(&mut state);
            return None;
        }
        state.written_on = match state.written_on {
            WrittenOn::None => WrittenOn::One(on),
            before if before == WrittenOn::One(on) => before,
            _ => WrittenOn::Several,
        };
        state.latest_not_after = state.latest_not_after.max(not_after);
        if !self.is_open.swap(true, Ordering::Relaxed) {
            state.open += 1;
        }
        Some(not_after)
    }

    fn gives_up(&self) -> GivesUp {
        self.of.gives_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Answer, ServerId};
    use crate::time::clock::Clock;
    use crate::time::deadline::NOT_AFTER;
    use crate::types::error::ServerError;

    const NOW: ServerTime = ServerTime::from_ms(1_000_000);

    fn pending() -> (Arc<PendingCalls>, Arc<ServerClocks>) {
        let at = Sample {
            sent: LocalTime::ZERO,
            received: LocalTime::ZERO,
            now: NOW,
        };
        let first = Answer {
            on: ConnectionId::default(),
            at,
            reply: (),
        };
        let clocks = Arc::new(ServerClocks::new(Clock::tokio(), Some(&first)));
        (
            PendingCalls::new(Duration::from_secs(30), GivesUp::Unknown, None),
            clocks,
        )
    }

    fn write(call: &PendingCall) -> Option<ServerTime> {
        call.written(ConnectionId::default())
    }

    fn unknown() -> Result<(), Failure> {
        Err(Failure::Unknown(ServerError::new("lost")))
    }

    fn not_executed() -> Result<(), Failure> {
        Err(Failure::NotExecuted(ServerError::new("MOVED")))
    }

    #[tokio::test(start_paused = true)]
    async fn unwritten_call_leaves_nothing() {
        let (calls, clocks) = pending();
        for answer in [not_executed(), unknown()] {
            PendingCalls::begin(&calls, &clocks).answered(&answer);
        }
        drop(PendingCalls::begin(&calls, &clocks));
        assert!(!calls.withdraw(true));
        assert_eq!(calls.unanswered(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_must_run_within_two_seconds_of_its_writing_however_long_it_waited_before() {
        let (calls, clocks) = pending();
        let call = PendingCalls::begin(&calls, &clocks);
        let waited = Duration::from_secs(100);
        tokio::time::sleep(waited).await;
        assert_eq!(write(&call), Some(NOW.after(waited + NOT_AFTER)));
        assert_eq!(calls.unanswered(), Some(NOW.after(waited + NOT_AFTER)));
    }

    #[tokio::test(start_paused = true)]
    async fn call_written_again_counts_once() {
        let (calls, clocks) = pending();
        let call = PendingCalls::begin(&calls, &clocks);
        write(&call);
        write(&call);
        let other = PendingCalls::begin(&calls, &clocks);
        write(&other);
        call.answered(&Ok(()));
        call.answered(&Ok(()));
        assert!(calls.unanswered().is_some(), "the other call is unanswered");
        other.answered(&Ok(()));
        assert_eq!(calls.unanswered(), None);
        assert!(calls.withdraw(true) && !calls.withdraw(false));
    }

    #[tokio::test(start_paused = true)]
    async fn calls_are_unanswered_until_the_last_of_them_cannot_run_any_more() {
        let (calls, clocks) = pending();
        let set_back = Sample {
            sent: LocalTime::ZERO,
            received: LocalTime::ZERO,
            now: ServerTime::from_ms(500_000),
        };
        let first = write(&PendingCalls::begin(&calls, &clocks));
        clocks.record(ServerId(1), set_back);
        let second = PendingCalls::begin(&calls, &clocks).written(ConnectionId {
            server: ServerId(1),
            number: 1,
        });
        assert!(second < first);
        assert_eq!(calls.unanswered(), first);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_have_run_before_an_answer_on_their_connection_if_all_were_written_there() {
        let [one, other] = [1, 2].map(|number| ConnectionId {
            number,
            ..ConnectionId::default()
        });
        let (calls, clocks) = pending();
        assert!(!calls.have_run_before(one));
        for _ in 0..2 {
            PendingCalls::begin(&calls, &clocks).written(one);
            assert!(calls.have_run_before(one) && !calls.have_run_before(other));
        }
        PendingCalls::begin(&calls, &clocks).written(other);
        assert!(!calls.have_run_before(one) && !calls.have_run_before(other));
    }

    #[tokio::test(start_paused = true)]
    async fn only_an_answer_or_proof_of_no_execution_ends_a_call() {
        for (answer, is_over) in [(Ok(()), true), (not_executed(), true), (unknown(), false)] {
            let (calls, clocks) = pending();
            let call = PendingCalls::begin(&calls, &clocks);
            write(&call);
            call.answered(&answer);
            assert_eq!(calls.unanswered().is_none(), is_over, "{answer:?}");
        }
    }

    /// Race: A call is written as its request ends.
    #[tokio::test(start_paused = true)]
    async fn once_the_use_of_the_request_is_over_nothing_is_written() {
        let (calls, clocks) = pending();
        let (before, after) = (
            PendingCalls::begin(&calls, &clocks),
            PendingCalls::begin(&calls, &clocks),
        );
        write(&before);
        calls.end();
        assert_eq!(write(&after), None);
        assert!(calls.unanswered().is_some(), "the earlier call is unanswered");
        // A call is written again if the server answered that it had forgotten the scripts.
        assert_eq!(write(&before), None);
        // The future that waited for this call may be gone, and then reports no answer.
        assert_eq!(calls.unanswered(), None);
        for call in [before, after] {
            call.answered(&not_executed());
        }
        assert_eq!(calls.unanswered(), None);
    }

    /// Race: The server finds a call late although its caller still waits, by what they think of its clock.
    #[test]
    fn a_call_whose_caller_has_no_time_for_another_one_is_late_for_its_caller() {
        let (_, clocks) = pending();
        let ms = |ms| LocalTime::ZERO.after(Duration::from_millis(ms));
        let took = Sample {
            sent: ms(0),
            received: ms(50),
            now: NOW,
        };
        for (gives_up, is_late) in [
            (GivesUp::At(ms(40)), true),
            (GivesUp::At(ms(110)), true),
            (GivesUp::At(ms(111)), false),
            (GivesUp::Unknown, false),
        ] {
            let calls = PendingCalls::new(Duration::from_secs(1), gives_up, None);
            let call = PendingCalls::begin(&calls, &clocks);
            assert_eq!(call.is_late_for_its_caller(&took), is_late, "{gives_up:?}");
            calls.end();
            assert!(call.is_late_for_its_caller(&took));
        }
    }
}
