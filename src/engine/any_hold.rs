//! What the hold of one server, the votes of a majority and a turn have in common.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::engine::counters::{Counters, Holding};
use crate::time::clock::LocalTime;
use crate::types::error::Lost;
use crate::types::fence::Fence;
use crate::types::lease::Lease;
use crate::types::owner::Owner;

/// What lasts until a lease ends or a guard ends it, for those that watch it.
pub(crate) trait Watched: fmt::Debug + Send + Sync {
    /// Checks by the local clock that the lease lasts.
    fn check(&self) -> Result<(), Lost>;

    /// Waits until it is over. Does not depend on the network.
    fn lost(&self) -> BoxFuture<'_, Lost>;
}

/// A hold on one server or on a majority of several, without its owner.
pub(crate) trait AnyHold: Watched {
    fn name(&self) -> &Arc<str>;

    fn owner(&self) -> &Owner;

    fn slot(&self) -> Option<u32> {
        None
    }

    /// How many servers' holds these are, in a quorum.
    fn votes(&self) -> Option<usize> {
        None
    }

    /// Whether the lease is never extended beyond its length.
    fn is_fixed(&self) -> bool;

    /// The state of the lease now. This reads the clock, so a process that was paused past its lease sees at
    /// its first look that the hold is lost.
    fn lease(&self) -> Lease;

    /// There is a guard from now on. The code that ends the hold takes out what the guard holds.
    fn begin_guard(&self, counters: &Counters, holding: Holding);

    /// Takes out what the guard holds, since its turn has ended.
    fn end_guard(&self) -> Option<Holding>;

    /// There is no guard until the next turn begins, if the hold lasts long enough from now on. Returns
    /// whether it does. A majority never rests.
    fn rest(&self, _now: LocalTime) -> bool {
        false
    }

    /// Begins the turn with this fence, if the hold lasts long enough from now on. Returns whether it did.
    fn begin_turn(&self, next: Fence, now: LocalTime) -> bool;
}
