//! Leaders: one leads at a time, in order of arrival, and its term ends with its lead.

use std::future::{pending, poll_fn};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use fairlock::{
    Error, Fence, HoldEnd, HoldToken, Holder, Leadership, LockManager, LockStream, Result, Status,
};
use futures_util::{FutureExt, StreamExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::backend::{Backend, in_a_quorum, on_each_backend, with_local_handoffs};
use crate::common::lost;

on_each_backend! {
    those_that_campaign_lead_one_at_a_time_in_order_of_arrival,
    a_resignation_hands_the_lead_over_at_once,
    a_term_ends_with_its_lead,
    a_term_ends_when_the_lead_is_taken_away,
    work_that_ends_resigns_and_returns_its_output,
    a_lost_lead_stops_the_work_and_comes_back_under_a_larger_fence,
    a_term_of_limited_length_goes_to_the_next,
    a_shutdown_stops_the_work_and_then_resigns,
    a_shutdown_ends_a_campaign,
    a_dropped_run_drops_its_work_before_it_resigns,
    a_campaign_dropped_at_any_poll_leaves_nothing,
    a_run_dropped_at_any_poll_leaves_nothing,
    a_failed_campaign_is_repeated,
    a_closed_manager_ends_a_run,
    work_that_ends_as_its_lead_is_lost_is_not_repeated,
    others_see_who_leads,
    a_watch_tells_each_change_once,
    a_watch_tells_soon_that_a_lease_has_ended,
    a_watch_loses_nothing_when_its_future_is_dropped,
    a_watch_ends_with_its_manager,
    settings_that_are_not_allowed_are_refused,
}

with_local_handoffs! {
    those_that_campaign_lead_one_at_a_time_in_order_of_arrival,
    a_resignation_hands_the_lead_over_at_once,
    a_term_ends_with_its_lead,
    a_lost_lead_stops_the_work_and_comes_back_under_a_larger_fence,
    others_see_who_leads,
}

in_a_quorum! {
    those_that_campaign_lead_one_at_a_time_in_order_of_arrival,
    a_resignation_hands_the_lead_over_at_once,
    a_term_ends_with_its_lead,
    a_term_ends_when_the_lead_is_taken_away,
    work_that_ends_resigns_and_returns_its_output,
    a_lost_lead_stops_the_work_and_comes_back_under_a_larger_fence,
    a_term_of_limited_length_goes_to_the_next,
    a_shutdown_stops_the_work_and_then_resigns,
    a_shutdown_ends_a_campaign,
    a_dropped_run_drops_its_work_before_it_resigns,
    a_campaign_dropped_at_any_poll_leaves_nothing,
    a_run_dropped_at_any_poll_leaves_nothing,
    others_see_who_leads,
    a_watch_tells_each_change_once,
    a_watch_ends_with_its_manager,
    settings_that_are_not_allowed_are_refused,
}

/// Much shorter than a lease, a claim window or a waitlist's timer.
const SOON: Duration = Duration::from_millis(1500);
const LONG: Duration = Duration::from_secs(60);
/// A future that is not polled for this long is not polled again.
const QUIET: Duration = Duration::from_millis(60);
/// How often the watches ask.
const EVERY: Duration = Duration::from_millis(20);

fn leadership(locks: &LockManager) -> Leadership {
    locks.leadership("a")
}

/// Takes the lead away, as an operator does.
async fn depose(locks: &LockManager, fence: Fence) {
    assert!(locks.lock("a").force_release(fence).await.unwrap());
}

/// Checks that the lead is free, and leaves it free.
async fn assert_free(locks: &LockManager, name: &str) {
    let lead = timeout(SOON, locks.leadership(name).campaign())
        .await
        .expect("free")
        .unwrap();
    lead.release().await.unwrap();
    let status = locks.lock(name).status().await.unwrap();
    assert_eq!((status.holder, status.waiting), (None, 0));
}

/// A process that leads again and again, and what it tells of its terms.
struct Follower {
    terms: mpsc::UnboundedReceiver<HoldToken>,
    run: JoinHandle<Result<()>>,
}

impl Follower {
    fn start(leadership: &Leadership) -> Follower {
        let (told, terms) = mpsc::unbounded_channel();
        let run = leadership.run(move |term| {
            told.send(term).unwrap();
            pending()
        });
        Follower {
            terms,
            run: tokio::spawn(run),
        }
    }

    async fn term(&mut self) -> HoldToken {
        timeout(LONG, self.terms.recv()).await.expect("a term").unwrap()
    }

    async fn stop(self) {
        self.run.abort();
        assert!(self.run.await.is_err());
    }
}

async fn those_that_campaign_lead_one_at_a_time_in_order_of_arrival(backend: Backend) {
    let clients = backend.clients(4).await;
    let leading = Arc::new(AtomicU64::new(0));
    let (told, mut order) = mpsc::unbounded_channel();
    let first = leadership(&clients[0]).campaign().await.unwrap();
    let mut fences = vec![first.fence()];
    let mut tasks = Vec::new();
    for (n, locks) in clients.iter().enumerate() {
        let (leading, told, campaign) = (Arc::clone(&leading), told.clone(), leadership(locks).campaign());
        tasks.push(tokio::spawn(async move {
            let lead = campaign.await.unwrap();
            assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "two leaders");
            told.send((n, lead.fence())).unwrap();
            sleep(Duration::from_millis(5)).await;
            assert_eq!(leading.fetch_sub(1, Ordering::SeqCst), 1, "two leaders");
            lead.check().unwrap();
            lead.release().await.unwrap();
        }));
        let waiting = u64::try_from(n).unwrap() + 1;
        backend.queued(&clients[0].lock("a"), waiting, n + 1).await;
    }
    first.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    for n in 0..clients.len() {
        let (leader, fence) = order.recv().await.unwrap();
        assert_eq!(leader, n);
        fences.push(fence);
    }
    assert!(
        fences.is_sorted_by(|earlier, later| earlier < later),
        "{fences:?}"
    );
}

async fn a_resignation_hands_the_lead_over_at_once(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lead = leadership(&here).campaign().await.unwrap();
    let next = tokio::spawn(leadership(&there).campaign());
    let here_too = tokio::spawn(leadership(&here).campaign());
    backend.queued(&here.lock("a"), 2, 2).await;
    let before = lead.fence();
    lead.release().await.unwrap();
    // They queue at the same time, so either is the first.
    let (first, last) = tokio::join!(timeout(SOON, next), timeout(SOON, here_too));
    let (first, last) = match (first, last) {
        (Ok(lead), Err(_)) | (Err(_), Ok(lead)) => (lead.unwrap().unwrap(), None::<()>),
        other => panic!("not one leader: {other:?}"),
    };
    assert!(last.is_none() && first.fence() > before);
    assert_eq!(here.stats().local_handoffs, 0);
    drop(first);
}

async fn a_term_ends_with_its_lead(backend: Backend) {
    let locks = backend.client().await;
    for is_dropped in [false, true] {
        let lead = leadership(&locks).campaign().await.unwrap();
        let (term, clone) = (lead.token(), lead.token().clone());
        assert_eq!((term.fence(), term.name()), (lead.fence(), "a"));
        assert_eq!(lead.run(async { 7 }).await.unwrap(), 7);
        assert_eq!(term.clone().run(async { 7 }).await.unwrap(), 7);
        lead.renew().await.unwrap();
        let task = tokio::spawn(term.clone().run(pending::<()>()));
        let watcher = tokio::spawn(clone.lost());
        assert!(term.lost().now_or_never().is_none());
        term.check().unwrap();
        if is_dropped {
            drop(lead);
        } else {
            lead.release().await.unwrap();
        }
        assert_eq!(lost(term.check()).reason, HoldEnd::Released);
        let lost = timeout(SOON, watcher).await.expect("told").unwrap();
        assert_eq!(lost, HoldEnd::Released);
        let stopped = timeout(SOON, task).await.expect("stopped").unwrap();
        assert!(stopped.is_err(), "{stopped:?}");
        let begun = term.run(async { panic!("begun after the term") }).await;
        assert!(begun.is_err());
    }
    assert_free(&locks, "a").await;
}

async fn a_term_ends_when_the_lead_is_taken_away(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let leadership = leadership(&here).lease(backend.short_lease());
    let lead = leadership.campaign().await.unwrap();
    let term = lead.token();
    depose(&there, lead.fence()).await;
    let lost = timeout(LONG, term.lost()).await.expect("told");
    assert_eq!(lost, HoldEnd::Taken);
    assert!(lead.check().is_err() && term.check().is_err());
    assert!(lead.run(async {}).await.is_err());
    assert!(matches!(lead.release().await, Err(Error::Lost(_))));
}

async fn work_that_ends_resigns_and_returns_its_output(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let name = String::from("borrowed");
    let output = leadership(&here)
        .run(async |term| {
            let leader = leadership(&there).leader().await.unwrap().unwrap();
            assert_eq!(leader.fence, term.fence());
            name.len()
        })
        .await;
    assert_eq!(output.unwrap(), 8);
    let failed = leadership(&here).run(async |_| Err::<(), _>("no ink")).await;
    assert_eq!(failed.unwrap(), Err("no ink"));
    let until = leadership(&here).run_until(pending::<()>(), async |_| 7).await;
    assert_eq!(until.unwrap(), Some(7));
    assert_eq!(leadership(&there).leader().await.unwrap(), None);
}

/// Sets a flag when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

async fn a_lost_lead_stops_the_work_and_comes_back_under_a_larger_fence(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let dropped = Arc::new(AtomicBool::new(false));
    let (told, mut terms) = mpsc::unbounded_channel();
    let flag = Arc::clone(&dropped);
    let run = leadership(&here).lease(backend.short_lease()).run(move |term| {
        let work = Dropped(Arc::clone(&flag));
        told.send(term).unwrap();
        async move {
            let _work = work;
            pending::<()>().await;
        }
    });
    let run = tokio::spawn(run);
    let mut last: Option<HoldToken> = None;
    for _ in 0..3 {
        let term = timeout(LONG, terms.recv()).await.expect("a term").unwrap();
        if let Some(last) = last {
            assert!(dropped.swap(false, Ordering::SeqCst), "the work goes on");
            assert!(last.check().is_err(), "the former term goes on");
            assert!(last.fence() < term.fence());
        }
        depose(&there, term.fence()).await;
        last = Some(term);
    }
    run.abort();
}

async fn a_term_of_limited_length_goes_to_the_next(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let max_hold = Duration::from_millis(500);
    let mut stuck = Follower::start(&leadership(&here).max_hold(max_hold));
    let first = stuck.term().await;
    let mut other = Follower::start(&leadership(&there).max_hold(max_hold));
    let second = other.term().await;
    assert_eq!(lost(first.check()).reason, HoldEnd::MaxHold);
    let third = stuck.term().await;
    assert!(first.fence() < second.fence() && second.fence() < third.fence());
    stuck.stop().await;
    other.stop().await;
}

async fn a_shutdown_stops_the_work_and_then_resigns(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let dropped = Arc::new(AtomicBool::new(false));
    let (shut_down, shutdown) = oneshot::channel::<()>();
    let (told, mut terms) = mpsc::unbounded_channel();
    let work = Dropped(Arc::clone(&dropped));
    let mut work = Some(work);
    let run = leadership(&here).run_until(shutdown, move |term| {
        told.send(term).unwrap();
        let work = work.take();
        async move {
            let _work = work;
            pending::<()>().await;
        }
    });
    let run = tokio::spawn(run);
    let term = timeout(LONG, terms.recv()).await.expect("a term").unwrap();
    let next = tokio::spawn(leadership(&there).campaign());
    backend.queued(&here.lock("a"), 1, 1).await;
    shut_down.send(()).unwrap();
    assert!(run.await.unwrap().unwrap().is_none());
    assert!(dropped.load(Ordering::SeqCst));
    assert_eq!(lost(term.check()).reason, HoldEnd::Released);
    // The resignation is confirmed, so the next one leads already.
    let leader = leadership(&here)
        .leader()
        .await
        .unwrap()
        .expect("the next leader");
    assert!(leader.fence > term.fence());
    drop(timeout(SOON, next).await.expect("leads").unwrap().unwrap());
}

async fn a_shutdown_ends_a_campaign(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lead = leadership(&here).campaign().await.unwrap();
    let (shut_down, shutdown) = oneshot::channel::<()>();
    let run = leadership(&there).run_until(shutdown, async |_| panic!("two leaders"));
    let run = tokio::spawn(run);
    backend.queued(&here.lock("a"), 1, 1).await;
    shut_down.send(()).unwrap();
    let stopped: Option<()> = timeout(SOON, run).await.expect("stopped").unwrap().unwrap();
    assert!(stopped.is_none());
    lead.release().await.unwrap();
    assert_free(&there, "a").await;
}

async fn a_dropped_run_drops_its_work_before_it_resigns(backend: Backend) {
    struct Order(HoldToken, Arc<Mutex<Vec<bool>>>);
    impl Drop for Order {
        fn drop(&mut self) {
            self.1.lock().unwrap().push(self.0.check().is_ok());
        }
    }
    let (here, there) = (backend.client().await, backend.client().await);
    let led_at_drop = Arc::new(Mutex::new(Vec::new()));
    let (told, begun) = oneshot::channel();
    let mut told = Some(told);
    let seen = Arc::clone(&led_at_drop);
    let run = tokio::spawn(leadership(&here).run(move |term| {
        let work = Order(term, Arc::clone(&seen));
        let _ = told.take().unwrap().send(());
        async move {
            let _work = work;
            pending::<()>().await;
        }
    }));
    begun.await.unwrap();
    let next = tokio::spawn(leadership(&there).campaign());
    backend.queued(&here.lock("a"), 1, 1).await;
    run.abort();
    drop(timeout(SOON, next).await.expect("leads").unwrap().unwrap());
    assert_eq!(*led_at_drop.lock().unwrap(), [true]);
}

/// Polls a future this often, and drops it. Returns what it returned, and whether it was polled that often.
async fn dropped_at_poll<F: Future>(last: usize, future: F) -> (Option<F::Output>, bool) {
    let mut future = Box::pin(future);
    let mut polls = 0;
    let polled = poll_fn(|context| {
        polls += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polls == last => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    });
    match timeout(QUIET, polled).await {
        Ok(output) => (output, true),
        Err(_) => (None, false),
    }
}

async fn a_campaign_dropped_at_any_poll_leaves_nothing(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    for poll in 1.. {
        let name = format!("free{poll}");
        let (lead, _) = dropped_at_poll(poll, here.leadership(&name).campaign()).await;
        let finished = lead.is_some();
        drop(lead);
        assert_free(&there, &name).await;
        if finished {
            break;
        }
    }
    for poll in 1.. {
        let name = format!("led{poll}");
        let lead = there.leadership(&name).campaign().await.unwrap();
        let (two, polled) = dropped_at_poll(poll, here.leadership(&name).campaign()).await;
        assert!(two.is_none(), "two leaders");
        lead.release().await.unwrap();
        assert_free(&there, &name).await;
        if !polled {
            break;
        }
    }
    assert_eq!((here.stats().waiting, here.stats().held), (0, 0));
}

/// The run goes through a campaign, work, and a resignation.
async fn a_run_dropped_at_any_poll_leaves_nothing(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    for poll in 1.. {
        let name = format!("a{poll}");
        let run = here
            .leadership(&name)
            .run(async |_| tokio::task::yield_now().await);
        let (ended, _) = dropped_at_poll(poll, run).await;
        assert_free(&there, &name).await;
        if ended.is_some() {
            break;
        }
    }
    assert_eq!((here.stats().waiting, here.stats().held), (0, 0));
}

/// A full client stands for all errors that time alone can end.
async fn a_failed_campaign_is_repeated(backend: Backend) {
    let there = backend.client().await;
    let here = backend.client_with(|settings| settings.max_waiters(1)).await;
    let guard = there.lock("b").acquire().await.unwrap();
    let filling = tokio::spawn(here.lock("b").acquire());
    backend.queued(&there.lock("b"), 1, 1).await;
    assert!(matches!(
        leadership(&here).campaign().await,
        Err(Error::QueueFull { .. })
    ));
    let run = tokio::spawn(leadership(&here).run(async |_| 7));
    // This is several pauses.
    sleep(Duration::from_millis(200)).await;
    assert!(!run.is_finished());
    guard.release().await.unwrap();
    filling.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(timeout(LONG, run).await.expect("led").unwrap().unwrap(), 7);
}

async fn a_closed_manager_ends_a_run(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let _lead = leadership(&there).campaign().await.unwrap();
    let run = tokio::spawn(leadership(&here).run(async |_| panic!("two leaders")));
    backend.queued(&there.lock("a"), 1, 1).await;
    here.close().await.unwrap();
    let ended: Result<()> = timeout(SOON, run).await.expect("ended").unwrap();
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
}

async fn work_that_ends_as_its_lead_is_lost_is_not_repeated(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let mut runs = 0;
    let output = leadership(&here).run(|term| {
        runs += 1;
        let there = there.clone();
        async move { depose(&there, term.fence()).await }
    });
    timeout(LONG, output).await.expect("ended").unwrap();
    assert_eq!(runs, 1);
}

async fn labelled(backend: &Backend, label: &str) -> LockManager {
    backend.client_with(|settings| settings.label(label)).await
}

/// Waits until it is known by its label who leads.
async fn leader_by_label(leadership: &Leadership) -> Holder {
    loop {
        match leadership.leader().await.unwrap() {
            Some(leader) if leader.label.is_some() => return leader,
            _ => sleep(EVERY).await,
        }
    }
}

/// Who leads, once that changes.
async fn changed(watch: &mut LockStream<Status>) -> Result<Option<Holder>> {
    let status = watch.next().await.unwrap_or(Err(Error::Closed))?;
    Ok(status.holder)
}

async fn others_see_who_leads(backend: Backend) {
    let (here, there) = (
        labelled(&backend, "here").await,
        labelled(&backend, "there").await,
    );
    assert_eq!(leadership(&there).leader().await.unwrap(), None);
    let lead = leadership(&here).campaign().await.unwrap();
    let leader = timeout(LONG, leader_by_label(&leadership(&there))).await.unwrap();
    assert_eq!(
        (leader.label.as_deref(), leader.fence),
        (Some("here"), lead.fence())
    );
    assert!(leader.ttl <= lead.lease().length && !leader.ttl.is_zero());
    // It is a lock, in lists and for operators.
    let listed: Vec<_> = there.list("*").collect().await;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].as_ref().unwrap().name, "a");
    lead.release().await.unwrap();
    assert_eq!(leadership(&there).leader().await.unwrap(), None);
}

async fn a_watch_tells_each_change_once(backend: Backend) {
    let (here, there) = (
        labelled(&backend, "here").await,
        labelled(&backend, "there").await,
    );
    // The labels are known to the server.
    for locks in [&here, &there] {
        let lead = leadership(locks).campaign().await.unwrap();
        timeout(LONG, leader_by_label(&leadership(locks))).await.unwrap();
        lead.release().await.unwrap();
    }
    let mut watch = there.lock("a").watch(EVERY);
    assert_eq!(timeout(LONG, changed(&mut watch)).await.unwrap().unwrap(), None);
    assert!(
        timeout(10 * EVERY, changed(&mut watch)).await.is_err(),
        "nothing changes"
    );
    for locks in [&here, &there, &here] {
        let lead = leadership(locks).campaign().await.unwrap();
        let leader = timeout(LONG, changed(&mut watch))
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert_eq!(leader.fence, lead.fence());
        assert!(leader.label.is_some());
        assert!(
            timeout(10 * EVERY, changed(&mut watch)).await.is_err(),
            "nothing changes"
        );
        lead.release().await.unwrap();
        let free = timeout(LONG, watch.next()).await.unwrap().unwrap();
        assert_eq!(free.unwrap().holder, None);
    }
}

/// The watch asks once in a minute. It asks when the lease ends, too.
async fn a_watch_tells_soon_that_a_lease_has_ended(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let lease = Duration::from_secs(2);
    let dead = here
        .lock("a")
        .lease(lease)
        .auto_renew(false)
        .acquire()
        .await
        .unwrap();
    let mut watch = there.lock("a").watch(LONG);
    let began = Instant::now();
    while timeout(LONG, changed(&mut watch))
        .await
        .unwrap()
        .unwrap()
        .is_some()
    {}
    let took = began.elapsed();
    assert!(took < lease + backend.slack(), "{took:?}");
    drop(dead);
}

/// The future is dropped right after each of its polls, as by a `select!` whose other branches are faster.
async fn a_watch_loses_nothing_when_its_future_is_dropped(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let mut watch = there.lock("a").watch(EVERY);
    let mut fence = async || {
        let began = Instant::now();
        loop {
            if let Some(changed) = changed(&mut watch).now_or_never() {
                return changed.unwrap().map(|leader| leader.fence);
            }
            assert!(began.elapsed() < LONG, "nothing is told");
            sleep(Duration::from_millis(1)).await;
        }
    };
    assert_eq!(fence().await, None);
    let lead = leadership(&here).campaign().await.unwrap();
    assert_eq!(fence().await, Some(lead.fence()));
}

async fn a_watch_ends_with_its_manager(backend: Backend) {
    let locks = backend.client().await;
    let mut watch = locks.lock("a").watch(EVERY);
    changed(&mut watch).await.unwrap();
    locks.close().await.unwrap();
    for _ in 0..2 {
        let closed = timeout(LONG, changed(&mut watch)).await.expect("an error");
        assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
    }
    assert!(watch.next().await.is_none());
}

async fn settings_that_are_not_allowed_are_refused(backend: Backend) {
    let locks = backend.client().await;
    let leadership = leadership(&locks);
    let refused = |error: Error, part: &str| {
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
        assert!(error.to_string().contains(part), "{error}");
    };
    refused(
        leadership
            .clone()
            .lease(Duration::ZERO)
            .campaign()
            .await
            .unwrap_err(),
        "lease 0ns: must be from 100ms",
    );
    let never = leadership.clone().max_hold(Duration::ZERO).run(async |_| ());
    refused(never.await.unwrap_err(), "max_hold 0ns: must be at least 100ms");
    let nameless = locks.leadership("").run(async |_| ()).await;
    refused(nameless.unwrap_err(), "name");
    for (every, shown) in [(Duration::from_millis(9), "9ms"), (LONG * 1441, "86460s")] {
        let mut watch = locks.lock("a").watch(every);
        let error = changed(&mut watch).await.unwrap_err();
        refused(error, &format!("every {shown}: must be from 10ms to 86400s"));
        assert!(matches!(changed(&mut watch).await, Err(Error::Closed)));
    }
    assert!(matches!(
        changed(&mut locks.lock("").watch(EVERY)).await,
        Err(Error::Invalid(_))
    ));
    assert_eq!(locks.stats().acquired, 0);
}
