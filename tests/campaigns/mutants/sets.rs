//! The guards of several locks that are acquired together.

use super::{Edit, edit};

const SET: &str = "src/api/lock_set.rs";

const SETS: &[&str] = &["--test promises sets::"];

#[rustfmt::skip]
pub(super) const EDITS: &[Edit] = &[
    edit("the locks of a set are acquired in the order of their names", SET, "locks.sort_by_key(|lock| lock.id());", "", SETS),
    edit("a name that comes twice is one lock", SET, "locks.dedup_by_key(|lock| lock.id());", "", SETS),
    edit("a loss ends the wait for the next lock", SET, "lost = taken.first_lost() => return", "lost = taken.first_lost(), if false => return", SETS),
    edit("a lock that was lost before the end of the wait is told", SET, "        taken.check()?;\n", "", SETS)
        .equal("the loss is told at the guard's first check"),
    edit("one bound counts for all locks of a set", SET, "until.saturating_duration_since(Instant::now())", "until.saturating_duration_since(Instant::now() - Duration::from_millis(300))", SETS),
    edit("work under a set has the tokens as the names were given", SET, "self.iter().map(LockGuard::token)", "self.guards.iter().map(LockGuard::token)", SETS),
    edit("a set that finds a lock busy names it", "src/api/handle/asking.rs", "tried.map(G::of).map_err(|error| error.of(&lock.name))", "tried.map(G::of)", SETS),
    edit("a set tells how long it waited altogether", SET, "ttl, .. }) => Err(Error::Timeout {\n                    name,\n                    waited: began.elapsed(),", "ttl, waited }) => Err(Error::Timeout {\n                    name,\n                    waited,", SETS),
    edit("the locks of a set come from one manager", SET, "if !lock.has_manager_of(next) {", "if false {", SETS),
    edit("a name has one setting in a set", SET, " && !lock.has_settings_of(next)", " && false", SETS),
    edit("an empty set is refused", SET, "if locks.is_empty() {", "if false {", SETS),
    edit("no lock of a wrong set is asked for", SET, "        locks.iter().try_for_each(|lock| lock.check())?;\n", "", SETS),
    edit("work ends with the first loss", SET, "unless_lost(self.first_lost(), work).await", "Ok(work.await)", SETS),
    edit("fences have the order of the names", SET, "self.places.iter().map(|place| &self.guards[*place])", "self.guards.iter()", SETS),
    edit("a release goes on after one that fails", SET, "join_all(self.guards.into_iter().map(LockGuard::release)).await", "futures_util::future::try_join_all(self.guards.into_iter().map(LockGuard::release)).await.map(|_| vec![Ok(())])?", &["--lib lock_set::"]),
];
