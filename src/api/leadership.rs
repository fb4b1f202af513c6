//! Leader election: a lock that one of several processes holds for as long as it leads.
//!
//! A leadership is a lock with one turn, and knows nothing that the lock does not know. A lead is its guard,
//! and a term watches the same hold as [`LockGuard::lost`](crate::LockGuard::lost). `run` is a future without
//! a task of its own. A watch asks for the status from time to time, because no message informs others of a
//! grant.

use std::convert::Infallible;
use std::fmt;
use std::ops::ControlFlow;
use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;

use crate::api::guard::{HoldToken, LockGuard};
use crate::api::lock::Lock;
use crate::api::manager::LockManager;
use crate::time::backoff::Backoff;
use crate::types::error::Result;
use crate::types::status::Holder;

impl LockManager {
    /// Returns the leadership of this name, for which several processes campaign. It does no I/O.
    ///
    /// The leader holds the [lock](Self::lock) of the same name: `status`, `list` and `force_release` of that
    /// lock show the leader and end its lead. Names follow the rules of [`lock`](Self::lock).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let scheduler = locks.leadership("scheduler").lease(Duration::from_secs(10));
    /// let jobs = scheduler.run(async |token| format!("3 jobs under fence {}", token.fence())).await?;
    /// println!("{jobs}");
    /// # Ok(()) }
    /// ```
    #[doc(alias = "election")]
    #[doc(alias = "elect")]
    #[doc(alias = "LeaderElector")]
    #[doc(alias = "LeaderLatch")]
    #[doc(alias = "LeaderSelector")]
    pub fn leadership(&self, name: impl AsRef<str>) -> Leadership {
        // A turn inside the process ends within 10 ms. A lead does not.
        let mut lock = self.lock(name).local_handoffs(1);
        lock.0.options.is_led = true;
        Leadership { lock }
    }
}

/// A named leadership: one of the processes that campaign for it leads, and the others follow.
///
/// Campaigns queue, and lead in the order of their arrival. A lead is a lease that is renewed while its
/// process lives. It ends when the leader resigns (at once: the next one leads after a round trip), when its
/// lease runs out, or when an operator takes the lock away.
///
/// [`run`](Self::run) campaigns, does the work of the leader, and campaigns again after a loss.
/// [`campaign`](Self::campaign) is one term, for programs that do this by themselves.
/// [`leader`](Self::leader) and [`Lock::watch`] are for those that want to know who leads. The lock of the
/// same name, `locks.lock(name)`, has `status`, `watch` and `force_release`.
///
/// # What a leader may not assume
/// A lead is a [lease, not a mutex](crate#a-lease-not-a-mutex). A leader that is paused for longer than its
/// lease goes on with its next instruction while another process leads. Its work is stopped at the next
/// `.await`. Where an outdated leader would do harm, hand [`HoldToken::fence`] to the resource with each read
/// and write, and have it refuse [smaller ones](crate::Fence).
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use fairlock::HoldToken;
///
/// async fn schedule(token: HoldToken) -> u32 {
///     println!("leading under fence {}", token.fence());
///     7 // a real leader goes on until its process ends
/// }
///
/// let scheduler = locks.leadership("scheduler");
/// assert_eq!(scheduler.run(schedule).await?, 7);
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a leadership does nothing until somebody campaigns for it"]
pub struct Leadership {
    lock: Lock,
}

impl Leadership {
    /// Returns the name, as it was given to [`LockManager::leadership`].
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// Sets the length of the lease (100 ms to 1 day; the default is [that of the
    /// manager](crate::LockManagerBuilder::lease)). If the leader dies, another process leads after this time
    /// at the latest. If the leader is cut off from the server for this long, its lead has ended.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let lead = locks.leadership("scheduler").lease(Duration::from_secs(5)).campaign().await?;
    /// assert_eq!(lead.lease().length, Duration::from_secs(5));
    /// # Ok(()) }
    /// ```
    #[doc(alias = "LeaseDuration")]
    #[doc(alias = "ttl")]
    pub fn lease(self, lease: Duration) -> Leadership {
        Leadership {
            lock: self.lock.lease(lease),
        }
    }

    /// Limits how long one term can last (at least 100 ms; `None`, the default, is no limit). The lease is
    /// renewed in the background, so a leader whose work hangs leads for ever otherwise. After that time its
    /// lead is lost, and it goes to the next process that campaigns.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    /// use fairlock::{Error, HoldEnd};
    ///
    /// let hourly = locks.leadership("scheduler").max_hold(Duration::from_secs(3600));
    /// let lead = hourly.campaign().await?;
    /// let stuck = lead.run(std::future::pending::<()>()).await;
    /// assert!(matches!(stuck, Err(Error::Lost(lost)) if lost.reason == HoldEnd::MaxHold));
    /// # Ok(()) }
    /// ```
    #[doc(alias = "watchdog")]
    pub fn max_hold(self, max_hold: impl Into<Option<Duration>>) -> Leadership {
        Leadership {
            lock: self.lock.max_hold(max_hold),
        }
    }

    /// Waits until this process leads, for one term. The guard is the lead: its release resigns.
    ///
    /// The future borrows nothing, so it can be spawned. It takes its place among those that campaign when it
    /// is first polled.
    ///
    /// # Errors
    /// As for [`Lock::acquire`].
    ///
    /// # Cancel safety
    /// Dropping the future at any point leaves no lead and no campaign. The place in the queue is lost.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # async fn schedule() {}
    /// let lead = locks.leadership("scheduler").campaign().await?;
    /// lead.run(schedule()).await?;
    /// lead.release().await?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "acquire")]
    pub fn campaign(&self) -> impl Future<Output = Result<LockGuard>> + Send + use<> {
        self.lock.acquire()
    }

    /// Campaigns, does the work of the leader, and campaigns again whenever the lead is lost, until the work
    /// ends by itself. Then it resigns, as [`Lock::with`] releases, and returns what the work returned.
    ///
    /// The work is called once in each term, with a [token](HoldToken) of the hold: it has the fence, and
    /// reports the end. So it must not use up what it captures: write `async |token| …` without `move`, and
    /// move the whole future, as into `tokio::spawn(async move { leadership.run(…).await })`.
    /// If the lead is lost, the work is dropped at its next `.await`. Tasks that the work has spawned go on;
    /// give each a clone of the token. A campaign that fails with an error that can
    /// [go away](crate::Error::is_transient) is reported at WARN, and repeated. The pauses before a new
    /// campaign are 10, 20, 40 … 1,000 ms with jitter. They start over after a lead of 1 s or more.
    ///
    /// The work's own errors are part of what it returns: `Ok(Err(…))` is an error of the work. It ends the
    /// leading like any other end. A lead that is lost in the very moment in which the work ends is reported
    /// at WARN only. If the last step of the work must be covered, [check](HoldToken::check) the token after
    /// it.
    ///
    /// # Errors
    /// - [`Error::Refused`](crate::Error::Refused) or [`Error::Invalid`](crate::Error::Invalid), which time
    ///   alone does not change.
    /// - [`Error::Closed`](crate::Error::Closed) if the manager was closed while it campaigned.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work first, and then resigns, in the background.
    /// [`LockManager::close`] waits until the server knows of that. [`run_until`](Self::run_until) does it
    /// without a drop.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// # async fn schedule() -> u32 { 7 }
    /// let mut terms = 0;
    /// let led = locks.leadership("scheduler").run(|token| {
    ///     terms += 1;
    ///     println!("term {terms}, under fence {}", token.fence());
    ///     async move {
    ///         tokio::spawn(token.run(std::future::pending::<()>())); // this task ends with the lead
    ///         schedule().await
    ///     }
    /// });
    /// assert_eq!(led.await?, 7);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "RunOrDie")]
    #[doc(alias = "takeLeadership")]
    pub fn run<F, W>(&self, work: F) -> impl Future<Output = Result<W::Output>> + use<F, W>
    where
        F: FnMut(HoldToken) -> W,
        W: Future,
    {
        let leadership = self.clone();
        async move {
            match leadership
                .terms(std::future::pending::<Infallible>(), work)
                .await?
            {
                ControlFlow::Continue(output) => Ok(output),
                ControlFlow::Break(never) => match never {},
            }
        }
    }

    /// Does the same as [`run`](Self::run), until `shutdown` completes. Then it drops the work, resigns,
    /// waits until the server has confirmed that, and returns `None`.
    ///
    /// It waits for the confirmation for [`server_timeout`](crate::LockManagerBuilder::server_timeout) at
    /// most. Work that has to finish what it has begun listens for the shutdown itself, and ends. While this
    /// process leads, give it the time for that by a `shutdown` that completes later. While it follows, the
    /// shutdown must complete at once: otherwise it campaigns on, and may be elected just before it ends.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    ///
    /// # Cancel safety
    /// As for [`run`](Self::run).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let shutdown = tokio::time::sleep(Duration::from_secs(3)); // or tokio::signal::ctrl_c()
    /// let scheduler = locks.leadership("scheduler");
    /// let led = scheduler.run_until(shutdown, async |_token| std::future::pending::<()>().await).await?;
    /// assert!(led.is_none());
    /// assert!(scheduler.leader().await?.is_none());
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ReleaseOnCancel")]
    pub fn run_until<S, F, W>(
        &self,
        shutdown: S,
        work: F,
    ) -> impl Future<Output = Result<Option<W::Output>>> + use<S, F, W>
    where
        S: Future,
        F: FnMut(HoldToken) -> W,
        W: Future,
    {
        let leadership = self.clone();
        async move { Ok(leadership.terms(shutdown, work).await?.continue_value()) }
    }

    /// Returns the present leader, if there is one, as [`Lock::status`] shows it: by the
    /// [label](crate::LockManagerBuilder::label) of its process, with its fence, for how long it has led, and
    /// when its lease ends.
    ///
    /// # Errors
    /// As for [`Lock::status`].
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let scheduler = locks.leadership("scheduler");
    /// let lead = scheduler.campaign().await?;
    /// if let Some(leader) = scheduler.leader().await? {
    ///     println!("{:?} has led for {:?}", leader.label, leader.held_for);
    ///     assert_eq!(leader.fence, lead.fence()); // this process leads
    /// }
    /// # Ok(()) }
    /// ```
    pub fn leader(&self) -> impl Future<Output = Result<Option<Holder>>> + Send + use<> {
        let status = self.lock.status();
        async move { Ok(status.await?.holder) }
    }

    /// One term after the other, until the work ends or the shutdown comes.
    async fn terms<S, F, W>(self, shutdown: S, mut work: F) -> Result<ControlFlow<S::Output, W::Output>>
    where
        S: Future,
        F: FnMut(HoldToken) -> W,
        W: Future,
    {
        let mut shutdown = pin!(shutdown);
        let (mut backoff, runtime) = (Backoff::new(), &self.lock.0.client().runtime);
        loop {
            let campaigned = tokio::select! {
                biased;
                why = &mut shutdown => return Ok(ControlFlow::Break(why)),
                campaigned = self.campaign() => campaigned,
            };
            match campaigned {
                Ok(lead) => {
                    let began = Instant::now();
                    let ended = tokio::select! {
                        biased;
                        why = &mut shutdown => Ok(ControlFlow::Break(why)),
                        lost = lead.lost() => Err(lost),
                        output = work(lead.token()) => Ok(ControlFlow::Continue(output)),
                    };
                    match ended {
                        Ok(ControlFlow::Continue(output)) => {
                            let resigned = lead.release_after_work().await;
                            if let Err(lost) = resigned {
                                tracing::warn!(%lost, "the lead was lost before its work ended");
                            }
                            return Ok(ControlFlow::Continue(output));
                        }
                        Ok(shut_down) => {
                            if let Err(error) = lead.release().await {
                                let name = self.name();
                                tracing::warn!(lock.name = name, %error, "the resignation was not confirmed");
                            }
                            return Ok(shut_down);
                        }
                        Err(_) => backoff.ended_after(began.elapsed()),
                    }
                }
                Err(error) if error.is_transient() => {
                    tracing::warn!(lock.name = self.name(), %error, "a campaign failed, and is repeated");
                }
                Err(error) => return Err(error),
            }
            let pause = pin!(backoff.pause());
            tokio::select! {
                biased;
                why = &mut shutdown => return Ok(ControlFlow::Break(why)),
                () = runtime.serves(pause) => {}
            }
        }
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership").field("lock", &self.lock).finish()
    }
}
