//! The password for URLs that have none: a fixed one, or what a file has at each dial, since secrets change
//! while a process runs.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use fairlock::Credentials;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use url::Url;

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
    let read: Vec<Url> = urls.iter().filter_map(|url| parsed(url)).collect();
    let own = read.iter().filter(|url| url.password().is_some()).count();
    if own > 0 && own == urls.len() {
        return Ok(None);
    }
    let user = read.first().and_then(user);
    if own > 0 || read.iter().any(|url| self::user(url) != user) {
        return Err(Failure::usage(
            "a password file is for URLs that all have the same user, or none, and no password",
        ));
    }
    for url in urls {
        if let Some(parsed) = parsed(url) {
            *url = without_user(parsed).into();
        }
    }
    Ok(Some(PasswordFile {
        path: path.to_owned(),
        user,
    }))
}

/// `None` if the library will refuse it. Without `//`, what is taken for a path may be a password.
fn parsed(url: &str) -> Option<Url> {
    Url::parse(url).ok().filter(Url::has_authority)
}

fn user(url: &Url) -> Option<String> {
    let user = percent_decode_str(url.username()).decode_utf8_lossy();
    (!user.is_empty()).then(|| user.into_owned())
}

/// A URL without a host has no user, and refuses to be given one.
fn without_user(mut url: Url) -> Url {
    let _ = url.set_username("").and_then(|()| url.set_password(None));
    url
}

/// Where a URL leads, for people: without user, password and options, among which are passwords too.
pub(crate) fn shown(url: &str) -> String {
    let Some(mut url) = parsed(url).map(without_user) else {
        return "?".to_owned();
    };
    url.set_query(None);
    url.set_fragment(None);
    url.into()
}

/// Puts the password into a URL that has none.
fn with_password(url: &str, password: &str) -> String {
    let completed = parsed(url).filter(|url| url.password().is_none());
    let completed = completed.and_then(|mut url| {
        // A Unix socket has no host, and a URL with a user needs one.
        if !url.has_host() {
            url.set_host(Some("localhost")).ok()?;
        }
        // It would not escape a `%`, which the library decodes.
        let escaped = utf8_percent_encode(password, NON_ALPHANUMERIC).to_string();
        url.set_password(Some(&escaped)).ok()?;
        Some(url.into())
    });
    completed.unwrap_or_else(|| url.to_owned())
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
            ("rediss://[::1]:1", "rediss://:p%40%2F@[::1]:1"),
            (
                "redis-cluster://h?node=i:2&node=j",
                "redis-cluster://:p%40%2F@h?node=i:2&node=j",
            ),
            ("no url", "no url"),
            ("u:own@h", "u:own@h"),
        ] {
            assert_eq!(with_password(url, "p@/"), expected);
        }
        assert_eq!(with_password("redis://h", "50%25é"), "redis://:50%2525%C3%A9@h");
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
            ("redis://u:p@h#p", "redis://h"),
            ("unix:///run/r.sock", "unix:///run/r.sock"),
            ("secret", "?"),
            ("u:secret@h", "?"),
            ("redis://u:sec#ret@h", "?"),
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
        let unix = "unix:///run/r.sock";
        assert_eq!(completed(&[unix]), (unix.to_owned(), Some(Some(None))));
        let own = "redis://u:p@h";
        assert_eq!(completed(&[own]), (own.to_owned(), Some(None)));
        for mixed in [["redis://h", own], ["redis://a@h", "redis://b@h"]] {
            assert_eq!(completed(&mixed).1, None, "{mixed:?}");
        }
        std::fs::remove_file(file).unwrap();
    }
}
