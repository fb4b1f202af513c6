//! What must hold in every reachable state.
//!
//! Some promises can only be judged when nothing is due any more. The state is *quiet* when only the ends of
//! leases are still to come, and *at rest* when these have come too. By then, all faults have happened, and
//! no waiter is going to be told of a grant.

use stateright::Property;

use crate::single::protocol::Protocol;
use crate::single::state::{Fence, Permits, Server, Stage, State};

pub const ONE_HOLDER: &str = "nobody believes itself the only holder beside another";
pub const CAPACITY: &str = "no more permits are in use, or believed to be, than the last grant allows";
pub const PERMITS_COUNTED: &str = "the permits in use are those of the holds";
pub const LARGER_FENCES: &str = "each grant has a larger fence than those before it";
pub const NEWEST_FENCE: &str = "nobody believes in a fence that is not larger than that of an earlier holder";
pub const NO_LOST_WAKE_UP: &str = "nobody waits in a state at rest";
pub const NOBODY_FORGOTTEN: &str = "waiting requests are queued or will be told";
pub const NO_GHOST_HOLDER: &str = "a quiet lock is not held for a live client that does not know it";
pub const NO_GHOST_ENTRY: &str = "nobody is queued without waiting";
pub const NO_OVERTAKING: &str =
    "nobody in the queue is overtaken, unless it is full, by a request with a larger capacity";
pub const NO_STARVING: &str = "nobody is overtaken for good";
pub const NOT_LEFT_FREE: &str =
    "no script leaves free what the first reachable request in the queue waits for";
pub const CLAIM_WINDOW: &str = "an unread push delays nobody for a whole lease";
pub const NOT_PASSED_OVER: &str = "nobody is passed over who listens, and has asked since a grant ran out";
pub const NO_LATE_TURN: &str = "no turn begins on a hold that its client must know to be wanted";
pub const ONE_CLAIM_WINDOW: &str = "a client that left a grant unclaimed gets no other before it asks again";

/// What must hold of permits too, beside that of a lock.
pub fn of_permits() -> [Property<Protocol>; 4] {
    [
        Property::always(NO_STARVING, |_, state: &State| !state.history.overtaken_often),
        Property::always(CAPACITY, |_, state: &State| {
            let holds = state.server.holds.iter();
            let granted = holds.map(|hold| (hold.fence, state.requests[hold.request].permits));
            are_allowed(granted) && are_allowed(state.believers())
        }),
        Property::always(PERMITS_COUNTED, |_, state: &State| {
            let Server { holds, used, .. } = &state.server;
            *used == holds.iter().map(|hold| hold.weight).sum::<u8>()
        }),
        Property::always(LARGER_FENCES, |_, state: &State| {
            state
                .server
                .holds
                .is_sorted_by(|former, next| former.fence < next.fence)
        }),
    ]
}

pub fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always(ONE_HOLDER, |_, state: &State| {
            state.believers().count() <= 1 || !state.believers().any(|(_, permits)| permits.are_all())
        }),
        Property::always(NEWEST_FENCE, |_, state: &State| !state.history.went_back),
        Property::always(NO_OVERTAKING, |_, state: &State| !state.history.overtaken),
        Property::always(NOT_LEFT_FREE, |_, state: &State| !state.history.left_free),
        Property::always(NOT_PASSED_OVER, |_, state: &State| !state.history.passed_over),
        Property::always(ONE_CLAIM_WINDOW, |_, state: &State| {
            !state.history.granted_to_silent
        }),
        Property::always(NO_LATE_TURN, |_, state: &State| !state.history.late_turn),
        Property::always(NO_LOST_WAKE_UP, |model: &Protocol, state: &State| {
            !somebody_waits(state) || !is_quiet(model, state) || somebody_expires(model, state)
        }),
        Property::always(NOBODY_FORGOTTEN, no_client_is_forgotten),
        Property::always(NO_GHOST_HOLDER, |model: &Protocol, state: &State| {
            let alive = |request| !state.clients[model.client_of(request)].crashed;
            let ghost = state
                .server
                .held()
                .any(|hold| alive(hold.request) && !state.requests[hold.request].stage.is_held());
            !ghost || !is_quiet(model, state)
        }),
        Property::always(NO_GHOST_ENTRY, |model: &Protocol, state: &State| {
            let ghost = state.server.queue.iter().any(|&(_, request)| {
                let crashed = state.clients[model.client_of(request)].crashed;
                !crashed && state.requests[request].stage != Stage::Waiting
            });
            !ghost || !is_quiet(model, state)
        }),
        Property::always(CLAIM_WINDOW, |model: &Protocol, state: &State| {
            let is_unread = state
                .server
                .held()
                .any(|hold| hold.pushed && !state.requests[hold.request].stage.is_held());
            !is_unread || !somebody_waits(state) || !is_quiet(model, state)
        }),
    ]
}

/// At the last of these grants no more permits were in use than its caller allows. Others may have come back
/// since.
fn are_allowed(grants: impl Iterator<Item = (Fence, Permits)> + Clone) -> bool {
    let used: u8 = grants.clone().map(|(_, permits)| permits.weight).sum();
    let last = grants.max_by_key(|&(fence, _)| fence);
    last.is_none_or(|(_, permits)| used <= permits.capacity)
}

/// Some lease ends though nothing goes wrong.
fn somebody_expires(model: &Protocol, state: &State) -> bool {
    let mut holds = state.server.held();
    holds.any(|hold| model.expires_unprovoked(state, hold.request))
}

fn somebody_waits(state: &State) -> bool {
    state
        .requests
        .iter()
        .any(|request| request.stage == Stage::Waiting)
}

fn is_quiet(model: &Protocol, state: &State) -> bool {
    let mut due = Vec::new();
    model.due(state, &mut due);
    due.is_empty()
}

/// If nothing is under way to or from a client, and its timer would find nothing, then all its requests are
/// in the queue, even while another client holds the lock.
fn no_client_is_forgotten(model: &Protocol, state: &State) -> bool {
    (0..state.clients.len()).all(|client| {
        let this = &state.clients[client];
        let lost = |request| !state.server.is_queued(request) && !state.server.is_held_by(request);
        !this.is_idle()
            || !this.subscribed
            || !model.waiting(state, client).any(lost)
            || model.poll_has_news(state, client)
    })
}
