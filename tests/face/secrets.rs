//! Passwords never appear in errors, `Debug` output or log lines, including those of dependencies.

use std::fmt::{Debug, Write};
use std::sync::Mutex;
use std::time::Duration;

use fairlock::spin::SpinLock;
use fairlock::{Credentials, Error, LockManager};
use fairlock_testkit::{Server, eventually};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

const PASSWORD: &str = "c0rrect-h0rse";
const SECOND: Duration = Duration::from_secs(1);

/// Everything that `tracing` and `log` received, at every level.
static LINES: Mutex<String> = Mutex::new(String::new());

fn said(what: &str) -> bool {
    LINES.lock().unwrap().contains(what)
}

struct Recorder;

struct Line;

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        writeln!(LINES.lock().unwrap(), "{field}={value:?}").unwrap();
    }
}

impl<S: Subscriber> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        attributes.record(&mut Line);
    }

    fn on_record(&self, _: &Id, values: &Record<'_>, _: Context<'_, S>) {
        values.record(&mut Line);
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        event.record(&mut Line);
    }
}

impl log::Log for Recorder {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        writeln!(LINES.lock().unwrap(), "{}: {}", record.target(), record.args()).unwrap();
    }

    fn flush(&self) {}
}

/// This is a single test, because it records everything that the process logs.
#[tokio::test]
async fn a_password_is_never_shown() {
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Recorder)).unwrap();
    log::set_logger(&Recorder).unwrap();
    log::set_max_level(log::LevelFilter::Trace);

    let server = Server::start().await;
    let password = format!(">{PASSWORD}");
    let words = ["ACL", "SETUSER", "locks", "on", &password, "~*", "&*", "+@all"];
    assert_eq!(server.command(&words).await.text(), "OK");
    let url = server.url_as("locks", PASSWORD);

    // First everything works; then the connection breaks and is opened again.
    let locks = LockManager::builder()
        .server_timeout(SECOND)
        .connect(&url)
        .await
        .unwrap();
    let lock = locks.lock("a");
    let guard = lock.acquire().await.unwrap();
    let shown = format!(
        "{locks:?} {:?} {lock:?} {guard:?} {:?}",
        LockManager::builder(),
        SpinLock::new(&locks, "a")
    );
    assert!(!shown.contains(PASSWORD), "{shown}");
    let waiting = tokio::spawn(lock.acquire());
    server.kill_clients().await;
    eventually("the command connection is back", 10 * SECOND, async || {
        said("the command connection is back")
    })
    .await;
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();

    // The password changes while the client is connected. The client comes back with the old one.
    server
        .command(&["ACL", "SETUSER", "locks", "resetpass", ">another"])
        .await;
    server.kill_clients().await;
    let refused = lock.acquire().await.unwrap_err();
    unshown(&refused);

    // A provider returns the password, first the right one, and then a wrong one when it is asked again.
    let rotating = LockManager::builder()
        .server_timeout(SECOND)
        .credentials(async |_| {
            let credentials = Credentials::new("locks", PASSWORD).lifetime(SECOND);
            assert!(!format!("{credentials:?}").contains(PASSWORD));
            Ok::<_, String>(credentials)
        });
    assert!(!format!("{rotating:?}").contains(PASSWORD));
    unshown(&rotating.clone().connect(&server.url()).await.unwrap_err());
    server
        .command(&["ACL", "SETUSER", "locks", "resetpass", &password])
        .await;
    let locks = rotating.connect(&server.url()).await.unwrap();
    assert!(!format!("{locks:?}").contains(PASSWORD));
    server
        .command(&["ACL", "SETUSER", "locks", "resetpass", ">another"])
        .await;
    eventually("the credentials are not renewed", 10 * SECOND, async || {
        said("the credentials are not renewed yet")
    })
    .await;

    // A new client is refused, or finds no server, or has a URL that cannot be parsed.
    let refused = LockManager::connect(&url).await.unwrap_err();
    assert!(matches!(refused, Error::Refused(_)), "{refused:?}");
    unshown(&refused);
    for url in [
        format!("redis://locks:{PASSWORD}@127.0.0.1:1"),
        format!("redis://locks:{PASSWORD}@127.0.0.1:port"),
        format!("redis://locks:{PASSWORD}@{PASSWORD}@127.0.0.1:1"),
        format!("rediss://locks:{PASSWORD}@127.0.0.1:1"),
        format!("locks:{PASSWORD}@127.0.0.1"),
        format!("redis://127.0.0.1:1?password={PASSWORD}"),
        // fred asks sentinels.
        format!(
            "redis-sentinel://locks:{PASSWORD}@127.0.0.1:{}?sentinelServiceName=main",
            server.port()
        ),
    ] {
        let builder = LockManager::builder().server_timeout(SECOND / 5);
        if let Err(error) = builder.connect(&url).await {
            unshown(&error);
        }
    }
    assert!(said("fred::"), "the logs of dependencies are recorded too");

    let lines = LINES.lock().unwrap();
    let shown: Vec<_> = lines.lines().filter(|line| line.contains(PASSWORD)).collect();
    assert!(shown.is_empty(), "{shown:#?}");
}

#[track_caller]
fn unshown(error: &Error) {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        write!(text, " {inner} {inner:?}").unwrap();
        source = inner.source();
    }
    assert!(!text.contains(PASSWORD), "{text}");
}
