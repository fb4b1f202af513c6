//! The password for URLs that have none: a fixed one, or what a file has at each dial, since secrets change
//! while a process runs.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use fairlock::Credentials;
use percent_encoding::percent_decode_str;

use crate::exit::Failure;

/// A password that is read again for each connection.
#[derive(Clone)]
pub(crate) struct PasswordFile {
    path: PathBuf,
    user: Option<String>,
}

impl PasswordFile {
    /// The file is small, and mostly in memory. A thread that reads it might not be had when it is needed.
    pub(crate) fn read(&self) -> io::Result<Credentials> {
        let password = content(&self.path)?;
        Ok(match &self.user {
            Some(user) => Credentials::new(user, password),
            None => Credentials::password(password),
        })
    }
}

/// Completes the URLs. If the password comes from a file, the users of the URLs go there.
pub(crate) fn complete(urls: &mut [String], file: Option<&Path>) -> Result<Option<PasswordFile>, Failure> {
    let Some(path) = file else {
        if let Ok(password) = std::env::var("FAIRLOCK_PASSWORD") {
            for url in urls {
                *url = with_password(url, trimmed(&password));
            }
        }
        return Ok(None);
    };
    content(path).map_err(Failure::usage)?;
    let read: Vec<Url<'_>> = urls.iter().filter_map(|url| Url::of(url)).collect();
    let own = read.iter().filter(|url| url.has_password()).count();
    if own > 0 && own == urls.len() {
        return Ok(None);
    }
    let user = read.first().and_then(Url::user);
    if own > 0 || read.iter().any(|url| url.user() != user) {
        return Err(Failure::usage(
            "a password file is for URLs that all have the same user, or none, and no password",
        ));
    }
    for url in urls {
        *url = Url::of(url).map_or_else(|| url.clone(), |url| url.without_user());
    }
    Ok(Some(PasswordFile {
        path: path.to_owned(),
        user,
    }))
}

/// The parts of a URL.
struct Url<'a> {
    scheme: &'a str,
    /// User and password, as they are written.
    login: &'a str,
    host: &'a str,
    path: &'a str,
}

impl<'a> Url<'a> {
    fn of(url: &'a str) -> Option<Url<'a>> {
        let (scheme, rest) = url.split_once("://")?;
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (login, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        Some(Url {
            scheme,
            login,
            host,
            path,
        })
    }

    fn has_password(&self) -> bool {
        self.login.contains(':')
    }

    fn user(&self) -> Option<String> {
        let user = percent_decode_str(self.login).decode_utf8_lossy();
        (!user.is_empty()).then(|| user.into_owned())
    }

    fn without_user(&self) -> String {
        format!("{}://{}{}", self.scheme, self.host, self.path)
    }
}

/// Where a URL leads, for people: without user, password and options, among which are passwords too.
pub(crate) fn shown(url: &str) -> String {
    let bare = Url::of(url).map(|url| url.without_user());
    let place = bare.as_deref().and_then(|bare| bare.split('?').next());
    place.unwrap_or("?").to_owned()
}

/// Puts the password into a URL that has none.
fn with_password(url: &str, password: &str) -> String {
    let Some(parts) = Url::of(url).filter(|url| !url.has_password()) else {
        return url.to_owned();
    };
    let Url {
        scheme,
        login,
        host,
        path,
    } = parts;
    // A Unix socket has no host, and a URL with a user needs one.
    let host = if host.is_empty() { "localhost" } else { host };
    format!("{scheme}://{login}:{}@{host}{path}", escaped(password))
}

fn escaped(text: &str) -> String {
    let escaped = text.bytes().map(|byte| {
        if byte.is_ascii_alphanumeric() {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    escaped.collect()
}

/// The errors name the file, since nothing else does where a connection fails for it.
fn content(file: &Path) -> io::Result<String> {
    let named = |kind, error: &dyn Display| io::Error::new(kind, format!("{}: {error}", file.display()));
    let bytes = std::fs::read(file).map_err(|error| named(error.kind(), &error))?;
    let text = String::from_utf8(bytes).map_err(|_| named(io::ErrorKind::InvalidData, &"must be UTF-8"))?;
    Ok(trimmed(&text).to_owned())
}

/// Editors end the last line, and some of them begin the first one with a mark.
fn trimmed(text: &str) -> &str {
    text.strip_prefix('\u{feff}')
        .unwrap_or(text)
        .trim_end_matches(['\r', '\n'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_goes_into_a_url_that_has_none() {
        for (url, expected) in [
            ("redis://h", "redis://:p%40%2F@h"),
            ("redis://u@h:1/2", "redis://u:p%40%2F@h:1/2"),
            ("redis://u:own@h", "redis://u:own@h"),
            ("redis-sentinel://h?node=i", "redis-sentinel://:p%40%2F@h?node=i"),
            (
                "unix:///run/r.sock?db=1",
                "unix://:p%40%2F@localhost/run/r.sock?db=1",
            ),
            ("no url", "no url"),
        ] {
            assert_eq!(with_password(url, "p@/"), expected);
        }
    }

    #[test]
    fn a_place_is_shown_without_secrets() {
        for (url, expected) in [
            ("redis://u:p@h:1/2", "redis://h:1/2"),
            ("redis-sentinel://h?sentinelPassword=p", "redis-sentinel://h"),
            (
                "unix://:p@localhost/run/r.sock?db=1",
                "unix://localhost/run/r.sock",
            ),
            ("secret", "?"),
        ] {
            assert_eq!(shown(url), expected);
        }
    }

    #[test]
    fn a_password_file_takes_the_user_of_the_urls() {
        let file = std::env::temp_dir().join(format!("fairlock-password-{}", std::process::id()));
        std::fs::write(&file, "\u{feff}secret\r\n").unwrap();
        assert_eq!(content(&file).unwrap(), "secret");
        let completed = |urls: &[&str]| {
            let mut urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
            let user = complete(&mut urls, Some(&file)).map(|file| file.map(|file| file.user));
            (urls.join(" "), user.ok())
        };
        let user = Some("a:b".to_owned());
        assert_eq!(
            completed(&["redis://a%3Ab@h"]),
            ("redis://h".to_owned(), Some(Some(user)))
        );
        assert_eq!(
            completed(&["redis://h"]),
            ("redis://h".to_owned(), Some(Some(None)))
        );
        let own = "redis://u:p@h";
        assert_eq!(completed(&[own]), (own.to_owned(), Some(None)));
        for mixed in [["redis://h", own], ["redis://a@h", "redis://b@h"]] {
            assert_eq!(completed(&mixed).1, None, "{mixed:?}");
        }
        std::fs::remove_file(file).unwrap();
    }
}
