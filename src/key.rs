//! Names: of locks, their keys and channels, of clients, owners and requests.

use std::fmt;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::error::Invalid;

/// The longest lock name, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 512;

/// Everything that one lock is called by on the server. All keys share one hash slot, and the kind stands before
/// the hash tag, so that two names never meet in one key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) name: Arc<str>,
    /// Hash: the lock itself.
    pub(crate) lock: String,
    /// Sorted set: request → ticket.
    pub(crate) queue: String,
    /// Sorted set: client → server time until which it counts as alive.
    pub(crate) clients: String,
    /// What the unlock channels begin with; a client's id makes one whole.
    pub(crate) channel: String,
    /// Hash: the spin lock of that name.
    pub(crate) spin: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str, name: &str) -> Result<Keys, Invalid> {
        check_name(name)?;
        let tagged = if name.starts_with('{') {
            name.to_owned()
        } else {
            format!("{{{name}}}")
        };
        Ok(Keys {
            name: name.into(),
            lock: format!("{prefix}:{tagged}"),
            queue: format!("{prefix}:queue:{tagged}"),
            clients: format!("{prefix}:clients:{tagged}"),
            channel: format!("{prefix}:unlock:{tagged}:"),
            spin: format!("{prefix}:spin:{tagged}"),
        })
    }

    /// The channel on which `client` hears of this lock.
    pub(crate) fn channel_of(&self, client: &ClientId) -> Arc<str> {
        format!("{}{client}", self.channel).into()
    }
}

/// A name brings at most one hash tag of its own, at its start, non-empty and followed by text.
fn check_name(name: &str) -> Result<(), Invalid> {
    let invalid = |why: &str| Err(Invalid::new(format!("lock name {name:?}: {why}")));
    if name.is_empty() {
        return Err(Invalid::new("lock name \"\": must not be empty"));
    }
    if name.len() > MAX_NAME_BYTES {
        let len = name.len();
        return Err(Invalid::new(format!(
            "lock name of {len} bytes: at most {MAX_NAME_BYTES} are allowed"
        )));
    }
    let untagged = match name.strip_prefix('{') {
        None => name,
        Some(rest) => match rest.split_once('}') {
            Some((tag, text)) if !tag.is_empty() && !tag.contains('{') && !text.is_empty() => text,
            _ => {
                return invalid(
                    "a hash tag must be non-empty, closed, and followed by text, as in \"{user:7}:cart\"",
                );
            }
        },
    };
    if untagged.contains(['{', '}']) {
        return invalid("braces are allowed only as one hash tag at the start");
    }
    Ok(())
}

/// The kinds of keys and channels beside the lock itself.
const KINDS: [&str; 4] = ["queue", "clients", "unlock", "spin"];

/// A prefix stands before the hash tag, so it must not bring one; and it must not end like a kind, or the locks under it
/// would have the keys of those under a shorter one.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), Invalid> {
    let well_formed = !prefix.is_empty() && prefix.len() <= MAX_NAME_BYTES && !prefix.contains(['{', '}']);
    if !well_formed {
        return Err(Invalid::new(format!(
            "prefix {prefix:?}: must not be empty, hold a brace, or be longer than {MAX_NAME_BYTES} bytes"
        )));
    }
    match prefix.rsplit_once(':') {
        Some((_, kind)) if KINDS.contains(&kind) => Err(Invalid::new(format!(
            "prefix {prefix:?}: must not end with \":{kind}\", which names a kind of key"
        ))),
        _ => Ok(()),
    }
}

/// The 128-bit random id of one client, as 32 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct ClientId(Arc<str>);

impl ClientId {
    pub(crate) const LEN: usize = 32;

    pub(crate) fn random() -> ClientId {
        ClientId(Uuid::new_v4().simple().to_string().into())
    }

    #[cfg(test)]
    pub(crate) fn from_number(n: u128) -> ClientId {
        ClientId(Uuid::from_u128(n).simple().to_string().into())
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who holds a lock. Two acquisitions by the same owner do not exclude each other: the lock is re-entrant for it.
///
/// Without one each acquisition is an owner of its own. Give the same `Owner` only to code that runs one after the
/// other: **one `Owner` in two tasks excludes nothing between them.**
///
/// An owner may hold a lock 256 times at once, then the next acquisition is
/// [`Error::TooManyHolds`](crate::Error::TooManyHolds): each hold has a lease of its own, and makes every call for that
/// lock slower, by some 1 µs of the server's time.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(Arc<str>);

impl Owner {
    /// How many hexadecimal digits a user-given owner has on the server.
    pub(crate) const LEN: usize = 32;

    /// A new owner, unlike any other (128 random bits).
    pub fn new() -> Owner {
        Owner(Uuid::new_v4().simple().to_string().into())
    }

    /// The owner of that name: the same one in every process that uses the name. It is hashed to 128 bits (UUID
    /// version 5 of RFC 9562, in the OID name space), so any length is allowed and the server never sees the name.
    pub fn named(name: impl AsRef<str>) -> Owner {
        Owner(
            Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_ref().as_bytes())
                .simple()
                .to_string()
                .into(),
        )
    }

    /// The id that the server knows this owner by.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn from_wire(id: &str) -> Owner {
        Owner(id.into())
    }
}

impl Default for Owner {
    fn default() -> Owner {
        Owner::new()
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.0)
    }
}

/// One acquire call: `<client>:<grant_ms>:<n>:<owner>`. The first two parts are of fixed width and the owner is
/// empty or of fixed width, so that a script can cut them out by position. The string carries what a hand-over
/// must know of the request: whom to wake, for how long to grant, and on whose behalf.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Request(Arc<str>);

impl Request {
    /// Wide enough for a day of milliseconds, the longest lease.
    const GRANT_DIGITS: usize = 8;
    const GRANT_AT: usize = ClientId::LEN + 1;
    /// The longest number has 20 digits.
    const MOST: usize = Self::GRANT_AT + Self::GRANT_DIGITS + 1 + 20 + 1 + Owner::LEN;

    /// The `n`-th request of `client`. A pushed grant gives it `grant` (whole milliseconds, at most a day) to claim it.
    pub(crate) fn new(client: &ClientId, grant: Duration, n: u64, owner: Option<&Owner>) -> Request {
        let mut text = String::with_capacity(Self::MOST);
        text.push_str(&client.0);
        // A string takes whatever is written to it.
        let _ = write!(
            text,
            ":{:0width$}:{n}:",
            grant.as_millis(),
            width = Self::GRANT_DIGITS
        );
        text.push_str(owner.map_or("", Owner::as_str));
        Request(text.into())
    }

    /// A request as the server names it; `None` when it has not the form of one.
    pub(crate) fn from_wire(text: &str) -> Option<Request> {
        let well_formed = text.is_ascii()
            && text.as_bytes().get(ClientId::LEN) == Some(&b':')
            && text.as_bytes().get(Self::GRANT_AT + Self::GRANT_DIGITS) == Some(&b':')
            && text[Self::GRANT_AT..Self::GRANT_AT + Self::GRANT_DIGITS]
                .bytes()
                .all(|b| b.is_ascii_digit());
        well_formed.then(|| Request(text.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn client(&self) -> &str {
        &self.0[..ClientId::LEN]
    }

    /// How long a pushed grant lasts unless it is claimed.
    pub(crate) fn grant(&self) -> Duration {
        let digits = &self.0[Self::GRANT_AT..Self::GRANT_AT + Self::GRANT_DIGITS];
        Duration::from_millis(digits.parse().unwrap_or_default())
    }

    /// The number that its client gave it.
    pub(crate) fn number(&self) -> u64 {
        let rest = &self.0[Self::GRANT_AT + Self::GRANT_DIGITS + 1..];
        rest.split(':')
            .next()
            .and_then(|digits| digits.parse().ok())
            .unwrap_or_default()
    }

    /// The owner that this request holds for: the given one, or the request itself.
    pub(crate) fn owner(&self) -> &str {
        if self.is_owner() {
            &self.0
        } else {
            &self.0[self.0.len() - Owner::LEN..]
        }
    }

    /// Whether this request is its own owner, so that no other can hold beside it.
    pub(crate) fn is_owner(&self) -> bool {
        self.0.ends_with(':')
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
