//! Labels: how people name a client.

use std::fmt;
use std::sync::Arc;

use crate::types::error::Invalid;

/// The longest label, in bytes.
const MAX_BYTES: usize = 64;

/// The name of a client for people. It is a word of printable ASCII, so it can be a word of a script's reply,
/// and the name of a connection (`CLIENT SETNAME`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label(Arc<str>);

impl Label {
    pub(crate) fn new(text: &str) -> Result<Label, Invalid> {
        if text.is_empty() || text.len() > MAX_BYTES || !text.bytes().all(is_printable) {
            return Err(Invalid::new(format!(
                "label {text:?}: must be 1 to {MAX_BYTES} bytes of printable ASCII without spaces"
            )));
        }
        Ok(Label(text.into()))
    }

    /// The host name and the process id, as in `web-7:4711`.
    pub(crate) fn of_this_process() -> Label {
        Label::of_process(&host(), std::process::id())
    }

    fn of_process(host: &str, pid: u32) -> Label {
        let pid = format!(":{pid}");
        let printable = host.chars().filter(|c| u8::try_from(*c).is_ok_and(is_printable));
        let host: String = printable.take(MAX_BYTES - pid.len()).collect();
        Label((host + &pid).into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_printable(byte: u8) -> bool {
    byte.is_ascii_graphic()
}

#[cfg(unix)]
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host() -> String {
    // Windows sets this for every process.
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_is_one_printable_word_of_limited_length() {
        for allowed in ["web-7", "!", "~", "a:b/c@d", &"x".repeat(64)] {
            assert_eq!(Label::new(allowed).unwrap().as_str(), allowed);
        }
        for refused in ["", "a b", "a\nb", "a\u{7f}", "caf\u{e9}", &"x".repeat(65)] {
            let error = Label::new(refused).unwrap_err().to_string();
            assert!(
                error.contains(&format!("{refused:?}")) && error.contains("1 to 64"),
                "{error}"
            );
        }
    }

    #[test]
    fn default_label_is_allowed_whatever_the_host_is_called() {
        for (host, label) in [
            ("web-7", "web-7:4711".to_owned()),
            ("", ":4711".to_owned()),
            ("caf\u{e9} au lait", "cafaulait:4711".to_owned()),
            (&"h".repeat(64), "h".repeat(59) + ":4711"),
        ] {
            let default = Label::of_process(host, 4711);
            assert_eq!(default.as_str(), label);
            Label::new(default.as_str()).unwrap();
        }
        Label::new(Label::of_this_process().as_str()).unwrap();
    }
}
