//! What a lock, a semaphore and a side of a read/write lock have in common: a name, what a guard takes, and
//! settings. Each kind is a type of its own around this one, and has the settings that apply to it.

mod asking;
mod looking;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::guard::{Guard, HoldToken, LockGuard};
use crate::caller::local_queue::{LocalQueues, TenureParams};
use crate::caller::place::Place;
use crate::caller::place::held::not_kept_in_a_quorum;
use crate::engine::acquire::AcquireParams;
use crate::engine::client::Client;
use crate::engine::metrics::Group;
use crate::engine::options::{LockOptions, check_group, group_of};
use crate::protocol::keys::Keys;
use crate::types::error::{Invalid, Result};
use crate::types::owner::Owner;
use crate::types::permits::Gives;
use crate::types::status::Kind;

#[derive(Clone)]
pub(crate) struct Handle {
    queues: Arc<LocalQueues>,
    name: Arc<str>,
    /// The keys and the channel, or the reason why the name is refused. The first call returns it.
    keys: Result<(Arc<Keys>, Arc<str>), Invalid>,
    pub(super) gives: Gives,
    pub(crate) options: LockOptions,
    pub(crate) owner: Option<Owner>,
}

impl Handle {
    pub(crate) fn new(queues: &Arc<LocalQueues>, gives: Gives, name: &str) -> Handle {
        let client = queues.place().client();
        let keys = Keys::of_kind(gives.kind(), &client.options.prefix, name).map(|keys| {
            let channel = keys.channel_of(&client.id);
            (Arc::new(keys), channel)
        });
        Handle {
            queues: Arc::clone(queues),
            name: name.into(),
            keys,
            gives,
            options: LockOptions::default(),
            owner: None,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Waits, for this long at most.
    pub(crate) fn acquire<G: Guard>(
        &self,
        wait: Option<Duration>,
    ) -> impl Future<Output = Result<G>> + Send + use<G> {
        asking::acquire(self.clone(), wait)
    }

    pub(crate) fn try_acquire<G: Guard>(&self) -> impl Future<Output = Result<G>> + Send + use<G> {
        asking::try_acquire(self.clone())
    }

    /// Waits, for this long at most, does the work, and releases.
    pub(crate) fn with<F, W>(
        &self,
        wait: Option<Duration>,
        work: F,
    ) -> impl Future<Output = Result<W::Output>> + use<F, W>
    where
        F: FnOnce(HoldToken) -> W,
        W: Future,
    {
        let acquiring = asking::acquire::<LockGuard>(self.clone(), wait);
        async move {
            let guard = acquiring.await?;
            let output = guard.run(work(guard.token())).await?;
            guard.check()?;
            guard.release_after_work().await?;
            Ok(output)
        }
    }

    /// Refuses what is wrong with the name or the settings, before anything is sent.
    pub(crate) fn check(&self) -> Result<()> {
        self.request().map(drop)
    }

    pub(crate) fn has_manager_of(&self, other: &Handle) -> bool {
        Arc::ptr_eq(&self.queues, &other.queues)
    }

    pub(crate) fn has_settings_of(&self, other: &Handle) -> bool {
        self.gives == other.gives && self.options == other.options && self.owner == other.owner
    }

    /// How long each of its guards keeps it taken at least.
    pub(crate) fn kept_for(&self) -> Option<Duration> {
        self.options.at_least
    }

    pub(crate) fn kind(&self) -> Kind {
        self.gives.kind()
    }

    /// What tells it from the others of its manager. Sets acquire their locks in this order.
    pub(crate) fn id(&self) -> (Kind, &str) {
        (self.kind(), &self.name)
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        self.place().client()
    }

    /// The group in which it is counted.
    fn group(&self) -> &str {
        self.options
            .group
            .as_deref()
            .unwrap_or_else(|| group_of(&self.name))
    }

    fn place(&self) -> &Place {
        self.queues.place()
    }

    /// What is asked for. Refuses what is wrong before anything is sent, and starts what goes on without a
    /// caller.
    fn request(&self) -> Result<TenureParams> {
        if let Place::Quorum(_) = self.place() {
            self.check_in_a_quorum()?;
        }
        let terms = self.options.terms(&self.client().options)?;
        let permits = self.gives.permits()?;
        let turns = self.options.turns(&self.client().options)?;
        if let Some(group) = &self.options.group {
            check_group(group)?;
        }
        let (keys, channel) = self.keys.as_ref().map_err(Invalid::clone)?;
        self.client().check_open()?;
        self.place().start();
        // A hold of permits, with an owner, or whose length is limited, is for one guard alone.
        let is_limited = terms.fixed || terms.max_hold.is_some() || terms.at_least.is_some();
        let is_plain = permits.is_none() && self.owner.is_none() && !is_limited;
        let can_be_retained = is_plain && matches!(self.place(), Place::One(_));
        let retain_ms = self.options.retain_ms(&self.client().options, can_be_retained)?;
        let hold = AcquireParams {
            keys: Arc::clone(keys),
            channel: Arc::clone(channel),
            terms,
            owner: self.owner.clone(),
            retain_ms,
            permits,
            group: Group::default(),
            vote: None,
        };
        Ok(TenureParams {
            hold,
            turns: if is_plain { turns } else { 1 },
        })
    }

    fn check_in_a_quorum(&self) -> Result<(), Invalid> {
        self.gives.check_in_a_quorum()?;
        if self.owner.is_some() {
            return Err(Invalid::new(
                "owner: must not be set in a quorum, where no lock is re-entrant",
            ));
        }
        if self.options.at_least.is_some() {
            return Err(not_kept_in_a_quorum());
        }
        Ok(())
    }
}

impl Handle {
    /// Writes it as the type around it.
    pub(crate) fn debug(&self, of: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(of)
            .field("name", &self.name)
            .field("gives", &self.gives)
            .field("options", &self.options)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
