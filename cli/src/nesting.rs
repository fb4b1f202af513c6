//! Re-entrance: a `fairlock run` within a `fairlock run` of the same lock.
//!
//! `FAIRLOCK_OWNER` has a word `owner:lock:fence` for each hold of the processes above. A command that wants
//! one of these locks joins that hold. Every other lock gets a new owner: if all of them had the owner of the
//! outermost command, two commands that it runs side by side would not exclude each other.
//!
//! What CMD leaves behind keeps the variable when the hold is over. So only the server can say whether a hold
//! can be joined. It tells holds apart by their fences.

use fairlock::{Error, Lock, LockGuard, Owner};

use crate::connection::Place;

/// What the processes above hold, and the owner of a hold of its own.
pub(crate) struct Nesting {
    /// The value of `FAIRLOCK_OWNER`.
    words: String,
    /// A hash of where the lock is, since an address has passwords, and any characters.
    lock: Owner,
    /// Its name is a secret of these processes: `status` shows what is made of it.
    new: Owner,
}

/// A hold of a process above, which may be over.
#[derive(Debug, PartialEq, Eq)]
struct Above {
    owner: Owner,
    fence: u64,
}

impl Nesting {
    pub(crate) fn of(place: &Place, name: &str) -> Nesting {
        let words = is_within()
            .then(|| std::env::var("FAIRLOCK_OWNER").ok())
            .flatten();
        Nesting::within(words.unwrap_or_default(), &place.address(name))
    }

    fn within(words: String, address: &str) -> Nesting {
        Nesting {
            words,
            lock: Owner::named(address),
            new: Owner::new(),
        }
    }

    /// The owner of a hold of its own.
    pub(crate) fn owner(&self) -> Owner {
        Owner::named(self.new.as_str())
    }

    /// Joins the hold of this lock that a process above has, if there is one.
    pub(crate) async fn join(&self, lock: &Lock) -> fairlock::Result<Option<LockGuard>> {
        let Some(above) = self.above() else {
            return Ok(None);
        };
        let holder = lock.status().await?.holder;
        if holder.is_none_or(|holder| holder.fence.get() != above.fence) {
            return Ok(None);
        }
        let lock = lock.clone().owner(&above.owner).at_least(None);
        match lock.try_acquire().await {
            Ok(joined) if joined.fence().get() == above.fence => Ok(Some(joined)),
            // The hold has ended after that look. What this one has taken, it gives back.
            Ok(_) | Err(Error::Busy { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The value of `FAIRLOCK_OWNER` for CMD.
    pub(crate) fn for_child(&self, guard: &LockGuard) -> String {
        if *guard.owner() == self.owner() {
            self.with_own(guard.fence().get())
        } else {
            self.words.clone()
        }
    }

    fn with_own(&self, fence: u64) -> String {
        let others = self.words.split(' ').filter(|word| self.read(word).is_none());
        let own = format!("{}:{}:{fence}", self.new, self.lock);
        others
            .chain([&*own])
            .collect::<Vec<_>>()
            .join(" ")
            .trim_start()
            .to_owned()
    }

    fn above(&self) -> Option<Above> {
        self.words.split(' ').find_map(|word| self.read(word))
    }

    /// A word, if it is of this lock.
    fn read(&self, word: &str) -> Option<Above> {
        let mut parts = word.split(':');
        let owner = parts.next()?;
        let is_of_lock = parts.next()? == self.lock.as_str();
        let fence = parts.next()?.parse().ok()?;
        is_of_lock.then(|| Above {
            owner: Owner::named(owner),
            fence,
        })
    }
}

/// The fence of the hold of this lock that a process above has, or has had.
pub(crate) fn fence_above(place: &Place, name: &str) -> Option<u64> {
    if let Some(above) = Nesting::of(place, name).above() {
        return Some(above.fence);
    }
    // There is no other word of the lock in a quorum, and within `lead`.
    let is_innermost = is_within() && std::env::var("FAIRLOCK_NAME").is_ok_and(|innermost| innermost == name);
    is_innermost.then(|| std::env::var("FAIRLOCK_FENCE").ok()?.parse().ok())?
}

fn is_within() -> bool {
    std::env::var("FAIRLOCK_HELD").is_ok_and(|held| held == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hold_of_a_process_above_is_found_by_its_lock_and_no_other_is() {
        let a = Nesting::within(String::new(), "a");
        let b = Nesting::within(a.with_own(1), "b");
        assert_eq!((a.above(), b.above()), (None, None));
        assert_ne!(a.owner(), b.owner());
        let of_a = |fence| Above {
            owner: a.owner(),
            fence,
        };
        let again = Nesting::within(b.with_own(2), "a");
        assert_eq!(again.above(), Some(of_a(1)));
        // The hold above is over, so its word is replaced.
        let words = again.with_own(3);
        assert_eq!(words.split(' ').count(), 2, "{words}");
        let inner = Nesting::within(words, "a").above();
        assert_eq!(
            inner.map(|above| (above.owner, above.fence)),
            Some((again.owner(), 3))
        );
    }

    #[test]
    fn words_that_cannot_be_read_are_of_no_lock() {
        let lock = Owner::named("a");
        for words in [
            "",
            "  ",
            "x",
            &format!("x:{lock}"),
            &format!("x:{lock}:"),
            &format!("x:{lock}:-1"),
            &format!("x:y:{lock}:1"),
        ] {
            assert_eq!(Nesting::within(words.to_owned(), "a").above(), None, "{words}");
        }
    }
}
