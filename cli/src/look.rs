//! `fairlock status`, `list`, `watch` and `release`: what an operator does with locks.

use std::collections::HashMap;
use std::io::{Write, stdout};
use std::time::Duration;

use fairlock::{Fence, Lock, LockManager, Status};
use futures_util::StreamExt;
use serde::Serialize;
use tokio::time::sleep;

use crate::args;
use crate::connection::Place;
use crate::exit::{Failure, NOT_SO};
use crate::report::{Holding, held_by, printable, say};
use crate::spans::{self, millis};

/// A watch asks for each lock at each look.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// A lock, as JSON.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    held: bool,
    holder: Option<Holding>,
    waiting: u64,
    longest_wait_ms: Option<u64>,
}

pub(crate) async fn status(status: &args::Status) -> Result<u8, Failure> {
    let locks = connect(&status.looking.connection, &status.names).await?;
    let mut all_held = true;
    for name in &status.names {
        let found = locks.lock(name).status().await?;
        all_held &= found.holder.is_some();
        show(name, &found, status.looking.json)?;
    }
    Ok(if status.exit_code && !all_held { NOT_SO } else { 0 })
}

/// A lock whose status cannot be read hides none of the others.
pub(crate) async fn list(list: &args::List) -> Result<u8, Failure> {
    let place = Place::of(&list.looking.connection)?;
    place.check_pattern(&list.pattern).await?;
    let locks = place.connect().await?;
    let mut found = locks.list(&list.pattern);
    let mut first_error = None;
    while let Some(listed) = found.next().await {
        match listed {
            Ok(listed) => show(&listed.name, &listed.status, list.looking.json)?,
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    first_error.map_or(Ok(0), |error| Err(error.into()))
}

/// Goes on while a server is away, and says so once. What can never be answered ends it.
pub(crate) async fn watch(watch: &args::Watch) -> Result<u8, Failure> {
    spans::check("--interval", watch.interval, MIN_INTERVAL)?;
    let locks = connect(&watch.looking.connection, &watch.names).await?;
    let watched: Vec<Lock> = watch.names.iter().map(|name| locks.lock(name)).collect();
    let mut seen = HashMap::new();
    let mut is_away = false;
    loop {
        for lock in &watched {
            match lock.status().await {
                Ok(status) => {
                    is_away = false;
                    let holder = status.holder.as_ref();
                    let holder = holder.map(|holder| (holder.fence, holder.holds, holder.kept));
                    let state = (holder, status.waiting);
                    if seen.insert(lock.name(), state) != Some(state) {
                        show(lock.name(), &status, watch.looking.json)?;
                    }
                }
                Err(error) if error.is_transient() => {
                    if !is_away {
                        say(&error.to_string());
                    }
                    is_away = true;
                }
                Err(error) => return Err(error.into()),
            }
        }
        sleep(watch.interval).await;
    }
}

pub(crate) async fn release(release: &args::Release) -> Result<u8, Failure> {
    let fence = Fence::try_from(release.fence)?;
    let name = &release.name;
    let locks = connect(&release.connection, std::slice::from_ref(name)).await?;
    if locks.lock(name).force_release(fence).await? {
        return Ok(0);
    }
    Err(Failure::new(
        NOT_SO,
        format!("{name} is not held under fence {fence}"),
    ))
}

async fn connect(connection: &args::Connection, names: &[String]) -> Result<LockManager, Failure> {
    let place = Place::of(connection)?;
    for name in names {
        place.check(|locks| locks.lock(name)).await?;
    }
    Ok(place.connect().await?)
}

fn show(name: &str, status: &Status, json: bool) -> Result<(), Failure> {
    let holder = status.holder.as_ref();
    let line = if json {
        let shown = Shown {
            name,
            held: holder.is_some(),
            holder: holder.map(Holding::of),
            waiting: status.waiting,
            longest_wait_ms: status.longest_wait.map(millis),
        };
        serde_json::to_string(&shown).map_err(std::io::Error::from)?
    } else {
        let state = holder.map_or_else(|| "free".to_owned(), held_by);
        let wait = status.longest_wait;
        let wait = wait.map(|wait| format!(" for up to {}", spans::show(wait)));
        printable(&format!(
            "{name}: {state}, {} waiting{}",
            status.waiting,
            wait.unwrap_or_default()
        ))
    };
    let mut stdout = stdout().lock();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}
