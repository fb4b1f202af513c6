//! The keys and channels of a lock, and the rules for lock names.

use std::sync::Arc;

use super::ids::ClientId;
use crate::error::Invalid;

/// The longest lock name, in bytes.
const MAX_NAME_BYTES: usize = 512;

/// All names that one lock has on the server. All keys share one hash slot. The kind stands before the hash
/// tag, so two lock names never produce the same key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) name: Arc<str>,
    /// A hash: the lock itself.
    pub(crate) lock: String,
    /// A sorted set: request → ticket.
    pub(crate) queue: String,
    /// A sorted set: client → server time until which the client counts as alive.
    pub(crate) clients: String,
    /// The prefix of the unlock channels. The channel of a client ends with the client's id.
    pub(super) channel: String,
    /// A hash: the spin lock of the same name.
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

    /// The keys of the lock whose own key this is, under this prefix. Returns `None` for any other key.
    pub(crate) fn of_lock_key(prefix: &str, key: &str) -> Option<Keys> {
        let tagged = key.strip_prefix(prefix)?.strip_prefix(':')?;
        let name = tagged
            .strip_prefix('{')?
            .strip_suffix('}')
            // The whole name is the tag, unless the name has a tag of its own.
            .unwrap_or(tagged);
        Keys::new(prefix, name).ok()
    }

    /// The channel that tells `client` about this lock.
    pub(crate) fn channel_of(&self, client: &ClientId) -> Arc<str> {
        format!("{}{client}", self.channel).into()
    }
}

/// The key of a client's label. It belongs to no lock. A lock's keys have a hash tag and this one has none,
/// so the two never meet.
pub(crate) fn label_key(prefix: &str, client: &ClientId) -> String {
    format!("{prefix}:label:{client}")
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

/// The kinds of keys and channels other than the lock itself.
const KINDS: [&str; 4] = ["queue", "clients", "unlock", "spin"];

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
