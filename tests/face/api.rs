//! The public interface of the crate is the one in `api.txt`, so that a change of it is seen in review.
//!
//! The list is made from the sources, so it has every feature and every platform, and is the same with every
//! compiler. It could also be made from the JSON of rustdoc, but the format of that is unstable: it changes
//! several times a year, and each version of a tool reads only one. What only a compiler knows is left to
//! `promises::bounds`, such as which types are `Send`.

mod listing;
mod sources;

use std::collections::BTreeMap;
use std::fs;

use self::listing::listing;
use self::sources::Sources;
use super::root;

const HEADER: &str = "The public interface of fairlock with all features. `_` stands for what is private.
UPDATE=1 cargo test --test face api writes this file again.
";

/// The lines of each section.
fn sections(text: &str) -> BTreeMap<&str, Vec<&str>> {
    let sections = text.split("\n// ").skip(1);
    sections
        .map(|section| {
            let (title, lines) = section.split_once('\n').unwrap_or((section, ""));
            (title, lines.lines().filter(|line| !line.is_empty()).collect())
        })
        .collect()
}

/// The lines that are in one of the texts only, under the titles of their sections.
fn difference(before: &str, after: &str) -> String {
    let (before, after) = (sections(before), sections(after));
    let mut titles: Vec<_> = before.keys().chain(after.keys()).copied().collect();
    titles.sort_unstable();
    titles.dedup();
    let mut difference = String::new();
    for title in titles {
        let lines = |sections: &BTreeMap<_, Vec<_>>| sections.get(title).cloned().unwrap_or_default();
        let removed = without(lines(&before), &lines(&after));
        let added = without(lines(&after), &lines(&before));
        if !removed.is_empty() || !added.is_empty() {
            difference += &format!("\n// {title}\n");
            removed
                .iter()
                .for_each(|line| difference += &format!("-{line}\n"));
            added.iter().for_each(|line| difference += &format!("+{line}\n"));
        }
    }
    difference
}

fn without<'a>(mut lines: Vec<&'a str>, others: &[&str]) -> Vec<&'a str> {
    for other in others {
        if let Some(at) = lines.iter().position(|line| line == other) {
            lines.remove(at);
        }
    }
    lines
}

/// What only a compiler knows of a type is checked for each of them.
#[test]
fn the_bounds_of_each_public_type_are_checked() {
    let text = listing(&Sources::read(&root().join("src/lib.rs")));
    let bounds = fs::read_to_string(root().join("tests/promises/bounds.rs")).expect("a test");
    let types = text.lines().filter_map(|line| {
        let rest = line
            .strip_prefix("pub struct ")
            .or(line.strip_prefix("pub enum "))?;
        rest.split(|c: char| !c.is_alphanumeric()).next()
    });
    let types: Vec<_> = types.collect();
    let is_unchecked = |name: &&str| {
        let checks = [">", "<"].map(|end| format!("everywhere::<{name}{end}"));
        !checks.iter().any(|check| bounds.contains(check.as_str()))
    };
    let unchecked: Vec<_> = types.iter().copied().filter(is_unchecked).collect();
    assert!(
        types.len() > 30 && unchecked.is_empty(),
        "{unchecked:?} of {types:?}"
    );
}

/// With `UPDATE=1` in the environment, this test writes the list instead of checking it.
#[test]
fn public_interface_is_the_one_that_was_reviewed() {
    let path = root().join("tests/face/api.txt");
    let text = HEADER.to_owned() + &listing(&Sources::read(&root().join("src/lib.rs")));
    assert!(text.contains("\n// LockGuard\n"), "{text}");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, text).expect("a list that can be written");
    } else {
        let listed = fs::read_to_string(&path).unwrap_or_default();
        let is_equal = listed == text;
        assert!(
            is_equal,
            "the public interface is not the one in tests/face/api.txt:\n{}\n\
            If this is intended: UPDATE=1 cargo test --test face api writes the list again",
            difference(&listed, &text)
        );
    }
}

#[test]
fn difference_names_the_lines_of_one_side_under_their_section() {
    let before = "\n// Lock\na\n}\nb\n}\n\n// Owner\nc\n\n// Tls\nd\n";
    let after = "\n// Fence\ne\n\n// Lock\na\n}\n\n// Owner\nc\n\n// Tls\nD\n";
    let expected = "\n// Fence\n+e\n\n// Lock\n-b\n-}\n\n// Tls\n-d\n+D\n";
    assert_eq!(difference(before, after), expected);
}

#[test]
fn listing_shows_what_users_can_name_and_nothing_else() {
    let sources = Sources::of(
        r#"
        mod inner;
        #[cfg(feature = "redis")]
        mod server { pub struct Tls { pub(crate) ca: u8 } }
        #[cfg(any(fuzzing, test))]
        mod tests { pub struct Tested; impl Default for crate::Lock {} }
        pub mod spin { pub struct SpinLock(pub u8, u8); }

        pub use inner::{deeper::Lock, Error as LockError};
        pub use server::Tls;
        #[doc(hidden)]
        pub use inner::Hidden;
        pub use tokio::time::Instant;
        pub(crate) fn private() {}
        "#
        .replace("mod inner;", INNER)
        .as_str(),
    );
    assert_eq!(listing(&sources), LISTED);
}

const INNER: &str = r#"
    mod inner {
        pub mod deeper {
            use super::Error;
            use std::{fmt::{self, Debug}, time::Duration as Span};

            /// A lock.
            #[derive(Clone, Debug)]
            #[must_use]
            #[non_exhaustive]
            pub struct Lock<T> { pub lease: Span, name: String, inner: T }

            impl<T> Lock<T> {
                pub fn wait(mut self, mut span: Span) -> Result<crate::spin::SpinLock, Error> { self.go() }
                pub(crate) fn go(self) {}
            }
            impl<T> fmt::Display for Lock<T> { fn fmt(&self) {} }
            impl Internal for Lock<u8> { type Name = u8; }
            trait Internal { type Name; }
        }
        pub enum Error { Full { waiters: usize }, #[cfg(unix)] Closed }
        impl<T> deeper::Lock<T> { #[cfg(unix)] pub async fn acquire(&self) {} }
        impl From<Error> for u64 { fn from(error: Error) -> u64 { 0 } }
        impl Iterator for Error { type Item = Error; }
        pub struct Hidden;
        struct Private;
        impl From<Private> for Error {}
        impl Private { pub fn unseen() {} }
    }
"#;

const LISTED: &str = r#"
// Instant
pub use tokio::time::Instant;

// Lock
#[non_exhaustive]
pub struct Lock<T> {
    pub lease: std::time::Duration,
    _: _,
}
impl<T> Lock<T> {
    #[cfg(unix)]
    pub async fn acquire(&self) {}
    pub fn wait(self, span: std::time::Duration) -> Result<spin::SpinLock, LockError> {}
}
impl<T> Clone for Lock<T> {}
impl<T> std::fmt::Debug for Lock<T> {}
impl<T> std::fmt::Display for Lock<T> {}

// LockError
pub enum Error {
    Full { waiters: usize },
    #[cfg(unix)]
    Closed,
}
impl From<LockError> for u64 {}
impl Iterator for LockError {
    type Item = LockError;
}

// Tls
#[cfg(feature = "redis")]
pub struct Tls {
    _: _,
}

// spin::SpinLock
pub struct SpinLock(pub u8, _);
"#;
