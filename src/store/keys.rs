//! The keys and channels of a lock, and which names it may have.

use std::sync::Arc;

use super::ids::ClientId;
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
