//! How soon calls end while the server does not answer, with default settings, as the page says.

use std::time::{Duration, Instant};

use fairlock::{Error, LockManager};
use fairlock_testkit::{Server, eventually};
use futures_util::future::{BoxFuture, join_all};

use super::scene::SECOND;

const PAGE: &str = include_str!("../../../docs/operations.md");

/// The calls of a row, with what is said of one that is not queued yet, and of one that was queued.
type Row = (Vec<&'static str>, [Option<Cell>; 2]);

/// How soon a call ends, and how.
#[derive(Clone, Copy)]
struct Cell {
    least: Duration,
    most: Duration,
    is_timeout: bool,
}

/// What the table says of each call.
fn table() -> Vec<Row> {
    let (_, rest) = PAGE.split_once("### How soon calls end").expect("the section");
    let rows = rest.lines().skip_while(|line| !line.starts_with("|---"));
    let rows = rows.skip(1).take_while(|line| line.starts_with('|'));
    let read = |cell: &str| {
        let numbers = cell.split(|c: char| !c.is_ascii_digit() && c != '.');
        let mut numbers = numbers.filter_map(|number| number.parse().ok());
        let least = Duration::from_secs_f64(numbers.next()?);
        Some(Cell {
            least,
            most: numbers.next().map_or(least, Duration::from_secs_f64),
            is_timeout: cell.contains("`Timeout`"),
        })
    };
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let calls = cells[1].split('`').skip(1).step_by(2).collect();
        (calls, [cells[2], cells[3]].map(read))
    })
    .collect()
}

type Ended = Result<(), Error>;

/// A call, without what it returns.
fn call<'a, T, E: Into<Error>>(
    ended: impl Future<Output = Result<T, E>> + Send + 'a,
) -> BoxFuture<'a, Ended> {
    Box::pin(async { ended.await.map(drop).map_err(Into::into) })
}

/// A call that is made before the server is away.
fn queued<T: Send + 'static>(
    ended: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> BoxFuture<'static, Ended> {
    let ended = tokio::spawn(ended);
    call(async { ended.await.unwrap() })
}

async fn manager(server: &Server) -> LockManager {
    let locks = LockManager::connect(&server.url()).await.unwrap();
    locks
        .lock("warm")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    locks
}

#[tokio::test]
async fn each_call_ends_within_the_bounds_on_the_page_while_the_server_is_away() {
    let server = Server::start().await;
    let url = server.url();
    let other = manager(&server).await;
    let _taken = other.lock("taken").acquire().await.unwrap();
    let [locks, closing] = [manager(&server).await, manager(&server).await];
    let [release, renew] = ["release", "renew"].map(|name| locks.lock(name));
    let (release, renew) = (release.acquire().await.unwrap(), renew.acquire().await.unwrap());
    let mut shrunk = locks.semaphore("shrunk", 2).permits(2).acquire().await.unwrap();
    let downgraded = locks.rw_lock("downgraded").write().acquire().await.unwrap();
    let _held = closing.lock("held").acquire().await.unwrap();
    let forced = renew.fence();

    let limit = |locks: &LockManager, name| locks.rate_limit(name, 1, 60 * SECOND);
    for name in ["waited", "bounded"] {
        limit(&other, name).acquire().await.unwrap();
    }
    let taken = locks.lock("taken");
    // A set holds its first lock while it waits for the next one.
    let [set, bounded_set] = ["of the set", "of the bounded set"].map(|first| locks.all([first, "taken"]));
    let mut calls = vec![
        ("acquire", 1, queued(taken.acquire())),
        (
            "acquire_timeout(3 s)",
            1,
            queued(taken.acquire_timeout(3 * SECOND)),
        ),
        (
            "acquire_timeout(60 s)",
            1,
            queued(taken.acquire_timeout(60 * SECOND)),
        ),
        ("LockSet::acquire", 1, queued(set.acquire())),
        (
            "LockSet::acquire_timeout(3 s)",
            1,
            queued(bounded_set.acquire_timeout(3 * SECOND)),
        ),
        ("RateLimit::acquire", 1, queued(limit(&locks, "waited").acquire())),
        (
            "RateLimit::acquire_timeout(3 s)",
            1,
            queued(limit(&locks, "bounded").acquire_timeout(3 * SECOND)),
        ),
    ];
    let is_waited_for = async |name| {
        let tried = limit(&other, name).try_acquire().await;
        matches!(tried, Err(Error::Busy { waiting: 1, .. }))
    };
    eventually("all are queued", 10 * SECOND, async || {
        taken.status().await.unwrap().waiting == 5
            && is_waited_for("waited").await
            && is_waited_for("bounded").await
    })
    .await;

    let lock = locks.lock("first");
    let set = locks.all(["first", "second"]);
    let closed = async {
        drop(_held);
        closing.close().await
    };
    calls.extend([
        ("connect", 0, call(LockManager::connect(&url))),
        ("acquire", 0, call(lock.acquire())),
        ("acquire_timeout(3 s)", 0, call(lock.acquire_timeout(3 * SECOND))),
        (
            "acquire_timeout(60 s)",
            0,
            call(lock.acquire_timeout(60 * SECOND)),
        ),
        ("try_acquire", 0, call(lock.try_acquire())),
        ("LockSet::acquire", 0, call(set.acquire())),
        (
            "LockSet::acquire_timeout(3 s)",
            0,
            call(set.acquire_timeout(3 * SECOND)),
        ),
        ("LockSet::try_acquire", 0, call(set.try_acquire())),
        ("RateLimit::acquire", 0, call(limit(&locks, "first").acquire())),
        (
            "RateLimit::acquire_timeout(3 s)",
            0,
            call(limit(&locks, "second").acquire_timeout(3 * SECOND)),
        ),
        (
            "RateLimit::try_acquire",
            0,
            call(limit(&locks, "third").try_acquire()),
        ),
        ("release", 0, call(release.release())),
        ("shrink_to", 0, call(shrunk.shrink_to(1))),
        ("downgrade", 0, call(downgraded.downgrade())),
        ("renew", 0, call(renew.renew())),
        ("ping", 0, call(locks.ping())),
        ("status", 0, call(lock.status())),
        ("RateLimit::status", 0, call(limit(&locks, "fourth").status())),
        ("list_all", 0, call(locks.list_all("*"))),
        ("force_release", 0, call(lock.force_release(forced))),
        ("close", 0, call(closed)),
    ]);
    server.pause();
    let timed = calls.into_iter().map(async |(call, queued, ended)| {
        let began = Instant::now();
        let ended = ended.await;
        (call, queued, began.elapsed(), ended)
    });
    let timed = join_all(timed).await;
    server.resume();
    for (call, queued, took, ended) in &timed {
        println!("{call:<32} {queued} {:>5.1} s: {ended:?}", took.as_secs_f64());
    }
    let table = table();
    for (call, queued, took, ended) in &timed {
        let row = table.iter().find(|(calls, _)| calls.contains(call));
        let (_, cells) = row.unwrap_or_else(|| panic!("{call} is not on the page"));
        let said = cells[*queued].unwrap_or_else(|| panic!("{call} has no bound"));
        let Cell { least, most, .. } = said;
        // A busy machine is late.
        let is_within = *took + SECOND / 2 >= least && *took <= most + 2 * SECOND;
        assert!(
            is_within,
            "{call} ended after {took:?}, and not {least:?} to {most:?}"
        );
        let is_as_said = match ended {
            Err(Error::Timeout { .. }) => said.is_timeout,
            Err(Error::Unreleased(_)) => *call == "close",
            Err(Error::Unavailable(_)) => !said.is_timeout,
            _ => false,
        };
        assert!(is_as_said, "{call}: {ended:?}");
    }
    let cells = table
        .iter()
        .map(|(calls, cells)| calls.len() * cells.iter().flatten().count());
    assert_eq!(timed.len(), cells.sum::<usize>(), "each call on the page is made");
}
