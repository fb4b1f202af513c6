//! The names of spans and fields are part of the interface.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fairlock::{Error, LockManager};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

type Fields = BTreeMap<&'static str, String>;

/// What was recorded: the name and fields of each span once it is closed, and the level and fields of each
/// event.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<(String, Fields)>>>);

struct Collect<'a>(&'a mut Fields);

impl Visit for Collect<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::new();
        attributes.record(&mut Collect(&mut fields));
        context.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        values.record(&mut Collect(span.extensions_mut().get_mut::<Fields>().unwrap()));
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::new();
        event.record(&mut Collect(&mut fields));
        self.0
            .lock()
            .unwrap()
            .push((event.metadata().level().to_string(), fields));
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        let fields = span.extensions().get::<Fields>().cloned().unwrap_or_default();
        self.0.lock().unwrap().push((span.name().to_owned(), fields));
    }
}

impl Recorder {
    fn all(&self, name: &str) -> Vec<Fields> {
        let seen = self.0.lock().unwrap();
        seen.iter()
            .filter(|(of, _)| of == name)
            .map(|(_, fields)| fields.clone())
            .collect()
    }
}

/// Records the work on a paused clock, for locks in memory.
fn recorded(work: impl AsyncFnOnce()) -> Recorder {
    recorded_in(true, work)
}

/// Records the work on one thread, so that nothing is missed.
fn recorded_in(paused_time: bool, work: impl AsyncFnOnce()) -> Recorder {
    let recorder = Recorder::default();
    recorded_by(&recorder, paused_time, work);
    recorder
}

fn recorded_by(recorder: &Recorder, paused_time: bool, work: impl AsyncFnOnce()) {
    let subscriber = tracing_subscriber::registry().with(recorder.clone());
    tracing::subscriber::with_default(subscriber, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(paused_time)
            .build()
            .unwrap();
        runtime.block_on(work());
    });
}

#[test]
fn spans_tell_which_lock_which_fence_how_it_ended_and_how_long_it_took() {
    let mut fence = String::new();
    let recorder = recorded(async || {
        let locks = LockManager::in_memory();
        let guard = locks.lock("orders:42").acquire().await.unwrap();
        fence = guard.fence().to_string();
        let wait = Duration::from_millis(1500);
        let timeout = locks.lock("orders:42").acquire_timeout(wait).await;
        assert!(matches!(timeout, Err(Error::Timeout { .. })), "{timeout:?}");
        assert!(locks.lock("orders:42").try_acquire().await.is_err());
        assert!(locks.lock("").try_acquire().await.is_err());
        drop(locks.lock("job").group("nightly").try_acquire().await.unwrap());
        // Long enough for a renewal.
        tokio::time::sleep(Duration::from_secs(15)).await;
        guard.release().await.unwrap();
    });

    let acquires = recorder.all("fairlock.acquire");
    assert_eq!(acquires.len(), 2);
    assert_eq!(acquires[0]["lock.name"], "\"orders:42\"");
    assert_eq!(acquires[0]["lock.fence"], fence);
    assert_eq!(acquires[0]["lock.outcome"], "\"acquired\"");
    assert_eq!(acquires[0]["lock.group"], "\"orders\"");
    assert_eq!(acquires[0]["lock.wait_ms"], "0");
    assert!(!acquires[0].contains_key("error.type") && !acquires[0].contains_key("otel.status_code"));
    assert_eq!(acquires[1]["lock.outcome"], "\"timeout\"");
    assert_eq!(acquires[1]["error.type"], "\"timeout\"");
    assert_eq!(acquires[1]["otel.status_code"], "\"ERROR\"");
    assert!(acquires[1]["lock.wait_ms"].parse::<u64>().unwrap() >= 1500);

    let tries = recorder.all("fairlock.try_acquire");
    let outcomes = tries.iter().map(|span| span["lock.outcome"].as_str());
    assert_eq!(
        outcomes.collect::<Vec<_>>(),
        ["\"busy\"", "\"error\"", "\"acquired\""]
    );
    assert!(
        !tries[0].contains_key("error.type"),
        "a lock that is busy is no error"
    );
    assert_eq!(
        (&*tries[1]["error.type"], &*tries[1]["otel.status_code"]),
        ("\"invalid\"", "\"ERROR\"")
    );
    assert_eq!(tries[2]["lock.group"], "\"nightly\"");

    let renewals = recorder.all("fairlock.renew");
    assert!(!renewals.is_empty());
    assert_eq!(renewals[0]["lock.fence"], fence);

    let releases = recorder.all("fairlock.release");
    assert_eq!(releases.len(), 1);
    assert_eq!(releases[0]["lock.fence"], fence);
    assert_eq!(releases[0]["lock.outcome"], "\"released\"");
}

#[cfg(all(unix, feature = "redis"))]
#[test]
fn the_span_of_a_renewal_says_which_server_was_asked_and_a_failed_release_why() {
    let recorder = Recorder::default();
    let mut address = String::new();
    recorded_by(&recorder, false, async || {
        let server = fairlock_testkit::Server::start().await;
        address = format!("127.0.0.1:{}", server.port());
        let locks = LockManager::connect(&server.url()).await.unwrap();
        let guard = locks.lock("orders:42").acquire().await.unwrap();
        guard.renew().await.unwrap();
        assert!(
            locks
                .lock("orders:42")
                .force_release(guard.fence())
                .await
                .unwrap()
        );
        assert!(guard.release().await.is_err());
    });
    let renewals = recorder.all("fairlock.renew");
    assert_eq!(renewals[0]["server.address"], format!("{address:?}"));
    let releases = recorder.all("fairlock.release");
    assert_eq!(releases[0]["error.type"], "\"lost\"");
}

#[test]
fn the_span_of_a_turn_says_whether_the_lock_was_handed_over_in_this_process() {
    let recorder = recorded(async || {
        let locks = LockManager::in_memory();
        let lock = locks.lock("counter").local_handoffs(2);
        // The first hold of a lock has one turn.
        drop(locks.lock("counter").try_acquire().await.unwrap());
        tokio::time::sleep(Duration::from_millis(5)).await;
        let guard = lock.acquire().await.unwrap();
        let (next, ()) = tokio::join!(lock.acquire(), async {
            tokio::task::yield_now().await;
            guard.release().await.unwrap();
        });
        next.unwrap().release().await.unwrap();
    });
    let acquires = recorder.all("fairlock.acquire");
    let handed = acquires[acquires.len() - 2..]
        .iter()
        .map(|span| span.get("lock.local_handoff").cloned());
    assert_eq!(handed.collect::<Vec<_>>(), [None, Some("true".to_owned())]);
}

#[test]
fn a_lost_lease_warns() {
    let recorder = recorded(async || {
        let locks = LockManager::in_memory();
        let lock = locks
            .lock("report")
            .lease(Duration::from_secs(3))
            .auto_renew(false);
        let guard = lock.acquire().await.unwrap();
        let next = lock.acquire().await.unwrap();
        assert!(guard.is_lost());
        next.release().await.unwrap();
    });

    let warnings = recorder.all(Level::WARN.as_str());
    let of = |message: &str| {
        let found = warnings.iter().find(|fields| fields["message"] == message);
        found
            .unwrap_or_else(|| panic!("no {message:?} in {warnings:?}"))
            .clone()
    };
    assert_eq!(of("lease lost")["lock.name"], "report");
}

/// Race: The server may evict locks.
#[cfg(all(unix, feature = "redis"))]
#[test]
fn a_server_that_may_evict_locks_is_warned_of() {
    for (policy, warns) in [("volatile-lru", true), ("noeviction", false)] {
        let recorder = recorded_in(false, async || {
            let server = fairlock_testkit::Server::builder().config("maxmemory-policy", policy);
            let server = server.start().await;
            let locks = LockManager::connect(&server.url()).await.unwrap();
            locks.close().await.unwrap();
        });
        let warnings = recorder.all(Level::WARN.as_str());
        let told = warnings.iter().any(|fields| fields["message"].contains("evict"));
        assert_eq!(told, warns, "{policy}: {warnings:?}");
    }
}

/// Nobody calls the client, and `connect_lazy` has returned.
#[cfg(all(unix, feature = "redis"))]
#[test]
fn a_server_that_stays_away_is_warned_of() {
    let port = fairlock_testkit::free_port();
    for url in [
        format!("redis://127.0.0.1:{port}"),
        format!("redis-cluster://127.0.0.1:{port}"),
    ] {
        let recorder = Recorder::default();
        let told = recorder.clone();
        recorded_by(&recorder, false, async || {
            let patience = Duration::from_millis(200);
            let locks = LockManager::builder().server_timeout(patience).connect_lazy(&url);
            let _locks = locks.unwrap();
            let says = || {
                told.all("WARN")
                    .into_iter()
                    .find(|fields| fields["message"].contains("still no connection"))
            };
            fairlock_testkit::eventually("told", Duration::from_secs(20), async || says().is_some()).await;
            let fields = says().unwrap();
            assert!(fields["server"].contains(&port.to_string()), "{fields:?}");
            assert!(fields["error"].contains("refused"), "{fields:?}");
        });
    }
}
