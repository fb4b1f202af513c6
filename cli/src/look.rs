//! `fairlock holds`, `status`, `list`, `watch` and `release`: what scripts and operators ask of locks.

use std::collections::HashMap;
use std::io::{IsTerminal, Write, stdout};
use std::time::Duration;

use fairlock::{Fence, Lock, Status};
use serde::Serialize;
use tokio::time::sleep;

use crate::args;
use crate::connection::Place;
use crate::exit::{Failure, NOT_SO};
use crate::nesting::fence_above;
use crate::report::{Holding, held_by, hint, printable, say};
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

/// The environment says what a process above has held, and the server whether that is still so.
pub(crate) async fn holds(holds: &args::Holds) -> Result<u8, Failure> {
    let name = &holds.name;
    let place = place(&holds.connection, std::slice::from_ref(name)).await?;
    let Some(fence) = fence_above(&place, name) else {
        return Ok(NOT_SO);
    };
    let holder = place.connect().await?.lock(name).status().await?.holder;
    let is_held = holder.is_some_and(|holder| holder.fence.get() == fence && !holder.kept);
    Ok(if is_held { 0 } else { NOT_SO })
}

pub(crate) async fn status(status: &args::Status) -> Result<u8, Failure> {
    let place = place(&status.looking.connection, &status.names).await?;
    let locks = place.connect().await?;
    let mut all_held = true;
    for name in &status.names {
        let found = locks.lock(name).status().await?;
        all_held &= found.holder.is_some();
        show(name, &found, status.looking.json)?;
        if let Some(hint) = hint(name).filter(|_| found.holder.is_none()) {
            say(&hint);
        }
    }
    tell_where(&place, status.looking.json, all_held);
    Ok(if status.exit_code && !all_held { NOT_SO } else { 0 })
}

/// A lock whose status cannot be read hides none of the others.
pub(crate) async fn list(list: &args::List) -> Result<u8, Failure> {
    let place = Place::of(&list.looking.connection)?;
    place.check_pattern(&list.pattern).await?;
    let locks = place.connect().await?;
    let mut found = locks.list(&list.pattern);
    let mut first_error = None;
    let mut has_any = false;
    while let Some(listed) = found.next().await {
        match listed {
            Ok(listed) => {
                has_any = true;
                show(&listed.name, &listed.status, list.looking.json)?;
            }
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    tell_where(&place, list.looking.json, has_any);
    first_error.map_or(Ok(0), |error| Err(error.into()))
}

/// Goes on while a server is away, and says so once. What can never be answered ends it.
pub(crate) async fn watch(watch: &args::Watch) -> Result<u8, Failure> {
    spans::check("--interval", watch.interval, MIN_INTERVAL)?;
    let locks = place(&watch.looking.connection, &watch.names)
        .await?
        .connect()
        .await?;
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
    let place = place(&release.connection, std::slice::from_ref(name)).await?;
    if place.connect().await?.lock(name).force_release(fence).await? {
        return Ok(0);
    }
    let hint = hint(name).map(|hint| format!("; {hint}")).unwrap_or_default();
    Err(Failure::new(
        NOT_SO,
        format!(
            "{name} is not held under fence {fence} at {}{hint}",
            place.shown()
        ),
    ))
}

/// Where the locks of these names are. Nothing is connected yet.
async fn place(connection: &args::Connection, names: &[String]) -> Result<Place, Failure> {
    let place = Place::of(connection)?;
    for name in names {
        place.check(|locks| locks.lock(name)).await?;
    }
    Ok(place)
}

/// Says which server was looked at, to people, and if nothing is held there: they may have meant another one.
fn tell_where(place: &Place, json: bool, is_held: bool) {
    if !json && (!is_held || stdout().is_terminal()) {
        say(&format!("looked at {}", place.shown()));
    }
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
