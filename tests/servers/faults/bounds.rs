//! How soon calls end while the server does not answer, with default settings, as the page says.

use std::time::{Duration, Instant};

use fairlock::{Error, LockManager};
use fairlock_testkit::{Server, eventually};
use futures_util::future::{BoxFuture, join_all};

use super::scene::SECOND;

const PAGE: &str = include_str!("../../../docs/operations.md");

/// The least and the most time that a call takes.
type Bounds = [Duration; 2];

/// The calls of a row, with their bounds for a first call, and for one that is queued already.
type Row = (Vec<&'static str>, [Option<Bounds>; 2]);

/// What the table says of each call.
fn table() -> Vec<Row> {
    let (_, rest) = PAGE.split_once("### How soon calls end").expect("the section");
    let rows = rest.lines().skip_while(|line| !line.starts_with("|---"));
    let rows = rows.skip(1).take_while(|line| line.starts_with('|'));
    let bounds = |cell: &str| {
        let numbers = cell.split(|c: char| !c.is_ascii_digit() && c != '.');
        let mut numbers = numbers.filter_map(|number| number.parse().ok());
        let first = Duration::from_secs_f64(numbers.next()?);
        Some([first, numbers.next().map_or(first, Duration::from_secs_f64)])
    };
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let calls = cells[1].split('`').skip(1).step_by(2).collect();
        (calls, [cells[2], cells[3]].map(bounds))
    })
    .collect()
}

type Ended = Result<(), Error>;

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
    let other = manager(&server).await;
    let _taken = other.lock("taken").acquire().await.unwrap();
    let [locks, closing] = [manager(&server).await, manager(&server).await];
    let [release, renew] = ["release", "renew"].map(|name| locks.lock(name));
    let (release, renew) = (release.acquire().await.unwrap(), renew.acquire().await.unwrap());
    let _held = closing.lock("held").acquire().await.unwrap();
    let forced = renew.fence();
    let wait = tokio::spawn(locks.lock("taken").acquire());
    let bounded = tokio::spawn(locks.lock("taken").acquire_timeout(3 * SECOND));
    let unbounded = tokio::spawn(locks.lock("taken").acquire_timeout(60 * SECOND));
    eventually("all are queued", 10 * SECOND, async || {
        locks.lock("taken").status().await.unwrap().waiting == 3
    })
    .await;
    let url = server.url();
    let lock = locks.lock("first");
    let closed = async {
        drop(_held);
        closing.close().await?;
        Ok(())
    };
    let none = |ended: Result<_, Error>| ended.map(drop);
    let calls: Vec<(&str, usize, BoxFuture<'_, Ended>)> = vec![
        (
            "connect",
            0,
            Box::pin(async { LockManager::connect(&url).await.map(drop) }),
        ),
        ("acquire", 0, Box::pin(async { lock.acquire().await.map(drop) })),
        ("acquire", 1, Box::pin(async { wait.await.unwrap().map(drop) })),
        (
            "acquire_timeout(3 s)",
            0,
            Box::pin(async { none(lock.acquire_timeout(3 * SECOND).await) }),
        ),
        (
            "acquire_timeout(3 s)",
            1,
            Box::pin(async { bounded.await.unwrap().map(drop) }),
        ),
        (
            "acquire_timeout(60 s)",
            0,
            Box::pin(async { none(lock.acquire_timeout(60 * SECOND).await) }),
        ),
        (
            "acquire_timeout(60 s)",
            1,
            Box::pin(async { unbounded.await.unwrap().map(drop) }),
        ),
        (
            "try_acquire",
            0,
            Box::pin(async { lock.try_acquire().await.map(drop) }),
        ),
        ("release", 0, Box::pin(release.release())),
        ("renew", 0, Box::pin(async { renew.renew().await.map(drop) })),
        ("ping", 0, Box::pin(locks.ping())),
        ("status", 0, Box::pin(async { lock.status().await.map(drop) })),
        (
            "list_all",
            0,
            Box::pin(async { locks.list_all("*").await.map(drop) }),
        ),
        (
            "force_release",
            0,
            Box::pin(async { lock.force_release(forced).await.map(drop) }),
        ),
        ("close", 0, Box::pin(closed)),
    ];
    server.pause();
    let timed = calls.into_iter().map(async |(call, queued, ended)| {
        let began = Instant::now();
        let ended = ended.await;
        (call, queued, began.elapsed(), ended)
    });
    let timed = join_all(timed).await;
    server.resume();
    let table = table();
    let mut checked = 0;
    for (call, queued, took, ended) in timed {
        println!("{call:<24} {queued} {:>5.1} s: {ended:?}", took.as_secs_f64());
        let row = table.iter().find(|(calls, _)| calls.contains(&call));
        let (_, bounds) = row.unwrap_or_else(|| panic!("{call} is not on the page"));
        let [least, most] = bounds[queued].unwrap_or_else(|| panic!("{call} has no bound"));
        // A busy machine is late.
        let is_within = took + SECOND / 2 >= least && took <= most + 2 * SECOND;
        assert!(
            is_within,
            "{call} ended after {took:?}, and not {least:?} to {most:?}"
        );
        assert!(
            matches!(
                ended,
                Err(Error::Unavailable(_) | Error::Timeout { .. } | Error::Unreleased(_))
            ),
            "{call}: {ended:?}"
        );
        checked += 1;
    }
    let cells = table
        .iter()
        .map(|(calls, bounds)| calls.len() * bounds.iter().flatten().count());
    assert_eq!(checked, cells.sum::<usize>(), "each call on the page is made");
}
