//! `fairlock holds`, `status`, `list`, `watch` and `release`: what scripts and operators ask of locks.

use std::collections::HashMap;
use std::io::{IsTerminal, Write, stdout};
use std::time::Duration;

use fairlock::{Fence, Holder, Kind, LockManager, Status};
use futures_util::future::try_join_all;
use serde::Serialize;
use tokio::time::sleep;

use crate::any_lock::AnyLock;
use crate::args::{self, Kinds};
use crate::connection::Place;
use crate::exit::{Failure, NOT_SO, UNAVAILABLE};
use crate::nesting::Nesting;
use crate::rate;
use crate::report::{hint, holders, not_shown, printable, say, state};
use crate::spans;

/// A watch asks for each lock at each look.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// A lock, as JSON.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    kind: Kind,
    held: bool,
    #[serde(flatten)]
    status: &'a Status,
}

/// The environment says what a process above has held, and the server whether that is still so.
pub(crate) async fn holds(holds: &args::Holds) -> Result<u8, Failure> {
    let (name, wanted) = (&holds.name, &holds.wanted);
    let place = Place::of(&holds.connection)?;
    place.check(|locks| wanted.lock(locks, name)).await?;
    let Some(fence) = Nesting::of(&place, wanted).fence_above(name) else {
        return Ok(NOT_SO);
    };
    let status = wanted.lock(&place.connect().await?, name).status().await?;
    let ours = status.holders.iter().find(|holder| holder.fence.get() == fence);
    match ours {
        Some(holder) if !holder.kept && wanted.is_within(holder) => Ok(0),
        None if not_shown(&status) > 0 => Err(Failure::new(
            UNAVAILABLE,
            format!("{name} has more holders than the server shows, so fence {fence} may be one of them"),
        )),
        _ => Ok(NOT_SO),
    }
}

pub(crate) async fn status(status: &args::Status) -> Result<u8, Failure> {
    if let Some(rate) = status.rate {
        return rate::status(status, rate).await;
    }
    let (place, kinds) = place(&status.looking.connection, &status.looking.kinds, &status.names).await?;
    let locks = place.connect().await?;
    let mut all_held = true;
    for name in &status.names {
        let found = look(&locks, &kinds, name).await?;
        let is_held = found.iter().any(|(_, status)| status.holder.is_some());
        all_held &= is_held;
        let found = Seen::default().news(found);
        for (kind, found) in &found {
            show(name, *kind, found, status.looking.json)?;
        }
        if found.len() > 1 && !status.looking.json {
            say(&format!(
                "{name} is in use as several kinds, which do not exclude each other"
            ));
        }
        if let Some(hint) = hint(name).filter(|_| !is_held) {
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
            Ok(listed) if list.looking.kinds.include(listed.kind) => {
                has_any = true;
                show(&listed.name, listed.kind, &listed.status, list.looking.json)?;
            }
            Ok(_) => {}
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    tell_where(&place, list.looking.json, has_any);
    first_error.map_or(Ok(0), |error| Err(error.into()))
}

/// Goes on while a server is away, and says so once. What can never be answered ends it.
pub(crate) async fn watch(watch: &args::Watch) -> Result<u8, Failure> {
    spans::check("--interval", watch.interval, MIN_INTERVAL)?;
    let (place, kinds) = place(&watch.looking.connection, &watch.looking.kinds, &watch.names).await?;
    let locks = place.connect().await?;
    let mut seen: HashMap<&str, Seen> = HashMap::new();
    let mut is_away = false;
    loop {
        for name in &watch.names {
            match look(&locks, &kinds, name).await {
                Ok(found) => {
                    is_away = false;
                    for (kind, status) in seen.entry(name).or_default().news(found) {
                        show(name, kind, &status, watch.looking.json)?;
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
    let (place, kinds) = place(&release.connection, &release.kinds, std::slice::from_ref(name)).await?;
    let locks = place.connect().await?;
    let found = look(&locks, &kinds, name).await?;
    let with_fence = |status: &Status| status.holders.iter().any(|holder| holder.fence == fence);
    if found.iter().filter(|(_, status)| with_fence(status)).count() > 1 {
        let message = format!("{name} is held under fence {fence} as several kinds: choose one by --kind");
        return Err(Failure::usage(message));
    }
    // Of many holders not all were found.
    for kind in kinds {
        if AnyLock::seen_as(kind, &locks, name).force_release(fence).await? {
            return Ok(0);
        }
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

/// Where the locks of these names are, and which kinds are looked at. Nothing is connected yet.
async fn place(
    connection: &args::Connection,
    kinds: &Kinds,
    names: &[String],
) -> Result<(Place, Vec<Kind>), Failure> {
    let place = Place::of(connection)?;
    let kinds = kinds.at(&place);
    for name in names {
        for kind in &kinds {
            place.check(|locks| AnyLock::seen_as(*kind, locks, name)).await?;
        }
    }
    Ok((place, kinds))
}

/// What is known of this name, by kind.
async fn look(locks: &LockManager, kinds: &[Kind], name: &str) -> fairlock::Result<Vec<(Kind, Status)>> {
    let all = kinds.iter().map(|kind| {
        let lock = AnyLock::seen_as(*kind, locks, name);
        async move { Ok((*kind, lock.status().await?)) }
    });
    try_join_all(all).await
}

/// Who holds a lock, and how many wait. Renewals change the order of the holders, and of many also which ones
/// are listed. Neither is news.
struct Told {
    listed: HashMap<Fence, (u64, u32, bool, bool)>,
    are_all_listed: bool,
    /// Permits in use, readers, and requests that wait.
    numbers: [u64; 3],
}

impl Told {
    fn of(status: &Status) -> Told {
        let holders = status.holders.iter();
        let part = |holder: &Holder| (holder.holds, holder.permits, holder.writes, holder.kept);
        let listed = holders.map(|holder| (holder.fence, part(holder)));
        Told {
            listed: listed.collect(),
            are_all_listed: not_shown(status) == 0,
            numbers: [status.permits_in_use, status.readers, status.waiting],
        }
    }

    fn is_free(&self) -> bool {
        self.listed.is_empty() && self.numbers[2] == 0
    }

    fn says_the_same(&self, other: &Told) -> bool {
        let are_all_listed = self.are_all_listed && other.are_all_listed;
        (self.numbers, self.listed.len()) == (other.numbers, other.listed.len())
            && (self.listed.iter()).all(|(fence, holder)| match other.listed.get(fence) {
                Some(other) => holder == other,
                None => !are_all_listed,
            })
    }
}

/// What was seen of a name.
#[derive(Default)]
struct Seen(HashMap<Kind, Told>);

impl Seen {
    /// What has changed. At the first look that is what is in use, and otherwise that the first kind is free.
    fn news(&mut self, found: Vec<(Kind, Status)>) -> Vec<(Kind, Status)> {
        let first = found.iter().find(|(_, status)| !Told::of(status).is_free());
        let first = first.or(found.first()).map(|(kind, _)| *kind);
        let mut news = found;
        news.retain(|(kind, status)| {
            let told = Told::of(status);
            let is_news = match self.0.get(kind) {
                Some(before) => !before.says_the_same(&told),
                None => !told.is_free() || Some(*kind) == first,
            };
            self.0.insert(*kind, told);
            is_news
        });
        news
    }
}

/// Says which server was looked at, to people, and if nothing is held there: they may have meant another one.
fn tell_where(place: &Place, json: bool, is_held: bool) {
    if !json && (!is_held || stdout().is_terminal()) {
        say(&format!("looked at {}", place.shown()));
    }
}

fn show(name: &str, kind: Kind, status: &Status, json: bool) -> Result<(), Failure> {
    let text = if json {
        let shown = Shown {
            name,
            kind,
            held: status.holder.is_some(),
            status,
        };
        serde_json::to_string(&shown).map_err(std::io::Error::from)?
    } else {
        let wait = status.longest_wait;
        let wait = wait.map(|wait| format!(" for up to {}", spans::show(wait)));
        let first = format!(
            "{name}: {}, {} waiting{}",
            state(kind, status),
            status.waiting,
            wait.unwrap_or_default()
        );
        let holders = holders(kind, status)
            .into_iter()
            .map(|holder| format!("  {holder}"));
        let lines = std::iter::once(first).chain(holders);
        let lines: Vec<String> = lines.map(|line| printable(&line)).collect();
        lines.join("\n")
    };
    let mut stdout = stdout().lock();
    writeln!(stdout, "{text}")?;
    Ok(stdout.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(listed: &[u64], permits_in_use: u64) -> Told {
        let holder = |fence: &u64| (Fence::try_from(*fence).expect("a fence"), (1, 1, false, false));
        Told {
            listed: listed.iter().map(holder).collect(),
            are_all_listed: listed.len() as u64 == permits_in_use,
            numbers: [permits_in_use, 0, 0],
        }
    }

    #[test]
    fn of_more_holders_than_are_listed_it_is_no_news_which_ones_are() {
        assert!(told(&[1, 2], 2).says_the_same(&told(&[2, 1], 2)));
        assert!(!told(&[1, 2], 2).says_the_same(&told(&[1, 3], 2)));
        assert!(told(&[1, 2], 7).says_the_same(&told(&[1, 3], 7)));
        assert!(!told(&[1, 2], 7).says_the_same(&told(&[1, 3], 8)));
        assert!(!told(&[1, 2], 7).says_the_same(&told(&[1, 2], 2)));
    }
}
