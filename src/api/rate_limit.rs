//! Rate limits: a bound on how many calls begin within a period.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::api::manager::LockManager;
use crate::caller::place::Place;
use crate::caller::rate_limit::{RateLimits, RateWaitlist};
use crate::engine::client::Client;
use crate::engine::counters::{CountedCall, How, Outcome};
use crate::engine::options::check_group;
use crate::engine::retry::until_answered;
use crate::protocol::keys::RateKeys;
use crate::protocol::{Rate, RateLook, RateLooked};
#[cfg(doc)]
use crate::types::error::Error;
use crate::types::error::{Error as LockError, Invalid, Result};
use crate::types::status::RateStatus;

/// The most turns of a period, and of a burst.
const MOST_TURNS: u32 = 1_000_000;
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// A server's clock has whole µs, so faster rates would not be exact.
const SHORTEST_INTERVAL: u64 = 100;

impl LockManager {
    /// Returns the rate limit of this name: `turns` calls may begin within each `period`, over all processes
    /// (1 to 1,000,000 within 1 ms to 1 day, and 10,000 within a second at most). It does no I/O, and shares
    /// nothing with the [`lock`](Self::lock) of the same name. In a quorum it is
    /// [`Error::Invalid`](crate::Error::Invalid).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let mail = locks.rate_limit("mail", 50, Duration::from_secs(1));
    /// for message in 0..200 {
    ///     mail.acquire().await?; // one every 20 ms
    ///     println!("message {message} is sent");
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "RRateLimiter")]
    #[doc(alias = "throttle")]
    #[doc(alias = "governor")]
    pub fn rate_limit(&self, name: impl AsRef<str>, turns: u32, period: Duration) -> RateLimit {
        let place = self.place().clone();
        let keys = match place {
            Place::One(_) => RateKeys::new(&place.client().options.prefix, name.as_ref()).map(Arc::new),
            Place::Quorum(_) => Err(Invalid::new("rate limit: must be on one server, not in a quorum")),
        };
        RateLimit {
            limits: Arc::clone(self.rate_limits()),
            place,
            name: name.as_ref().into(),
            keys,
            turns,
            period,
            burst: 0,
            cost: 1,
            group: None,
        }
    }
}

/// A named rate limit: a bound on how many calls of all processes begin within a period, first come, first
/// served.
///
/// [`acquire`](Self::acquire) returns when the call may begin. Nothing is held then: there is no guard, and a
/// process that dies or stands still takes nothing from the others.
///
/// # What it promises
/// Turns come at even distances, `period / turns` apart. Within any period of the *server's* clock, no more
/// than `turns` begin, and no more than `turns + burst` with a [`burst`](Self::burst). This is the generic
/// cell rate algorithm (ITU-T I.371), which Redisson and the crate `governor` use as well.
///
/// Somebody else who counts the calls counts when they *arrive*. Calls that take longer on their way come
/// closer to those behind them: if the ways differ by up to `d`, up to `turns × d / period` more arrive
/// within one of their periods. Choose a limit that is smaller by that number. The guide has [an
/// example](crate::guide::permits#a-rate-limit).
///
/// A server that restarts without its data, or a failover that loses the last writes, forgets the last turns:
/// up to twice as many begin within the period around it.
///
/// # Order
/// Waiters of one process have their turns in the order in which their futures were first polled. Waitlists
/// of several processes are served by when their first waiter came. One that does not ask for its turn within
/// 50 ms, because its process has died or stands still, is passed over.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use std::time::Duration;
/// use fairlock::Error;
///
/// let api = locks.rate_limit("api", 10, Duration::from_secs(1)).burst(5);
/// api.acquire().await?;
/// // ... the call, which may take as long as it likes ...
/// match api.acquire_timeout(Duration::from_millis(500)).await {
///     Ok(()) => println!("its turn"),
///     Err(Error::Timeout { .. }) => println!("too many calls"),
///     Err(error) => return Err(error),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a rate limit does nothing until it is acquired"]
pub struct RateLimit {
    limits: Arc<RateLimits>,
    place: Place,
    name: Arc<str>,
    /// The keys, or the reason why there can be none. The first call returns it.
    keys: Result<Arc<RateKeys>, Invalid>,
    turns: u32,
    period: Duration,
    burst: u32,
    cost: u32,
    group: Option<Arc<str>>,
}

impl RateLimit {
    /// Returns the name, as it was given to [`LockManager::rate_limit`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets how many turns may come early, at once, after a time with fewer calls (0, the default, to
    /// 1,000,000). They are saved one by one, at the rate.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let api = locks.rate_limit("api", 1, Duration::from_secs(60)).burst(2);
    /// for _ in 0..3 {
    ///     api.try_acquire().await?; // one, and two early
    /// }
    /// assert!(api.try_acquire().await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn burst(mut self, burst: u32) -> RateLimit {
        self.burst = burst;
        self
    }

    /// Sets how many turns a call takes (1, the default, to all of a period and a burst), as for tokens or
    /// bytes.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let tokens = locks.rate_limit("model", 90_000, Duration::from_secs(60));
    /// tokens.clone().cost(1_200).acquire().await?;
    /// tokens.clone().cost(800).acquire().await?; // 800 ms later
    /// # Ok(()) }
    /// ```
    #[doc(alias = "acquire_many")]
    pub fn cost(mut self, cost: u32) -> RateLimit {
        self.cost = cost;
        self
    }

    /// Sets the group in which the metrics count the calls, as [`Lock::group`](crate::Lock::group) does.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let second = std::time::Duration::from_secs(1);
    /// locks.rate_limit("b9ef64a2", 10, second).group("customer").acquire().await?;
    /// # Ok(()) }
    /// ```
    pub fn group(mut self, group: impl AsRef<str>) -> RateLimit {
        self.group = Some(group.as_ref().into());
        self
    }

    /// Waits until the call may begin. The future borrows nothing, so it can be spawned.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no server has answered for the
    /// [`server_timeout`](crate::LockManagerBuilder::server_timeout), [`Error::Refused`], [`Error::Invalid`],
    /// [`Error::QueueFull`] or [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future gives up its place. A turn that it has been given by then, some 20 ms before it
    /// begins, is not used.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let mail = locks.rate_limit("mail", 50, std::time::Duration::from_secs(1));
    /// mail.acquire().await?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "until_ready")]
    pub fn acquire(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        self.clone().within(None)
    }

    /// Waits for this long at most for a turn. With zero it makes one attempt. A turn that is known by then
    /// is waited for: it begins 20 ms and two round trips later at most.
    ///
    /// # Errors
    /// [`Error::Timeout`] when that time has passed, or [`Error::Unavailable`] if no server has answered
    /// meanwhile. Otherwise as for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let mail = locks.rate_limit("mail", 1, Duration::from_secs(60));
    /// mail.acquire().await?;
    /// assert!(mail.acquire_timeout(Duration::from_secs(2)).await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn acquire_timeout(&self, wait: Duration) -> impl Future<Output = Result<()>> + Send + use<> {
        self.clone().within(Some(wait))
    }

    /// Takes a turn if the call may begin now, and nobody waits. It waits for the server's answer alone.
    ///
    /// # Errors
    /// [`Error::Busy`] if the call may not begin now: its `ttl` says when the next one can, unless others
    /// wait. Otherwise as for [`acquire`](Self::acquire), but
    /// [sooner](crate::guide::operations#how-soon-calls-end).
    ///
    /// # Cancel safety
    /// If the future is dropped, the turn may have been taken.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    /// use fairlock::Error;
    ///
    /// let api = locks.rate_limit("api", 1, Duration::from_secs(60));
    /// assert!(api.try_acquire().await.is_ok());
    /// assert!(matches!(api.try_acquire().await, Err(Error::Busy { .. })));
    /// # Ok(()) }
    /// ```
    #[doc(alias = "check")]
    pub fn try_acquire(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let limit = self.clone();
        async move {
            let tried = limit.tried(Outcome::Busy).await;
            tried.map_err(|error| error.of(&limit.name))
        }
    }

    /// Returns how many calls may begin now and when the next one may, if nobody waits, and how many clients
    /// wait. It takes no turn. The server does not know the rate: the answer is for the rate, the burst and
    /// the cost of this handle.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Refused`], [`Error::Invalid`] or [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let api = locks.rate_limit("api", 10, std::time::Duration::from_secs(1)).burst(5);
    /// let status = api.status().await?;
    /// assert_eq!(status.available, 6); // one, and five early
    /// # Ok(()) }
    /// ```
    #[doc(alias = "available_permits")]
    pub fn status(&self) -> impl Future<Output = Result<RateStatus>> + Send + use<> {
        let limit = self.clone();
        async move {
            let looking = pin!(limit.looked());
            let looked = limit.client().runtime.serves(looking).await;
            looked.map_err(|error| error.of(&limit.name))
        }
    }

    async fn looked(&self) -> Result<RateStatus> {
        let (keys, rate) = self.checked()?;
        let client = self.client();
        let look = RateLook {
            keys: Arc::clone(keys),
            by: client.id.clone(),
            rate,
        };
        let (answer, _) = until_answered(client, || client.call(look.clone())).await?;
        let RateLooked { next, us, waiting } = answer.reply;
        // The turns that came early, in µs, and the turns before the last one that this call takes.
        let early = next.saturating_sub(us);
        let before = u64::from(self.cost - 1) * rate.interval;
        Ok(RateStatus {
            available: rate
                .burst
                .checked_sub(early)
                .map_or(0, |left| left / rate.interval + 1),
            next_turn: Duration::from_millis((next + before).saturating_sub(rate.burst + us).div_ceil(1000)),
            waiting,
        })
    }

    async fn within(self, wait: Option<Duration>) -> Result<()> {
        // Beyond the end of time is no bound.
        let until = wait.and_then(|wait| Instant::now().checked_add(wait));
        let ended = if until.is_some_and(|until| until <= Instant::now()) {
            match self.tried(Outcome::Timeout).await {
                Err(LockError::Busy { name, ttl, .. }) => Err(LockError::Timeout {
                    name,
                    waited: Duration::ZERO,
                    ttl,
                }),
                tried => tried,
            }
        } else {
            self.waited(until).await
        };
        ended.map_err(|error| error.of(&self.name))
    }

    async fn waited(&self, until: Option<Instant>) -> Result<()> {
        let waitlist = self.waitlist()?;
        let client = self.client();
        let began = client.now();
        let counters = self.place.counters();
        let group = counters.metrics.group(&self.name, self.group.as_ref());
        let mut ask = counters.wait(&group, began);
        let waiting = pin!(async {
            let _permit = self.place.count_caller()?;
            waitlist.acquire(self.cost, until).await
        });
        let ended = client.runtime.serves(waiting).await;
        self.count(&mut ask, &ended, Outcome::Timeout);
        ended
    }

    /// One attempt. If the call may not begin, it counts as ended in this way.
    async fn tried(&self, if_busy: Outcome) -> Result<()> {
        let waitlist = self.waitlist()?;
        let counters = self.place.counters();
        let group = counters.metrics.group(&self.name, self.group.as_ref());
        let mut ask = counters.attempt(&group);
        let trying = pin!(waitlist.try_acquire(self.cost));
        let ended = self.client().runtime.serves(trying).await;
        self.count(&mut ask, &ended, if_busy);
        ended
    }

    fn count(&self, ask: &mut CountedCall<'_>, ended: &Result<()>, if_busy: Outcome) {
        match ended {
            // It holds nothing from now on.
            Ok(()) => drop(ask.acquired(How::Free, Duration::ZERO, self.client().now())),
            Err(LockError::Busy { .. }) => ask.end(if_busy),
            Err(error) => ask.failed(error),
        }
    }

    fn client(&self) -> &Arc<Client> {
        self.place.client()
    }

    /// Where its callers wait.
    fn waitlist(&self) -> Result<Arc<RateWaitlist>> {
        let (keys, rate) = self.checked()?;
        Ok(self.limits.waitlist(self.client(), &self.name, keys, rate))
    }

    /// Refuses what is wrong before anything is sent.
    fn checked(&self) -> Result<(&Arc<RateKeys>, Rate)> {
        let keys = self.keys.as_ref().map_err(Invalid::clone)?;
        let rate = self.rate()?;
        if let Some(group) = &self.group {
            check_group(group)?;
        }
        self.client().check_open()?;
        self.place.start();
        Ok((keys, rate))
    }

    fn rate(&self) -> Result<Rate, Invalid> {
        let Self {
            turns,
            period,
            burst,
            cost,
            ..
        } = self;
        let invalid = |why: String| Err(Invalid::new(why));
        if !(SHORTEST..=LONGEST).contains(period) {
            return invalid(format!("period {period:?}: must be from {SHORTEST:?} to 1 day"));
        }
        let period_us = u64::try_from(period.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX);
        if !(1..=MOST_TURNS).contains(turns) || period_us / u64::from(*turns) < SHORTEST_INTERVAL {
            return invalid(format!(
                "rate limit of {turns} within {period:?}: must be from 1 to {MOST_TURNS}, and at most 10000 \
                 within a second"
            ));
        }
        if *burst > MOST_TURNS {
            return invalid(format!("burst {burst}: must be at most {MOST_TURNS}"));
        }
        let most = turns + burst;
        if !(1..=most).contains(cost) {
            return invalid(format!(
                "cost {cost}: must be from 1 to the turns of a period and a burst, {most}"
            ));
        }
        // Rounded up, so that no period has more turns.
        let interval = period_us.div_ceil(u64::from(*turns));
        Ok(Rate {
            interval,
            burst: u64::from(*burst) * interval,
        })
    }
}

impl fmt::Debug for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("name", &self.name)
            .field("turns", &self.turns)
            .field("period", &self.period)
            .field("burst", &self.burst)
            .field("cost", &self.cost)
            .finish_non_exhaustive()
    }
}
