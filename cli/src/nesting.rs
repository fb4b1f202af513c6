//! Re-entrance: a `fairlock run` within a `fairlock run` of the same lock.
//!
//! `FAIRLOCK_OWNER` has a word `owner:lock:fence` for each hold of the processes above. A command that wants
//! one of these locks joins that hold. Other locks get a new owner in each command: if all of them had the
//! owner of the outermost one, two commands that it runs side by side would not exclude each other. What has
//! no owner, such as a semaphore, is not joined. Its word is for `holds`.
//!
//! What CMD leaves behind keeps the variable when the hold has ended. So only the server can say whether a
//! hold can be joined. It tells holds apart by their fences.

use fairlock::{Error, Kind, LockGuard, Owner};

use crate::any_lock::AnyLock;
use crate::args::Wanted;
use crate::connection::Place;

/// What the processes above hold, and the owner of holds of its own.
pub(crate) struct Nesting {
    /// The value of `FAIRLOCK_OWNER`.
    words: String,
    /// Where the locks are, and what kind of locks.
    address: String,
    /// Its name is a secret of these processes: `status` shows what is made of it.
    new: Owner,
    /// Only plain locks are re-entrant, and none is in a quorum. Other words are for `holds` alone.
    is_reentrant: bool,
}

/// A hold of a process above, which may be over.
#[derive(Debug, PartialEq, Eq)]
struct Above {
    owner: Owner,
    fence: u64,
}

impl Nesting {
    pub(crate) fn of(place: &Place, wanted: &Wanted) -> Nesting {
        let is_within = std::env::var("FAIRLOCK_HELD").is_ok_and(|held| held == "1");
        let words = is_within.then(|| std::env::var("FAIRLOCK_OWNER").ok()).flatten();
        let kind = wanted.kind();
        Nesting {
            is_reentrant: kind == Kind::Lock && !place.is_quorum(),
            ..Nesting::within(words.unwrap_or_default(), format!("{kind:?} {}", place.address()))
        }
    }

    fn within(words: String, address: String) -> Nesting {
        Nesting {
            words,
            address,
            new: Owner::new(),
            is_reentrant: true,
        }
    }

    /// The owner of holds of its own, where locks have owners.
    pub(crate) fn owner(&self) -> Option<Owner> {
        self.is_reentrant.then(|| Owner::named(self.new.as_str()))
    }

    /// The fence of the hold of this lock that a process above has, or has had.
    pub(crate) fn fence_above(&self, name: &str) -> Option<u64> {
        self.above(name).map(|above| above.fence)
    }

    /// Joins the hold of this lock that a process above has, if there is one.
    pub(crate) async fn join(&self, lock: &AnyLock) -> fairlock::Result<Option<LockGuard>> {
        let above = self.above(lock.name()).filter(|_| self.is_reentrant);
        let (Some(above), AnyLock::Lock(lock)) = (above, lock) else {
            return Ok(None);
        };
        let holder = lock.status().await?.holder;
        if holder.is_none_or(|holder| holder.fence.get() != above.fence) {
            return Ok(None);
        }
        let lock = lock.clone().owner(&above.owner);
        match lock.try_acquire().await {
            Ok(joined) if joined.fence().get() == above.fence => Ok(Some(joined)),
            // The hold has ended after that look. What this one has taken, it gives back.
            Ok(_) | Err(Error::Busy { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The value of `FAIRLOCK_OWNER` for CMD.
    pub(crate) fn for_child<'a>(&self, held: impl Iterator<Item = &'a LockGuard>) -> String {
        self.with_own(held.map(|guard| (guard.name(), guard.fence().get())))
    }

    fn with_own<'a>(&self, held: impl IntoIterator<Item = (&'a str, u64)>) -> String {
        let mut words: Vec<String> = self.words.split_whitespace().map(str::to_owned).collect();
        for (name, fence) in held {
            // A hold that was joined has its word.
            if self.above(name).is_none_or(|above| above.fence != fence) {
                words.retain(|word| self.read(word, name).is_none());
                words.push(format!("{}:{}:{fence}", self.new, self.lock(name)));
            }
        }
        words.join(" ")
    }

    fn above(&self, name: &str) -> Option<Above> {
        self.words.split(' ').find_map(|word| self.read(word, name))
    }

    /// A word, if it is of the lock of this name.
    fn read(&self, word: &str, name: &str) -> Option<Above> {
        let mut parts = word.split(':');
        let owner = parts.next()?;
        let is_of_lock = parts.next()? == self.lock(name).as_str();
        let fence = parts.next()?.parse().ok()?;
        is_of_lock.then(|| Above {
            owner: Owner::named(owner),
            fence,
        })
    }

    /// A hash of where the lock is, since an address has passwords, and any characters.
    fn lock(&self, name: &str) -> Owner {
        Owner::named(format!("{}{name}", self.address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(words: &str) -> Nesting {
        Nesting::within(words.to_owned(), "server\n".to_owned())
    }

    #[test]
    fn hold_of_a_process_above_is_found_by_its_lock_and_no_other_is() {
        let outer = within("");
        assert_eq!((outer.above("a"), outer.above("b")), (None, None));
        let of_outer = |fence| {
            let owner = outer.owner().expect("an owner");
            Some(Above { owner, fence })
        };
        let middle = within(&outer.with_own([("a", 1), ("c", 5)]));
        assert_eq!(middle.above("a"), of_outer(1));
        assert_eq!(middle.above("b"), None);
        let again = within(&middle.with_own([("b", 2)]));
        assert_ne!(outer.owner(), middle.owner());
        assert_eq!((again.above("a"), again.above("c")), (of_outer(1), of_outer(5)));
        // One hold is joined. The other one above is over, so its word is replaced.
        let words = again.with_own([("a", 3), ("c", 5)]);
        assert_eq!(words.split(' ').count(), 3, "{words}");
        let inner = within(&words);
        let above = inner.above("a").map(|above| (above.owner, above.fence));
        assert_eq!(above, again.owner().map(|owner| (owner, 3)));
        assert_eq!(inner.above("c"), of_outer(5));
    }

    #[test]
    fn words_that_cannot_be_read_are_of_no_lock() {
        let lock = within("").lock("a");
        for words in [
            "",
            "  ",
            "x",
            &format!("x:{lock}"),
            &format!("x:{lock}:"),
            &format!("x:{lock}:-1"),
            &format!("x:y:{lock}:1"),
        ] {
            assert_eq!(within(words).above("a"), None, "{words}");
        }
    }
}
