//! Runs parts of the client again and again, so that `scripts/count-instructions` can count their
//! instructions.
//!
//! Called as `fairlock-instructions <scenario> <rounds>`; `on-server` and `handed-over`, of the feature
//! `server`, take a URL too. `fairlock-instructions script <name>` prints a script as it is sent to a server.

#[path = "../../../src/protocol/script/texts.rs"]
#[expect(dead_code, reason = "the counted scenarios only acquire, release and renew")]
mod texts;

#[cfg(feature = "metrics")]
mod recorder;

use std::process::ExitCode;
use std::time::Duration;

use fairlock::{LockGuard, LockManager, MemoryStore, Quorum, Result};
use futures_util::FutureExt;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(scenario), Some(rounds), url) = (arguments.next(), arguments.next(), arguments.next()) else {
        eprintln!(
            "instructions: name a scenario and a number of rounds, as `scripts/count-instructions` does"
        );
        return ExitCode::FAILURE;
    };
    if scenario == "script" {
        return print_script(&rounds);
    }
    #[cfg(feature = "metrics")]
    recorder::install();
    let Ok(rounds) = rounds.parse() else {
        eprintln!("instructions: {rounds:?} is not a number of rounds");
        return ExitCode::FAILURE;
    };
    let done = match (&*scenario, url) {
        ("pair", None) => {
            let lock = LockManager::in_memory().lock("a");
            pairs(|| lock.acquire(), rounds).await
        }
        ("retained", None) => {
            let lock = LockManager::in_memory().lock("a").retain(Duration::from_secs(10));
            pairs(|| lock.acquire(), rounds).await
        }
        ("busy", None) => busy(rounds).await,
        ("hand-over", None) => {
            let [one, other] = two_clients().map(|locks| locks.lock("a"));
            pass_on(|| one.acquire(), || other.acquire(), rounds).await
        }
        ("permit", None) => {
            let semaphore = LockManager::in_memory().semaphore("a", 1);
            pairs(|| semaphore.acquire(), rounds).await
        }
        ("permit-over", None) => {
            let [one, other] = two_clients().map(|locks| locks.semaphore("a", 1));
            pass_on(|| one.acquire(), || other.acquire(), rounds).await
        }
        ("local", None) => local_hand_offs(rounds).await,
        ("give-up", None) => give_ups(rounds).await,
        ("quorum", None) => quorum(rounds).await,
        #[cfg(feature = "server")]
        ("on-server", Some(url)) => on_server(&url, rounds).await,
        #[cfg(feature = "server")]
        ("handed-over", Some(url)) => hand_overs_on_server(&url, rounds).await,
        _ => {
            eprintln!("instructions: there is no scenario {scenario:?} with these arguments");
            return ExitCode::FAILURE;
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print_script(name: &str) -> ExitCode {
    let text = match name {
        "acquire" => texts::ACQUIRE,
        "release" => texts::RELEASE,
        "renew" => texts::RENEW,
        "permits_acquire" => texts::PERMITS_ACQUIRE,
        "permits_release" => texts::PERMITS_RELEASE,
        _ => {
            eprintln!("instructions: there is no script {name:?}");
            return ExitCode::FAILURE;
        }
    };
    print!("{}", texts::inlined(text));
    ExitCode::SUCCESS
}

/// Acquires and releases what nobody else wants.
async fn pairs<G, A>(acquire: impl Fn() -> A, rounds: u32) -> Result<()>
where
    G: Into<LockGuard>,
    A: Future<Output = Result<G>>,
{
    for _ in 0..rounds {
        acquire().await?.into().release().await?;
    }
    Ok(())
}

/// The same on a server. In addition, the client library writes commands and reads replies.
#[cfg(feature = "server")]
async fn on_server(url: &str, rounds: u32) -> Result<()> {
    let lock = LockManager::connect(url).await?.lock("a");
    pairs(|| lock.acquire(), rounds).await
}

/// The same in a quorum of three. In memory the first two servers have granted the lock before the third one
/// is asked.
async fn quorum(rounds: u32) -> Result<()> {
    let servers = [(); 3].map(|()| MemoryStore::new());
    let quorum = Quorum::in_memory(&servers);
    let locks = LockManager::builder().connect_quorum(quorum).await?;
    let lock = locks.lock("a");
    pairs(|| lock.acquire(), rounds).await
}

/// Tries to acquire a lock that is held.
async fn busy(rounds: u32) -> Result<()> {
    let lock = LockManager::in_memory().lock("a");
    let guard = lock.acquire().await?;
    for _ in 0..rounds {
        if lock.try_acquire().await.is_ok() {
            unreachable!("it is held");
        }
    }
    guard.release().await
}

/// Gives up waits for a lock that others wait for, when more is asked for than can be served.
async fn give_ups(rounds: u32) -> Result<()> {
    let lock = LockManager::in_memory().lock("a");
    let guard = lock.acquire().await?;
    // After that many waiters have given up in the queue, it has a single place.
    for _ in 0..32 {
        assert!(lock.acquire().now_or_never().is_none(), "it is held");
    }
    let mut waiting = std::pin::pin!(lock.acquire());
    assert!(waiting.as_mut().now_or_never().is_none(), "it is held");
    for _ in 0..rounds {
        assert!(lock.acquire().now_or_never().is_none(), "it is held");
    }
    guard.release().await?;
    waiting.await?.release().await
}

/// Two clients of one store. One hands a lock or a permit to the other, which waits, through its waitlist.
fn two_clients() -> [LockManager; 2] {
    let store = MemoryStore::new();
    let client = |()| LockManager::builder().in_memory(&store);
    [(); 2]
        .map(client)
        .map(|client| client.expect("the default settings"))
}

/// The same with the lock on a server.
#[cfg(feature = "server")]
async fn hand_overs_on_server(url: &str, rounds: u32) -> Result<()> {
    let client = || LockManager::connect(url);
    let (one, other) = (client().await?.lock("a"), client().await?.lock("a"));
    pass_on(|| one.acquire(), || other.acquire(), rounds).await
}

/// Hands a lock from one waiter to another of the same client. Of 16 turns, 15 are passed on inside it. That
/// takes far less than the longest tenure, so the count does not depend on the time.
async fn local_hand_offs(rounds: u32) -> Result<()> {
    let lock = LockManager::in_memory().lock("a").local_handoffs(16);
    pass_on(|| lock.acquire(), || lock.acquire(), rounds).await
}

/// Passes a lock on, from the holder to the next waiter in turn.
async fn pass_on<G, A, B>(one: impl Fn() -> A, other: impl Fn() -> B, rounds: u32) -> Result<()>
where
    G: Into<LockGuard>,
    A: Future<Output = Result<G>>,
    B: Future<Output = Result<G>>,
{
    let mut guard = one().await?;
    for round in 1..=rounds {
        guard = match round % 2 {
            0 => next(guard, &one).await?,
            _ => next(guard, &other).await?,
        };
    }
    guard.into().release().await
}

/// The guard of the next waiter, after the release of this one.
async fn next<G, A>(guard: G, acquire: &impl Fn() -> A) -> Result<G>
where
    G: Into<LockGuard>,
    A: Future<Output = Result<G>>,
{
    let mut waiting = std::pin::pin!(acquire());
    assert!(waiting.as_mut().now_or_never().is_none(), "it is held");
    guard.into().release().await?;
    waiting.await
}
