//! Re-entrance: a `fairlock run` within a `fairlock run` of the same lock.
//!
//! `FAIRLOCK_OWNER` has a word `owner:lock` for each lock that the processes above hold. A command that wants
//! one of these locks takes it on behalf of the same owner. Every other lock gets a new owner: if all of them
//! had the owner of the outermost command, two commands that it runs side by side would not exclude each
//! other.

use fairlock::Owner;

use crate::connection::Place;

/// What a run does on whose behalf.
pub(crate) struct Nesting {
    /// Where the owner's name is a secret of these processes: `status` shows what is made of it.
    pub(crate) owner: Owner,
    /// The value of `FAIRLOCK_OWNER` for CMD.
    pub(crate) for_child: String,
}

impl Nesting {
    pub(crate) fn of(place: &Place, name: &str) -> Nesting {
        let is_nested = std::env::var("FAIRLOCK_HELD").is_ok_and(|held| held == "1");
        let above = is_nested.then(|| std::env::var("FAIRLOCK_OWNER").ok()).flatten();
        Nesting::within(&above.unwrap_or_default(), &place.address(name))
    }

    fn within(above: &str, address: &str) -> Nesting {
        // A hash, since an address has passwords, and any characters.
        let lock = Owner::named(address);
        let owner_of = |word: &str| {
            let (owner, of) = word.split_once(':')?;
            (of == lock.as_str()).then(|| owner.to_owned())
        };
        if let Some(owner) = above.split(' ').find_map(owner_of) {
            return Nesting {
                owner: Owner::named(owner),
                for_child: above.to_owned(),
            };
        }
        let owner = Owner::new();
        let word = format!("{owner}:{lock}");
        Nesting {
            owner: Owner::named(owner.as_str()),
            for_child: format!("{above} {word}").trim_start().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_that_a_process_above_holds_is_taken_for_its_owner_and_no_other_is() {
        let a = Nesting::within("", "a");
        let b = Nesting::within(&a.for_child, "b");
        assert_ne!(a.owner, b.owner);
        assert_ne!(Nesting::within(&a.for_child, "b").owner, b.owner);
        let again = Nesting::within(&b.for_child, "a");
        assert_eq!((again.owner, &again.for_child), (a.owner, &b.for_child));
    }
}
