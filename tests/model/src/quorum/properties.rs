//! What must hold in every reachable state.
//!
//! Some promises can only be judged when nothing is due any more. The state is *quiet* when only the ends of
//! leases are still to come, and *at rest* when these have come too.

use stateright::Property;

use crate::quorum::protocol::Protocol;
use crate::quorum::state::{Client, ClientId, SERVERS, State};

pub const ONE_HOLDER: &str = "nobody believes itself the holder beside another";
pub const LARGER_FENCES: &str = "the fence of a holder is larger than those of all before";
pub const NO_OVERTAKING: &str = "nobody queued on a majority is overtaken by a later client";
pub const NOBODY_STUCK: &str = "nobody waits at rest while a majority is up";
pub const NO_WAIT_FOR_LEASES: &str = "nobody waits for a lease to end if nobody died, forgot or was slow";
pub const NOTHING_LEFT: &str = "when all is quiet, nothing is left of requests that are over";
pub const ALL_VOTES: &str = "a holder that has claimed has the vote of every server that is up";

pub fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always(ONE_HOLDER, |_, state: &State| {
            state.clients.iter().filter(|client| client.believes()).count() <= 1
        }),
        Property::always(LARGER_FENCES, |_, state: &State| !state.history.went_back),
        Property::always(NO_OVERTAKING, |_, state: &State| !state.history.overtaken),
        Property::always(NOBODY_STUCK, |model: &Protocol, state: &State| {
            !somebody_waits(state) || !model.is_quiet(state) || model.awaits_lease(state)
        }),
        Property::always(NO_WAIT_FOR_LEASES, |model: &Protocol, state: &State| {
            !somebody_waits(state) || !model.was_undisturbed(state) || !model.is_quiet(state)
        }),
        Property::always(NOTHING_LEFT, |model: &Protocol, state: &State| {
            !something_is_left(state) || !model.is_quiet(state)
        }),
        Property::always(ALL_VOTES, |model: &Protocol, state: &State| {
            model.clients().all(|client| has_all_votes(state, client))
                || model.something_is_due(state)
                || model.awaits_lease(state)
        }),
    ]
}

/// Somebody waits though a majority is up and within reach.
fn somebody_waits(state: &State) -> bool {
    let waits = |client| state.client(client) == Client::Waiting;
    (0..)
        .zip(state.clients)
        .any(|(client, _)| waits(client) && state.reaches_majority(client))
}

/// A server has something of a request that its client has given up.
fn something_is_left(state: &State) -> bool {
    state.servers.iter().any(|server| {
        let queued = server.queue.iter().map(|place| (place.client, place.attempt));
        let held = server.hold.map(|hold| (hold.client, hold.attempt));
        queued.chain(held).any(|(client, attempt)| {
            let voter = &server.voters[usize::from(client)];
            voter.attempt != attempt && !voter.is_cut_off && state.client(client) != Client::Dead
        })
    })
}

/// Anybody but a holder that has claimed has all the votes that it must have.
fn has_all_votes(state: &State, client: ClientId) -> bool {
    if !matches!(state.client(client), Client::Holding { claimed: true, .. }) {
        return true;
    }
    (0..SERVERS).all(|server| {
        let voter = state.voter(server, client);
        state.servers[server].mute || voter.is_cut_off || voter.vote.is_some()
    })
}
