//! The keys and channels of a lock, and the rules for lock names.

use std::sync::Arc;

use super::ids::ClientId;
use crate::types::error::Invalid;
use crate::types::status::Kind;

/// The longest lock name, in bytes.
const MAX_NAME_BYTES: usize = 512;

/// What tells a lock from all others under its prefix.
pub(crate) type LockId = (Kind, Arc<str>);

/// All names that one lock has on the server. All keys share one hash slot. What a key is stands before the
/// hash tag, so neither two names nor two kinds of lock ever produce the same key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) name: Arc<str>,
    pub(crate) kind: Kind,
    /// A hash: the lock itself, or the permits of a semaphore or a read/write lock.
    pub(crate) lock: String,
    /// A sorted set: request → ticket.
    pub(crate) queue: String,
    /// The prefix of the unlock channels. The channel of a client ends with the client's id.
    pub(super) channel: String,
    /// A hash: the spin lock of the same name. Empty for permits.
    pub(crate) spin: String,
    /// A sorted set: request → a time (ms) before which its hold of permits is not over. Empty for a lock.
    pub(crate) timers: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str, name: &str) -> Result<Keys, Invalid> {
        Keys::of_kind(Kind::Lock, prefix, name)
    }

    /// The keys of a lock of this kind.
    pub(crate) fn of_kind(kind: Kind, prefix: &str, name: &str) -> Result<Keys, Invalid> {
        let tagged = tagged(name)?;
        let kept_as = match kind {
            Kind::Lock => "",
            Kind::Semaphore => SEMAPHORE,
            Kind::ReadWrite => READ_WRITE,
        };
        let only_for = |of_a_lock: bool, key: &str| match of_a_lock == (kind == Kind::Lock) {
            true => format!("{prefix}:{key}{kept_as}{tagged}"),
            false => String::new(),
        };
        Ok(Keys {
            name: name.into(),
            kind,
            lock: format!("{prefix}:{kept_as}{tagged}"),
            queue: format!("{prefix}:queue:{kept_as}{tagged}"),
            channel: format!("{prefix}:unlock:{kept_as}{tagged}:"),
            spin: only_for(true, "spin:"),
            timers: only_for(false, "timers:"),
        })
    }

    /// The keys of the lock whose own key this is, under this prefix. Returns `None` for any other key.
    pub(crate) fn of_lock_key(prefix: &str, key: &str) -> Option<Keys> {
        let own = key.strip_prefix(prefix)?.strip_prefix(':')?;
        let kinds = [(SEMAPHORE, Kind::Semaphore), (READ_WRITE, Kind::ReadWrite)];
        let of_permits = kinds
            .into_iter()
            .find_map(|(kept_as, kind)| Some((own.strip_prefix(kept_as)?, kind)));
        let (tagged, kind) = of_permits.unwrap_or((own, Kind::Lock));
        let name = tagged
            .strip_prefix('{')?
            .strip_suffix('}')
            // The whole name is the tag, unless the name has a tag of its own.
            .unwrap_or(tagged);
        Keys::of_kind(kind, prefix, name).ok()
    }

    pub(crate) fn id(&self) -> LockId {
        (self.kind, Arc::clone(&self.name))
    }

    /// Whether a call may declare the lock's own key alone. Each of the others with permits needs the timers
    /// and the queue, except for a renewal.
    pub(crate) fn may_go_alone(&self) -> bool {
        self.kind == Kind::Lock
    }

    /// The channel that tells `client` about this lock.
    pub(crate) fn channel_of(&self, client: &ClientId) -> Arc<str> {
        format!("{}{client}", self.channel).into()
    }
}

/// The keys of a rate limit. It has no channel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RateKeys {
    /// A hash: the time of the next turn.
    pub(crate) rate: String,
    /// A sorted set: waitlist → when its first caller came.
    pub(crate) queue: String,
}

impl RateKeys {
    pub(crate) fn new(prefix: &str, name: &str) -> Result<RateKeys, Invalid> {
        let tagged = tagged(name)?;
        Ok(RateKeys {
            rate: format!("{prefix}:rate:{tagged}"),
            queue: format!("{prefix}:queue:rate:{tagged}"),
        })
    }
}

/// The key of a client's label. It belongs to no lock. A lock's keys have a hash tag and this one has none,
/// so the two never meet.
pub(crate) fn label_key(prefix: &str, client: &ClientId) -> String {
    format!("{prefix}:label:{client}")
}

/// The name as it stands in a key: a hash tag, unless it has one.
fn tagged(name: &str) -> Result<String, Invalid> {
    check_name(name)?;
    Ok(match name.starts_with('{') {
        true => name.to_owned(),
        false => format!("{{{name}}}"),
    })
}

/// A name may contain one hash tag. The tag must be at the start, must not be empty, and must be followed by
/// text.
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

/// What stands before the hash tag in the keys of a semaphore, and in those of a read/write lock.
const SEMAPHORE: &str = "semaphore:";
const READ_WRITE: &str = "rw:";

/// What may stand before the hash tag in keys and channels.
const KINDS: [&str; 7] = ["queue", "unlock", "spin", "timers", "semaphore", "rw", "rate"];

/// Checks a prefix. It stands before the hash tag, so it must not contain one. It must not end with a kind:
/// otherwise its locks would share keys with the locks under a shorter prefix.
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
